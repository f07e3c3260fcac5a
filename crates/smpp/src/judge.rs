//! What the status of a response of SMPP means.
//!
//! A status that no list of the configuration names follows the defaults:
//! - `ESME_ROK`: accepted;
//! - `ESME_RTHROTTLED` and `ESME_RMSGQFUL`: throttled;
//! - a fault of the message (its addresses, text, coding, validity, parameters): permanent;
//! - everything else is transient: errors of the centre, of the session or the account, `ESME_RSUBMITFAIL`,
//!   codes that no specification names, and no answer. A useless repeat ends in a dead letter, too, but a
//!   dead letter that could have passed is work for a person.
//!
//! A `generic_nack` says that the centre could not read a request (section 4.3). So it never accepts a message,
//! whatever its status is and whatever the lists say: with a status that means acceptance, the answer cannot be used,
//! and whether the message was taken is unknown.
//!
//! A message of several segments has as many answers, and one outcome ([`SmppJudge::judge_message`]). It is accepted if
//! all of them are. If one is permanent, the message can never be complete: it is a dead letter, and its detail says
//! which segments were taken. Else the segments that were not accepted are sent again later. If there was no answer to
//! one of them, it may have been taken: then the call has failed, even if another one was throttled.

use std::time::Duration;

use sluiced_core::judge::{AskedWait, Judge, ListError, Listed, Lists, Meaning, Outcome, Silence};
use sluiced_pdu::CommandStatus;
use sluiced_ports::downstream::Status;

/// A status, as the lists of the configuration name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListedStatus(CommandStatus);

impl Listed for ListedStatus {
    const RIGHT: &'static str = "write a name such as \"ESME_RTHROTTLED\", a number such as \"0x58\" or \"88\", \"timeout\" or \"connection\"";
    const CAN_BE_UNREADABLE: bool = false;
    const NEVER_ACCEPTED: &'static [Silence] = &[Silence::Connection, Silence::Timeout];

    fn read(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }
}

/// Judges the answers of a message centre.
#[derive(Clone, Debug)]
pub(crate) struct SmppJudge(Judge<ListedStatus>);

impl SmppJudge {
    /// Reads the lists. `wait` is for throttled answers, because SMPP does not say how long to wait.
    ///
    /// # Errors
    /// When an entry is no status, is in two lists, or would lose messages.
    pub(crate) fn new(lists: Lists<'_>, wait: Duration) -> Result<Self, ListError> {
        Judge::new(lists, wait, wait).map(Self)
    }

    /// What the lack of an answer means.
    pub(crate) fn silence(&self, silence: Silence) -> Outcome {
        self.0.silence(silence)
    }

    /// What one answer means. SMPP does not say how long to wait.
    fn status(&self, status: CommandStatus) -> Outcome {
        let listed = self.0.listed(ListedStatus(status));
        let meaning = listed.unwrap_or_else(|| default_meaning(status));
        self.0.judged(meaning, AskedWait::default()).outcome
    }

    /// What the answer to one segment means, and what it counts as.
    pub(crate) fn judge_response(&self, heard: SubmitReply) -> (Outcome, Result<Status, Silence>) {
        let silent = |silence| (self.silence(silence), Err(silence));
        match heard {
            SubmitReply::Nothing(silence) => silent(silence),
            SubmitReply::Response(status) => (self.status(status), Ok(Status::Smpp(status))),
            SubmitReply::Nack(status) => match self.status(status) {
                Outcome::Accepted => silent(Silence::Connection),
                outcome => (outcome, Ok(Status::Smpp(status))),
            },
        }
    }

    /// What the answers to the segments of one message mean together, and the answer that decides. `None`: there are
    /// none.
    pub(crate) fn judge_message(
        &self,
        heard: &[SubmitReply],
    ) -> Option<(Outcome, Result<Status, Silence>)> {
        let judged = heard.iter().map(|heard| self.judge_response(*heard));
        // Of equal ones the first decides.
        judged.rev().max_by_key(weight)
    }
}

/// The centre's answer to one `submit_sm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmitReply {
    /// A `submit_sm_resp` with this status.
    Response(CommandStatus),
    /// A `generic_nack` with this status.
    Nack(CommandStatus),
    /// None.
    Nothing(Silence),
}

/// Which outcome decides for a message.
const fn weight((outcome, reply): &(Outcome, Result<Status, Silence>)) -> u8 {
    match (outcome, reply) {
        (Outcome::Accepted, _) => 0,
        (Outcome::Transient { .. }, Ok(_)) => 1,
        (Outcome::Held { .. }, Ok(_)) => 2,
        // It is about all messages.
        (Outcome::Throttled { .. }, Ok(_)) => 3,
        // The segment may have been taken, and no refusal of another one changes that.
        (Outcome::Held { .. } | Outcome::Throttled { .. } | Outcome::Transient { .. }, Err(_)) => 4,
        // It can never be complete.
        (Outcome::Permanent, _) => 5,
    }
}

const fn default_meaning(status: CommandStatus) -> Meaning {
    match status.0 {
        0x00 => Meaning::Accepted,
        0x14 | 0x58 => Meaning::Throttled,
        _ if status.is_about_message() => Meaning::Permanent,
        _ => Meaning::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(2);
    const THROTTLED: Outcome = Outcome::Throttled { wait: WAIT };

    fn judge() -> SmppJudge {
        SmppJudge::new(Lists::default(), WAIT).expect("no lists")
    }

    fn own() -> SmppJudge {
        let list = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let lists = Lists {
            accepted: &list(&["0x0b"]),
            held: &list(&["RMSGQFUL"]),
            throttled: &list(&["0x400", "1025"]),
            permanent: &list(&["ESME_RSYSERR", "timeout"]),
            ..Lists::default()
        };
        SmppJudge::new(lists, WAIT).expect("good lists")
    }

    #[test]
    fn defaults_are_those_that_operators_expect() {
        let judge = judge();
        let of = |code| judge.status(CommandStatus(code));
        assert_eq!(of(0), Outcome::Accepted);
        for code in [0x14, 0x58] {
            assert_eq!(of(code), THROTTLED, "{code:#x}");
        }
        for code in [
            0x04,
            0x05,
            0x08,
            0x0d,
            0x0e,
            0x0f,
            0x45,
            0x53,
            0x64,
            0xff,
            0x102,
            0x400,
            0x4ff,
            u32::MAX,
        ] {
            assert_eq!(of(code), Outcome::TRANSIENT, "{code:#x}");
        }
        for code in [
            0x01, 0x03, 0x07, 0x0a, 0x0b, 0x15, 0x43, 0x48, 0x50, 0x51, 0x62, 0xc2, 0x104,
        ] {
            assert_eq!(of(code), Outcome::Permanent, "{code:#x}");
        }
        assert_eq!(judge.silence(Silence::Timeout), Outcome::TRANSIENT);
    }

    #[test]
    fn lists_go_before_defaults() {
        let judge = own();
        let of = |code| judge.status(CommandStatus(code));
        assert_eq!(of(0x0b), Outcome::Accepted);
        assert_eq!(of(0x14), Outcome::Held { wait: WAIT });
        assert_eq!((of(0x400), of(0x401)), (THROTTLED, THROTTLED));
        assert_eq!(of(0x08), Outcome::Permanent);
        assert_eq!(judge.silence(Silence::Timeout), Outcome::Permanent);
        assert_eq!(judge.silence(Silence::Connection), Outcome::TRANSIENT);
    }

    #[test]
    fn wrong_lists_are_refused() {
        let said = |lists| {
            SmppJudge::new(lists, WAIT)
                .expect_err("a wrong list")
                .to_string()
        };
        let (twice, same) = (["0x58".to_owned()], ["RTHROTTLED".to_owned()]);
        let lists = Lists {
            accepted: &twice,
            permanent: &same,
            ..Lists::default()
        };
        assert_eq!(
            said(lists),
            "`RTHROTTLED` is in `accepted` and in `permanent`; it can mean only one thing"
        );
        let unknown = ["5xx".to_owned()];
        let lists = Lists {
            held: &unknown,
            ..Lists::default()
        };
        assert!(said(lists).starts_with("`5xx` in `held` is no status; write a name"));
        let unsent = ["connection".to_owned()];
        let lists = Lists {
            accepted: &unsent,
            ..Lists::default()
        };
        assert!(said(lists).contains("delivered nothing"));
    }

    #[test]
    fn segments_have_one_outcome() {
        let judge = judge();
        let status = |code| SubmitReply::Response(CommandStatus(code));
        let nothing = SubmitReply::Nothing;
        let of = |replies: &[_]| judge.judge_message(replies).expect("answers");
        let decides = |code| Ok(Status::Smpp(CommandStatus(code)));
        assert_eq!(of(&[status(0), status(0)]), (Outcome::Accepted, decides(0)));
        assert_eq!(
            of(&[status(0), status(0x58), status(8)]),
            (THROTTLED, decides(0x58))
        );
        assert_eq!(
            of(&[status(0x58), nothing(Silence::Timeout), status(0x0b)]),
            (Outcome::Permanent, decides(0x0b))
        );
        assert_eq!(
            of(&[status(0), nothing(Silence::Connection), status(8)]),
            (Outcome::TRANSIENT, Err(Silence::Connection))
        );
        // A segment that may have been taken counts more than one that was refused.
        for refused in [0x58, 0x45] {
            for replies in [
                [nothing(Silence::Timeout), status(refused)],
                [status(refused), nothing(Silence::Timeout)],
            ] {
                let unknown = (Outcome::TRANSIENT, Err(Silence::Timeout));
                assert_eq!(of(&replies), unknown, "{refused:#x}");
            }
        }
        assert_eq!(judge.judge_message(&[]), None);
    }

    #[test]
    fn a_nack_never_accepts() {
        let nack = |code| SubmitReply::Nack(CommandStatus(code));
        let unknown = (Outcome::TRANSIENT, Err(Silence::Connection));
        assert_eq!(judge().judge_response(nack(0)), unknown);
        // The list says that a response with this status accepts.
        let own = own();
        let accepted = own.judge_response(SubmitReply::Response(CommandStatus(0x0b)));
        assert_eq!(accepted.0, Outcome::Accepted);
        assert_eq!(own.judge_response(nack(0x0b)), unknown);
        let refused = Ok(Status::Smpp(CommandStatus(0x03)));
        assert_eq!(
            judge().judge_response(nack(0x03)),
            (Outcome::Permanent, refused)
        );
    }
}
