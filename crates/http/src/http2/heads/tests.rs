//! A request over HTTP/2 begins in time or not at all.

use futures::task::noop_waker_ref;
use sluiced_core::time::Mono;
use sluiced_ports::clock;

use super::*;

/// A socket with room for this many bytes.
struct Wire {
    room: usize,
    written: Vec<u8>,
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let taken = bytes.len().min(self.room);
        if taken == 0 {
            return Poll::Pending;
        }
        self.room -= taken;
        self.written.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Socket for Wire {
    fn poll_takes(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.room {
            0 => Poll::Pending,
            _ => Poll::Ready(Ok(())),
        }
    }
}

fn check(room: usize) -> (HeadCheck<Wire>, Heads) {
    let heads = Heads::new();
    let written = Vec::new();
    let check = HeadCheck::new(Wire { room, written }, heads.clone());
    (check, heads)
}

fn frame(kind: u8, stream: u32, payload: usize) -> Vec<u8> {
    let mut frame = u32::try_from(payload).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, 0]);
    frame.extend(stream.to_be_bytes());
    // As dangerous as it may be: it looks like the header of a head.
    frame.extend(std::iter::repeat_n(HEADERS, payload));
    frame
}

/// Writes as the client library does: until all is written, or nothing more is taken.
fn write(check: &mut HeadCheck<Wire>, bytes: &[u8]) -> usize {
    let mut cx = Context::from_waker(noop_waker_ref());
    let mut at = 0;
    while at < bytes.len() {
        match Pin::new(&mut *check).poll_write(&mut cx, &bytes[at..]) {
            Poll::Ready(written) => at += written.unwrap(),
            Poll::Pending => break,
        }
    }
    at
}

fn flush(check: &mut HeadCheck<Wire>) {
    let mut cx = Context::from_waker(noop_waker_ref());
    assert!(Pin::new(check).poll_flush(&mut cx).is_ready());
}

fn any_time() -> LeaveBy {
    LeaveBy::any_time()
}

fn passed() -> LeaveBy {
    while clock::now() == Mono::default() {}
    LeaveBy::new(Mono::default())
}

const WIDE: usize = 1 << 20;

#[test]
fn what_is_no_head_passes_and_a_late_head_does_not() {
    let (mut check, heads) = check(WIDE);
    heads.expect(1, any_time());
    heads.expect(3, passed());
    let preface = vec![0; PREFACE];
    let (settings, body) = (frame(4, 0, 18), frame(0, 1, 500));
    let (first, late) = (frame(HEADERS, 1, 40), frame(HEADERS, 3, 40));
    let bytes = [preface, settings, first, body, late, frame(6, 0, 8)].concat();
    let before = bytes.len() - (HEADER + 40) - (HEADER + 8);
    // What is not written is taken all the same, so that answers are read.
    assert_eq!(write(&mut check, &bytes), bytes.len());
    assert_eq!(check.io.written, bytes[..before]);
    assert!(heads.has_begun(1) && !heads.has_begun(3));
    assert!(heads.are_shut() && !heads.are_free());
    assert_eq!(write(&mut check, &frame(6, 0, 8)), HEADER + 8);
    assert_eq!(check.io.written, bytes[..before]);
}

#[test]
fn what_was_given_up_is_not_written() {
    let (mut check, heads) = check(WIDE);
    heads.expect(1, any_time());
    assert!(heads.withdraw(1));
    let bytes = [vec![0; PREFACE], frame(HEADERS, 1, 40)].concat();
    write(&mut check, &bytes);
    assert_eq!(check.io.written, bytes[..PREFACE]);
    assert!(!heads.has_begun(1) && heads.are_shut());
}

#[test]
fn what_has_begun_cannot_be_given_up_and_goes_on_however_it_is_cut() {
    for room in 1..40 {
        let (mut check, heads) = check(PREFACE + room);
        heads.expect(1, any_time());
        let bytes = [vec![0; PREFACE], frame(HEADERS, 1, 40), frame(9, 1, 7)].concat();
        let written = write(&mut check, &bytes);
        assert_eq!(written, PREFACE + room);
        assert!(heads.has_begun(1) && !heads.withdraw(1));
        assert!(!heads.are_free(), "the socket takes no more");
        check.io.room = WIDE;
        assert_eq!(write(&mut check, &bytes[written..]), bytes.len() - written);
        flush(&mut check);
        assert!(heads.are_free());
        assert_eq!(check.io.written, bytes);
    }
}

/// The clock is read when the socket takes the head, not when it was handed over.
#[test]
fn a_head_behind_a_full_socket_has_not_begun() {
    let (mut check, heads) = check(PREFACE);
    heads.expect(1, any_time());
    let bytes = [vec![0; PREFACE], frame(HEADERS, 1, 40)].concat();
    assert_eq!(write(&mut check, &bytes), PREFACE);
    assert!(!heads.has_begun(1) && !heads.are_shut());
    heads.expect(1, passed());
    check.io.room = WIDE;
    write(&mut check, &bytes[PREFACE..]);
    assert_eq!(check.io.written, bytes[..PREFACE]);
    assert!(heads.are_shut());
}

#[test]
fn each_of_many_heads_is_looked_at() {
    let (mut check, heads) = check(WIDE);
    let all = (0..20).map(|call| 2 * call + 1);
    let late = 2 * 13 + 1;
    for stream in all.clone() {
        heads.expect(stream, if stream == late { passed() } else { any_time() });
    }
    let frames = all.clone().map(|stream| frame(HEADERS, stream, 30));
    let bytes = [vec![0; PREFACE], frames.flatten().collect()].concat();
    write(&mut check, &bytes);
    assert_eq!(check.io.written.len(), PREFACE + 13 * (HEADER + 30));
    let begun = all.filter(|stream| heads.has_begun(*stream)).count();
    assert_eq!(begun, 13);
}
