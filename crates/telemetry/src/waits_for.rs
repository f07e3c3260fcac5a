//! The kinds of waits that last (`waits`): they are values of a label, too (`meters`).

sluiced_core::labelled! {
    /// What a limit waits for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum WaitsFor {
        /// The end of an operator's pause.
        Pause = "pause",
        /// The end of a freeze.
        Freeze = "freeze",
        /// Units that calls used beyond their costs must be paid.
        Debt = "debt",
        /// The downstream's own quota of a key.
        Quota = "quota",
        /// The store lost what was taken before: it must no longer count.
        Lost = "lost",
    }

    /// The value of the metric label `what`.
    pub const fn label(self) -> &'static str;
}

impl WaitsFor {
    /// For operators, after the name of the limit.
    pub(super) const fn reason(self) -> &'static str {
        match self {
            Self::Pause => "paused by an operator (`sluiced limits resume` ends it)",
            Self::Freeze => "frozen, as the downstream asked (`sluiced limits resume` ends it)",
            Self::Debt => {
                "units that calls used beyond their costs must be paid first (`sluiced limits show` says how many, `sluiced limits open` forgives them)"
            }
            Self::Quota => {
                "the downstream says that its quota is used up (`sluiced limits open` forgets that)"
            }
            Self::Lost => {
                "the store lost its state, and nothing passes until what was taken before no longer counts (`sluiced limits open` opens it)"
            }
        }
    }
}
