//! Whether a route may send at all, whatever its limits have left.

use std::time::Duration;

use crate::core::time::Mono;

/// Whether a route may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MaySend {
    /// It may, before this time (`None`: for ever).
    Until(Option<Mono>),
    /// Only what its limits have granted: they grant no more before `opening`. Nothing at all from `end` on.
    Granted { opening: Mono, end: Option<Mono> },
    /// It may not, before this time.
    NotBefore(Mono),
}

impl MaySend {
    /// The last moment at which a call may leave that must leave by `leave_by`; `None` if none may.
    pub(super) fn leave_by(self, leave_by: Mono) -> Option<Mono> {
        match self {
            Self::Until(None) | Self::Granted { end: None, .. } => Some(leave_by),
            Self::Until(Some(end)) | Self::Granted { end: Some(end), .. } => {
                Some(leave_by.min(end - Duration::from_micros(1)))
            }
            Self::NotBefore(_) => None,
        }
    }

    /// When it may take on messages again, if it may not now.
    pub(super) const fn opening(self) -> Option<Mono> {
        match self {
            Self::Until(_) => None,
            Self::NotBefore(opening) | Self::Granted { opening, .. } => Some(opening),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leaves_at_or_after_the_closing_time() {
        let at = Mono::from_micros;
        let open = MaySend::Until(Some(at(100)));
        assert_eq!(open.leave_by(at(50)), Some(at(50)));
        assert_eq!(open.leave_by(at(100)), Some(at(99)));
        assert_eq!(MaySend::Until(None).leave_by(at(100)), Some(at(100)));
        assert_eq!(MaySend::NotBefore(at(200)).leave_by(at(50)), None);
    }
}
