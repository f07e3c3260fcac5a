//! Lines of an input, one at a time and of bounded length, with their numbers.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};

/// Longer lines are not messages.
const LONGEST: usize = 16 * 1024 * 1024;

/// Where messages come from.
pub enum Input {
    /// A file of newline-delimited JSON.
    File(PathBuf),
    /// The same on standard input.
    Stdin,
    /// The same from anything.
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
            Input::File(path) => Box::pin(tokio::fs::File::open(path).await?),
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
            let text = std::mem::take(&mut self.partial);
            let cut = std::mem::take(&mut self.cut);
            let trimmed = text.trim_ascii();
            if !trimmed.is_empty() {
                let text = if trimmed.len() == text.len() {
                    Bytes::from(text)
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

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &'static [u8]) -> Vec<(u64, Vec<u8>)> {
        let mut lines = InputLines::open(Input::Reader(Box::pin(text)))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let mut out = Vec::new();
        while let Ok(Some(line)) = lines.next().await {
            assert!(!line.cut);
            out.push((line.number, line.text.to_vec()));
        }
        out
    }

    #[tokio::test]
    async fn blank_lines_are_skipped_but_counted() {
        assert_eq!(
            all(b"{\"a\":1}\r\n\n  \n[2] \n3").await,
            [
                (1, b"{\"a\":1}".to_vec()),
                (4, b"[2]".to_vec()),
                (5, b"3".to_vec())
            ]
        );
        assert_eq!(all(b"").await, []);
        assert_eq!(all(b"\n\n").await, []);
    }

    #[tokio::test]
    async fn a_line_without_end_does_not_fill_the_memory() {
        use tokio::io::AsyncReadExt;
        let endless = tokio::io::repeat(b'x').take(LONGEST as u64 + 10);
        let input = endless.chain(&b"\n{}\n"[..]);
        let mut lines = InputLines::open(Input::Reader(Box::pin(input)))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let first = lines.next().await.ok().flatten();
        assert!(first.is_some_and(|line| line.cut && line.text.len() == LONGEST));
        let second = lines.next().await.ok().flatten();
        assert!(second.is_some_and(|line| !line.cut && line.number == 2));
    }
}
