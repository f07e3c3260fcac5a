//! Which lines of a list are settled, in a small file beside the leftover file: a restart goes on from there.
//!
//! Problem: a service manager starts a run again that failed, and a run that reads its list from the
//! first line calls for every message again. So the lines that are settled are written down, about
//! once a second and at the end; a run that is killed repeats what was settled in its last second.
//! The file is replaced as a whole, and only after the leftover file is safe.
//!
//! A list is recognized by its beginning, so it may grow, and another list under the same name starts anew. Each run
//! reads the beginning again: that of a list which was short, or empty, is the beginning of many lists.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::fs::{self, File};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

/// How long a settled line may stay unwritten.
const EVERY: Duration = Duration::from_secs(1);
/// How much of a list it is recognized by.
const BEGINNING: u64 = 64 * 1024;

/// Which lines of a list are settled: all up to `read` that are not `open`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Progress {
    list: Identity,
    read: u64,
    open: BTreeSet<u64>,
    done: u64,
    dead: u64,
}

/// A list, by the length and the hash of its beginning.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    bytes: u64,
    sha256: String,
}

/// The progress of a list and its file.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    progress: Progress,
    /// Something is to be written, by then.
    due: Option<Instant>,
}

impl Checkpoint {
    /// Goes on where the last run of the same list stopped, or starts a new one.
    ///
    /// # Errors
    /// When one of the files is there and cannot be read.
    pub(super) async fn open(path: &Path, list: &Path) -> io::Result<Self> {
        let known = match fs::read(path).await {
            Ok(text) => Some(serde_json::from_slice::<Progress>(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let now = identity(list, BEGINNING).await?;
        if let Some(progress) = known {
            // Of a list that was empty no line can be settled.
            let same = progress.list.bytes > 0
                && identity(list, progress.list.bytes).await? == progress.list;
            if same {
                let progress = Progress {
                    list: now,
                    ..progress
                };
                return Ok(Self::new(path, progress));
            }
            tracing::info!("the checkpoint is of another list; this one starts at its first line");
        }
        let progress = Progress {
            list: now,
            read: 0,
            open: BTreeSet::new(),
            done: 0,
            dead: 0,
        };
        Ok(Self::new(path, progress))
    }

    fn new(path: &Path, progress: Progress) -> Self {
        Self {
            path: path.to_owned(),
            progress,
            due: None,
        }
    }

    /// How many lines of the list were delivered, and how many are dead, in earlier runs too.
    pub(super) const fn settled(&self) -> (u64, u64) {
        (self.progress.done, self.progress.dead)
    }

    /// Whether an earlier run settled the line, which comes now.
    pub(super) fn is_settled(&self, line: u64) -> bool {
        line <= self.progress.read && !self.progress.open.contains(&line)
    }

    /// The line was read.
    pub(super) fn arrived(&mut self, line: u64) {
        self.progress.read = self.progress.read.max(line);
        self.progress.open.insert(line);
    }

    /// The line is never to be sent again.
    pub(super) fn settle(&mut self, line: u64, is_dead: bool) {
        self.progress.open.remove(&line);
        self.progress.done += u64::from(!is_dead);
        self.progress.dead += u64::from(is_dead);
        self.due.get_or_insert_with(|| Instant::now() + EVERY);
    }

    /// When to write it, if something has changed.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be replaced; it is due again in a while.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        self.due = self.due.map(|_| Instant::now() + EVERY);
        let new = self.path.with_extension("new");
        let mut file = File::create(&new).await?;
        file.write_all(&serde_json::to_vec(&self.progress)?).await?;
        file.sync_all().await?;
        fs::rename(&new, &self.path).await?;
        self.due = None;
        Ok(())
    }
}

/// What the list is recognized by, of its first `bytes` at most.
async fn identity(list: &Path, bytes: u64) -> io::Result<Identity> {
    let mut beginning = Vec::new();
    let file = File::open(list).await?;
    file.take(bytes).read_to_end(&mut beginning).await?;
    let digest = Sha256::digest(&beginning);
    Ok(Identity {
        bytes: beginning.len() as u64,
        sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_list_goes_on_if_it_grew_and_starts_anew_if_it_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (path, list) = (dir.path().join("checkpoint"), dir.path().join("list"));
        std::fs::write(&list, "1\n2\n3\n").unwrap();
        let mut first = Checkpoint::open(&path, &list).await.unwrap();
        for line in 1..=3 {
            assert!(!first.is_settled(line));
            first.arrived(line);
        }
        first.settle(1, false);
        first.settle(3, true);
        assert!(first.due().is_some());
        first.write().await.unwrap();
        assert_eq!(first.due(), None);

        std::fs::write(&list, "1\n2\n3\n4\n").unwrap();
        let grown = Checkpoint::open(&path, &list).await.unwrap();
        let settled: Vec<_> = (1..=4).map(|line| grown.is_settled(line)).collect();
        assert_eq!(settled, [true, false, true, false]);
        assert_eq!(grown.settled(), (1, 1));

        std::fs::write(&list, "5\n6\n7\n8\n").unwrap();
        let other = Checkpoint::open(&path, &list).await.unwrap();
        assert!(!other.is_settled(1));
        assert_eq!(other.settled(), (0, 0));

        std::fs::write(&path, "{").unwrap();
        assert!(Checkpoint::open(&path, &list).await.is_err());
    }

    /// A list that was empty at first is known by what it holds now: others begin like it, too.
    #[tokio::test]
    async fn an_empty_list_is_not_the_beginning_of_every_list() {
        let dir = tempfile::tempdir().unwrap();
        let (path, list) = (dir.path().join("checkpoint"), dir.path().join("list"));
        for (text, lines) in [("", 0), ("1\n2\n3\n", 3), ("4\n5\n6\n", 3)] {
            std::fs::write(&list, text).unwrap();
            let mut run = Checkpoint::open(&path, &list).await.unwrap();
            assert_eq!(run.settled(), (0, 0), "{text:?}");
            for line in 1..=lines {
                assert!(!run.is_settled(line), "line {line} of {text:?}");
                run.arrived(line);
                run.settle(line, false);
            }
            run.write().await.unwrap();
        }
    }
}
