//! The proof of the promises in `lib.rs`: scenarios of faults, and the judges that watch the [`fleet`](crate::fleet)
//! run through them.
//!
//! A `scenario` is `drawn` from a seed; `made` makes the route, the messages and the limits of its fleet. `verdict`
//! judges a run while it happens, `trace` is its record, and `coverage` counts which faults the runs had.

mod coverage;
mod drawn;
pub mod made;
pub mod scenario;
mod trace;
pub mod verdict;

pub use coverage::Coverage;
pub use scenario::Scenario;
pub use trace::{Trace, Traced};
pub use verdict::{FleetOutcome, run};
