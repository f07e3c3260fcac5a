//! Status codes of responses, by number and by name.

use std::fmt;
use std::str::FromStr;

/// A `command_status` (section 5.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandStatus(pub u32);

/// The statuses that the specification names, 3.4 and 5.0, in order.
pub const NAMES: &[(u32, &str)] = &[
    (0x00, "ESME_ROK"),
    (0x01, "ESME_RINVMSGLEN"),
    (0x02, "ESME_RINVCMDLEN"),
    (0x03, "ESME_RINVCMDID"),
    (0x04, "ESME_RINVBNDSTS"),
    (0x05, "ESME_RALYBND"),
    (0x06, "ESME_RINVPRTFLG"),
    (0x07, "ESME_RINVREGDLVFLG"),
    (0x08, "ESME_RSYSERR"),
    (0x0a, "ESME_RINVSRCADR"),
    (0x0b, "ESME_RINVDSTADR"),
    (0x0c, "ESME_RINVMSGID"),
    (0x0d, "ESME_RBINDFAIL"),
    (0x0e, "ESME_RINVPASWD"),
    (0x0f, "ESME_RINVSYSID"),
    (0x11, "ESME_RCANCELFAIL"),
    (0x13, "ESME_RREPLACEFAIL"),
    (0x14, "ESME_RMSGQFUL"),
    (0x15, "ESME_RINVSERTYP"),
    (0x33, "ESME_RINVNUMDESTS"),
    (0x34, "ESME_RINVDLNAME"),
    (0x40, "ESME_RINVDESTFLAG"),
    (0x42, "ESME_RINVSUBREP"),
    (0x43, "ESME_RINVESMCLASS"),
    (0x44, "ESME_RCNTSUBDL"),
    (0x45, "ESME_RSUBMITFAIL"),
    (0x48, "ESME_RINVSRCTON"),
    (0x49, "ESME_RINVSRCNPI"),
    (0x50, "ESME_RINVDSTTON"),
    (0x51, "ESME_RINVDSTNPI"),
    (0x53, "ESME_RINVSYSTYP"),
    (0x54, "ESME_RINVREPFLAG"),
    (0x55, "ESME_RINVNUMMSGS"),
    (0x58, "ESME_RTHROTTLED"),
    (0x61, "ESME_RINVSCHED"),
    (0x62, "ESME_RINVEXPIRY"),
    (0x63, "ESME_RINVDFTMSGID"),
    (0x64, "ESME_RX_T_APPN"),
    (0x65, "ESME_RX_P_APPN"),
    (0x66, "ESME_RX_R_APPN"),
    (0x67, "ESME_RQUERYFAIL"),
    (0xc0, "ESME_RINVOPTPARSTREAM"),
    (0xc1, "ESME_ROPTPARNOTALLWD"),
    (0xc2, "ESME_RINVPARLEN"),
    (0xc3, "ESME_RMISSINGOPTPARAM"),
    (0xc4, "ESME_RINVOPTPARAMVAL"),
    (0xfe, "ESME_RDELIVERYFAILURE"),
    (0xff, "ESME_RUNKNOWNERR"),
    (0x100, "ESME_RSERTYPUNAUTH"),
    (0x101, "ESME_RPROHIBITED"),
    (0x102, "ESME_RSERTYPUNAVAIL"),
    (0x103, "ESME_RSERTYPDENIED"),
    (0x104, "ESME_RINVDCS"),
    (0x105, "ESME_RINVSRCADDRSUBUNIT"),
    (0x106, "ESME_RINVDSTADDRSUBUNIT"),
];

impl CommandStatus {
    /// `ESME_ROK`: no error.
    pub const OK: Self = Self(0x00);
    /// `ESME_RINVCMDID`: the centre does not know the command of our PDU.
    pub const INVALID_COMMAND: Self = Self(0x03);
    /// `ESME_RSYSERR`: an error of the centre itself.
    pub const SYSTEM_ERROR: Self = Self(0x08);
    /// `ESME_RINVPASWD`: the password of a bind is wrong.
    pub const INVALID_PASSWORD: Self = Self(0x0e);
    /// `ESME_RTHROTTLED`: the account sent more messages than it may.
    pub const THROTTLED: Self = Self(0x58);
    /// `ESME_RX_T_APPN`: of a delivery that cannot be taken now and may come again.
    pub const TRY_LATER: Self = Self(0x64);

    /// The status' name, if the specification has one.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        let found = NAMES.iter().find(|(code, _)| *code == self.0);
        found.map(|(_, name)| *name)
    }

    /// Whether it is about the session, the account or the centre, so that no message passes now.
    #[must_use]
    pub const fn shows_away(self) -> bool {
        matches!(
            self.0,
            0x04 | 0x05 | 0x08 | 0x0d | 0x0e | 0x0f | 0x53 | 0x100 | 0x101 | 0x102
        )
    }

    /// Whether it refuses the session or the credentials: a bind status, the system id, its password or its type.
    #[must_use]
    pub const fn is_about_credentials(self) -> bool {
        matches!(self.0, 0x04 | 0x05 | 0x0d | 0x0e | 0x0f | 0x53)
    }

    /// Whether it is about a fault of the message, so that it would be refused again: lengths, commands,
    /// flags; addresses and ids; service type, lists, replacing, class; types of numbers; times and canned
    /// messages; what an application refused; optional parameters; codings.
    #[must_use]
    pub const fn is_about_message(self) -> bool {
        matches!(
            self.0,
            0x01..=0x03
                | 0x06..=0x07
                | 0x0a..=0x0c
                | 0x11..=0x13
                | 0x15
                | 0x33..=0x34
                | 0x40..=0x44
                | 0x48..=0x51
                | 0x54..=0x55
                | 0x61..=0x63
                | 0x65..=0x66
                | 0xc0..=0xc4
                | 0x103..=0x106
        )
    }

    /// The value of the metric label `answer`: the codes that ask for an action of their own, and classes for the
    /// others.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self.0 {
            0x00 => "ok",
            0x14 => "queue_full",
            0x58 => "throttled",
            _ if self.shows_away() => "away",
            _ if self.is_about_message() => "refused",
            0x400..=0x4ff => "vendor",
            _ => "failed",
        }
    }
}

impl fmt::Display for CommandStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} (0x{:02x})", self.0),
            None => write!(f, "status 0x{:02x}", self.0),
        }
    }
}

/// A text that is neither the name nor the number of a status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no status of SMPP; write a name such as \"ESME_RTHROTTLED\" or a number such as \"0x58\" or \"88\""
)]
pub struct UnknownStatus(pub String);

impl FromStr for CommandStatus {
    type Err = UnknownStatus;

    /// A name with or without `ESME_`, or a number: decimal, or hexadecimal after `0x`.
    fn from_str(text: &str) -> Result<Self, UnknownStatus> {
        let upper = text.to_ascii_uppercase();
        let bare = |name: &str| name.trim_start_matches("ESME_").to_owned();
        let named = NAMES.iter().find(|(_, name)| bare(name) == bare(&upper));
        let number = match upper.strip_prefix("0X") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => upper.parse().ok(),
        };
        let code = named.map(|(code, _)| *code).or(number);
        code.map(Self).ok_or_else(|| UnknownStatus(text.to_owned()))
    }
}
