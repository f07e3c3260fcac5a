//! A directory for one run, readable only by its user: configurations in it hold passwords.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Removed with everything in it when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes a directory of the name `name` among the temporary files.
    pub(super) fn new(name: &str) -> io::Result<Self> {
        let path = std::env::temp_dir().join(name);
        let made = DirBuilder::new().mode(0o700).create(&path);
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        made.map_err(named)?;
        Ok(Self { path })
    }

    /// A path inside.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file.
    pub(super) fn write(&self, name: &str, text: &[u8]) -> io::Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// An empty file to write to, open.
    pub(super) fn create(&self, name: &str) -> io::Result<(PathBuf, File)> {
        let path = self.path(name);
        let file = File::create(&path)?;
        Ok((path, file))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a temporary directory stays");
        }
    }
}

/// The last lines of a file, at most `lines`; empty if it cannot be read.
pub(super) fn tail(path: &Path, lines: usize) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn it_is_private_and_goes_away() {
        let name = format!("sluiced-scratch-test-{}", uuid::Uuid::new_v4().simple());
        let scratch = Scratch::new(&name).expect("a directory");
        let file = scratch.write("a", b"1\n2\n3").expect("a file");
        let mode = fs::metadata(&scratch.path).expect("its mode").permissions();
        assert_eq!(mode.mode() & 0o777, 0o700);
        assert_eq!(tail(&file, 2), "2\n3");
        drop(scratch);
        assert!(!file.exists());
        assert_eq!(tail(&file, 2), "");
    }
}
