//! The files of a list: the list and its checkpoint are opened, settled lines are recorded, and messages that
//! were not delivered go to the leftover file, one JSON object a line.
//!
//! The leftover file is created with its first record and only appended to: an empty file would be misleading, and
//! an overwritten one would lose records. Each record is one write.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use tokio::fs::{File, OpenOptions};
use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::list::{Checkpoint, Input, InputLines};
use super::store::{InputMessage, LocalQueue};
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::message::{HeaderValue, Headers, header};
use sluiced_telemetry::LogLimit;

/// The reason for messages that were still undelivered when the queue was closed.
const NOT_DELIVERED: &str = "not_delivered";
static UNWRITTEN: LogLimit = LogLimit::new(Duration::from_secs(60));

impl LocalQueue {
    pub(super) async fn open(
        &mut self,
        input: Input,
        link: &watch::Sender<Link>,
    ) -> Option<InputLines> {
        let failed = |what: &str, error: &io::Error| {
            let reason = format!("{what} cannot be opened: {error}");
            tracing::error!(route = %self.route, "{reason}");
            link.send_replace(Link::Down(reason.into()));
        };
        let list = match &input {
            Input::File(list) => Some(list.clone()),
            _ => None,
        };
        if let Some((path, list)) = self.checkpoint_path.as_ref().zip(list) {
            match Checkpoint::open(path, &list).await {
                Ok(checkpoint) => self.checkpoint = Some(checkpoint),
                Err(error) => {
                    let path = path.display();
                    failed(&format!("the list or its checkpoint `{path}`"), &error);
                    return None;
                }
            }
        }
        if let Some((done, dead)) = self.checkpoint.as_ref().map(Checkpoint::counts)
            && done + dead > 0
        {
            tracing::info!(
                route = %self.route,
                done,
                dead,
                "the list goes on where it was"
            );
            self.events.resumed(done, dead);
        }
        InputLines::open(input)
            .await
            .inspect_err(|error| failed("the input", error))
            .ok()
    }

    /// Makes the leftover file and the checkpoint safe, in this order.
    pub(super) async fn write_down(&mut self) {
        if let Err(error) = self.leftover.sync().await {
            tracing::error!(route = %self.route, %error, "the leftover file may be incomplete");
            // A dead line that is in neither file would be lost.
            if let Some(checkpoint) = &mut self.checkpoint {
                checkpoint.put_off();
            }
            return;
        }
        if let Some(checkpoint) = &mut self.checkpoint
            && let Err(error) = checkpoint.write().await
            && let Some(more) = UNWRITTEN.fault(&error.to_string(), clock::now())
        {
            tracing::error!(route = %self.route, %error,
                "the checkpoint cannot be written: another run would send it all again{more}");
        }
    }

    /// A line must never be sent again.
    pub(super) fn settle_line(&mut self, line: u64, is_dead: bool) {
        if let Some(checkpoint) = &mut self.checkpoint {
            checkpoint.settle(line, is_dead);
        }
    }

    /// Writes a message to the leftover file. Returns whether it is there.
    pub(super) async fn record(
        &mut self,
        item: &InputMessage,
        reason: &str,
        detail: Option<&str>,
    ) -> bool {
        let attempts = item
            .headers
            .get(header::ATTEMPTS)
            .and_then(HeaderValue::as_int)
            .unwrap_or(0);
        let record = Record {
            line: item.line.number,
            reason,
            detail,
            attempts,
            body: RecordBody::of(&item.line.text),
        };
        let written = self.leftover.write(&record).await;
        if let Err(error) = &written {
            self.lost += 1;
            let line = item.line.number;
            tracing::error!(route = %self.route, line, %error, "the leftover file cannot be written");
        }
        written.is_ok()
    }

    /// Counts the messages that were not delivered: those held, then the rest of the input. Without
    /// a checkpoint no later run would begin there, so they are written to the leftover file.
    pub(super) async fn abandon(&mut self, unread: Option<InputLines>, end: Instant) -> u64 {
        let mut items: Vec<InputMessage> = self.ready.drain(..).collect();
        items.extend(self.out.drain().map(|(_, item)| item));
        items.extend(self.waiting.drain().map(|(_, item)| item));
        items.extend(self.parked.iter_mut().flat_map(std::mem::take));
        items.sort_by_key(|item| item.line.number);
        let stays = self.checkpoint.is_some();
        for item in items.iter().filter(|_| !stays) {
            self.record(item, NOT_DELIVERED, None).await;
        }
        let mut count = items.len() as u64;
        let Some(mut lines) = unread else {
            return count;
        };
        loop {
            match timeout_at(end, lines.next()).await {
                Ok(Ok(Some(line))) => {
                    let settled = |point: &Checkpoint| point.is_settled(line.number);
                    if self.checkpoint.as_ref().is_some_and(settled) {
                        continue;
                    }
                    count += 1;
                    if stays {
                        continue;
                    }
                    let item = InputMessage {
                        line,
                        headers: Headers::new(),
                        redelivered: false,
                        parked_queue: None,
                    };
                    self.record(&item, NOT_DELIVERED, None).await;
                }
                Ok(Ok(None)) => return count,
                Ok(Err(_)) | Err(_) => {
                    let line = lines.number() + 1;
                    tracing::warn!(
                        route = %self.route,
                        line,
                        "the input was not read from this line on"
                    );
                    return count;
                }
            }
        }
    }
}

/// One message that was not delivered.
#[derive(Serialize)]
struct Record<'a> {
    line: u64,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<&'a str>,
    attempts: i64,
    body: RecordBody<'a>,
}

/// As it was if it is JSON, otherwise as a text.
#[derive(Serialize)]
#[serde(untagged)]
enum RecordBody<'a> {
    Json(&'a RawValue),
    Text(Cow<'a, str>),
}

impl<'a> RecordBody<'a> {
    fn of(body: &'a [u8]) -> Self {
        let json = serde_json::from_slice(body).map(Self::Json);
        json.unwrap_or_else(|_| Self::Text(String::from_utf8_lossy(body)))
    }
}

/// The file, once it has a record.
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
    async fn write(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Some(path) = &self.path else {
            return Ok(());
        };
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let opened = OpenOptions::new()
                    .create(true)
                    .append(true)
                    // It holds messages.
                    .mode(0o600)
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
    async fn sync(&mut self) -> io::Result<()> {
        match &self.file {
            Some(file) => file.sync_all().await,
            None => Ok(()),
        }
    }
}

fn line(record: &Record<'_>) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(record)?;
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
                body: RecordBody::of(body),
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
