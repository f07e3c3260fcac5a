//! How much of an answer's body is read: no more than [`MAX_ANSWER`], and to its end if that comes before, so that the
//! connection can be used again.

use http_body_util::BodyExt;
use hyper::body::Body;

use crate::transport::AnswerBody;
use sluiced_core::judge::Silence;
use sluiced_ports::downstream::MAX_ANSWER;

/// How much of an answer was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerRead {
    Whole,
    /// As much as is needed; the connection closes.
    Enough,
    /// The answer broke off before; the connection closes.
    Cut(Silence),
    /// The answer came, and cannot be decoded.
    Unreadable,
}

/// Reads an answer to its end, if it is not too long. The body is in `kept`, if that is given.
pub(super) async fn read_out(mut body: AnswerBody, mut kept: Option<&mut Vec<u8>>) -> AnswerRead {
    if kept.is_none() && body.size_hint().lower() > MAX_ANSWER as u64 {
        return AnswerRead::Enough;
    }
    let mut room_left = MAX_ANSWER;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return AnswerRead::Cut(Silence::Connection);
        };
        let Some(data) = frame.data_ref() else {
            continue;
        };
        if let Some(kept) = kept.as_deref_mut() {
            kept.extend_from_slice(&data[..data.len().min(room_left)]);
        }
        let Some(still_left) = room_left.checked_sub(data.len()) else {
            return AnswerRead::Enough;
        };
        room_left = still_left;
        if room_left == 0 && !body.is_end_stream() {
            return AnswerRead::Enough;
        }
    }
    AnswerRead::Whole
}
