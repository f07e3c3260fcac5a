//! The list that messages come from: its lines, one at a time and of bounded length, with their numbers; and
//! which of them are settled, in a small file beside the leftover file, from which a restart continues.
//!
//! Problem: a service manager restarts a run that failed, and a run that reads its list from the
//! first line calls every message again. So the settled lines are recorded, about once a second and
//! at the end; a run that is killed repeats the lines that were settled in its last second. The file
//! is replaced as a whole, and only after the leftover file is safe.
//!
//! A list is recognized by its beginning, so it may grow, and another list under the same name starts from
//! its first line. Each run reads the beginning again: if a list was short or empty, many lists have the same
//! beginning.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::fs::{self, File};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader,
};
use tokio::time::Instant;

/// Longer lines are not messages.
const LONGEST: usize = 16 * 1024 * 1024;

/// Where messages come from.
pub enum Input {
    /// A file of newline-delimited JSON.
    File(PathBuf),
    /// Newline-delimited JSON on standard input.
    Stdin,
    /// Newline-delimited JSON from any reader.
    Reader(Pin<Box<dyn AsyncRead + Send>>),
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Stdin => f.write_str("Stdin"),
            Self::Reader(_) => f.write_str("Reader"),
        }
    }
}

/// A line that is not blank.
#[derive(Clone)]
pub(super) struct InputLine {
    /// From 1.
    pub(super) number: u64,
    pub(super) text: Bytes,
    /// The text is only the beginning: the line is too long to be a message.
    pub(super) cut: bool,
}

/// Reads lines without reading ahead more than a buffer.
pub(super) struct InputLines {
    reader: Pin<Box<dyn AsyncBufRead + Send>>,
    number: u64,
    partial: Vec<u8>,
    cut: bool,
}

impl InputLines {
    /// # Errors
    /// When the file cannot be opened.
    pub(super) async fn open(input: Input) -> io::Result<Self> {
        let reader: Pin<Box<dyn AsyncRead + Send>> = match input {
            Input::File(path) => Box::pin(File::open(path).await?),
            Input::Stdin => Box::pin(tokio::io::stdin()),
            Input::Reader(reader) => reader,
        };
        Ok(Self {
            reader: Box::pin(BufReader::new(reader)),
            number: 0,
            partial: Vec::new(),
            cut: false,
        })
    }

    /// How many lines were read.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// The next line that is not blank; `None` at the end. Nothing is lost if this is cancelled.
    ///
    /// # Errors
    /// When the input cannot be read on.
    pub(super) async fn next(&mut self) -> io::Result<Option<InputLine>> {
        loop {
            let chunk = self.reader.fill_buf().await?;
            let at_end = chunk.is_empty();
            let newline = chunk.iter().position(|&byte| byte == b'\n');
            let taken = newline.unwrap_or(chunk.len());
            let room = LONGEST - self.partial.len();
            self.cut |= taken > room;
            self.partial.extend_from_slice(&chunk[..taken.min(room)]);
            self.reader
                .as_mut()
                .consume(taken + usize::from(newline.is_some()));
            if newline.is_none() && !at_end {
                continue;
            }
            if at_end && self.partial.is_empty() {
                return Ok(None);
            }
            self.number += 1;
            let line = std::mem::take(&mut self.partial);
            let cut = std::mem::take(&mut self.cut);
            let trimmed = line.trim_ascii();
            if !trimmed.is_empty() {
                let text = if trimmed.len() == line.len() {
                    Bytes::from(line)
                } else {
                    Bytes::copy_from_slice(trimmed)
                };
                return Ok(Some(InputLine {
                    number: self.number,
                    text,
                    cut,
                }));
            }
        }
    }
}

/// How long a settled line may stay unwritten.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// How much of a list serves to recognize it.
const BEGINNING: u64 = 64 * 1024;

/// Which lines of a list are settled: all up to `read` that are not `open`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListProgress {
    list: ListIdentity,
    read: u64,
    open: BTreeSet<u64>,
    done: u64,
    dead: u64,
}

/// A list, by the length and the hash of its beginning.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ListIdentity {
    bytes: u64,
    sha256: String,
}

/// The progress of a list and its file.
#[derive(Debug)]
pub(super) struct Checkpoint {
    path: PathBuf,
    progress: ListProgress,
    /// Something is to be written, by then.
    due: Option<Instant>,
}

impl Checkpoint {
    /// Continues where the last run of the same list stopped, or starts a new checkpoint.
    ///
    /// # Errors
    /// When one of the files is there and cannot be read.
    pub(super) async fn open(path: &Path, list: &Path) -> io::Result<Self> {
        let stored_progress = match fs::read(path).await {
            Ok(text) => Some(serde_json::from_slice::<ListProgress>(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let now = identity(list, BEGINNING).await?;
        if let Some(progress) = stored_progress {
            // In a list that was empty no line can be settled.
            let same = progress.list.bytes > 0
                && identity(list, progress.list.bytes).await? == progress.list;
            if same {
                let progress = ListProgress {
                    list: now,
                    ..progress
                };
                return Ok(Self::new(path, progress));
            }
            tracing::info!("the checkpoint is of another list; this one starts at its first line");
        }
        let progress = ListProgress {
            list: now,
            read: 0,
            open: BTreeSet::new(),
            done: 0,
            dead: 0,
        };
        Ok(Self::new(path, progress))
    }

    fn new(path: &Path, progress: ListProgress) -> Self {
        Self {
            path: path.to_owned(),
            progress,
            due: None,
        }
    }

    /// How many lines of the list were delivered, and how many are dead, in earlier runs too.
    pub(super) const fn counts(&self) -> (u64, u64) {
        (self.progress.done, self.progress.dead)
    }

    /// Whether an earlier run settled the line, which comes now.
    pub(super) fn is_settled(&self, line: u64) -> bool {
        line <= self.progress.read && !self.progress.open.contains(&line)
    }

    /// The line was read.
    pub(super) fn note_arrival(&mut self, line: u64) {
        self.progress.read = self.progress.read.max(line);
        self.progress.open.insert(line);
    }

    /// The line must never be sent again.
    pub(super) fn settle(&mut self, line: u64, is_dead: bool) {
        self.progress.open.remove(&line);
        self.progress.done += u64::from(!is_dead);
        self.progress.dead += u64::from(is_dead);
        self.due
            .get_or_insert_with(|| Instant::now() + WRITE_INTERVAL);
    }

    /// When to write it, if something has changed.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Puts the writing off: it is due again in a while.
    pub(super) fn put_off(&mut self) {
        self.due = self.due.map(|_| Instant::now() + WRITE_INTERVAL);
    }

    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be replaced; it is due again in a while.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        self.put_off();
        let new = self.path.with_extension("new");
        let mut file = File::create(&new).await?;
        file.write_all(&serde_json::to_vec(&self.progress)?).await?;
        file.sync_all().await?;
        fs::rename(&new, &self.path).await?;
        self.due = None;
        Ok(())
    }
}

/// The identity of a list, from at most its first `bytes`.
async fn identity(list: &Path, bytes: u64) -> io::Result<ListIdentity> {
    let mut beginning = Vec::new();
    let file = File::open(list).await?;
    file.take(bytes).read_to_end(&mut beginning).await?;
    let digest = Sha256::digest(&beginning);
    Ok(ListIdentity {
        bytes: beginning.len() as u64,
        sha256: hex::encode(digest),
    })
}

#[cfg(test)]
mod tests;
