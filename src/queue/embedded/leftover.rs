//! The file of messages that were not delivered, one JSON object a line.
//!
//! It is created with its first record and only appended to: an empty file would be misleading, and
//! an overwritten one would lose records. Each record is one write.

use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt;

/// One message that was not delivered.
#[derive(Debug)]
pub(super) struct Record<'a> {
    pub(super) line: u64,
    pub(super) reason: &'a str,
    pub(super) detail: Option<&'a str>,
    pub(super) attempts: i64,
    pub(super) body: &'a Bytes,
}

#[derive(Serialize)]
struct Written<'a> {
    line: u64,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    attempts: i64,
    body: Body<'a>,
}

/// As it was if it is JSON, and else as a text.
#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Json(&'a RawValue),
    Text(String),
}

/// The file, once there is something in it.
#[derive(Debug)]
pub(super) struct LeftoverFile {
    path: Option<PathBuf>,
    file: Option<File>,
}

impl LeftoverFile {
    /// Without a path, records are only counted by the caller.
    pub(super) const fn new(path: Option<PathBuf>) -> Self {
        Self { path, file: None }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) async fn write(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let opened = OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)
                    .await?;
                none.insert(opened)
            }
        };
        file.write_all(&line(record)?).await?;
        file.flush().await
    }

    /// Makes sure that it is on the disk.
    ///
    /// # Errors
    /// When the disk refuses.
    pub(super) async fn sync(&mut self) -> io::Result<()> {
        match &self.file {
            Some(file) => file.sync_all().await,
            None => Ok(()),
        }
    }
}

fn line(record: &Record<'_>) -> io::Result<Vec<u8>> {
    let body = serde_json::from_slice::<&RawValue>(record.body).map_or_else(
        |_| Body::Text(String::from_utf8_lossy(record.body).into_owned()),
        Body::Json,
    );
    let mut line = serde_json::to_vec(&Written {
        line: record.line,
        reason: record.reason,
        detail: record.detail,
        attempts: record.attempts,
        body,
    })?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_with_the_body_as_it_was() {
        let text = |body: &'static [u8]| {
            let record = Record {
                line: 7,
                reason: "rejected",
                detail: Some("400 Bad Request"),
                attempts: 1,
                body: &Bytes::from_static(body),
            };
            String::from_utf8(line(&record).unwrap_or_default()).unwrap_or_default()
        };
        assert_eq!(
            text(b"{\"n\": 1.00}"),
            "{\"line\":7,\"reason\":\"rejected\",\"detail\":\"400 Bad Request\",\"attempts\":1,\"body\":{\"n\": 1.00}}\n"
        );
        assert!(text(b"not \"json\"").ends_with("\"body\":\"not \\\"json\\\"\"}\n"));
    }
}
