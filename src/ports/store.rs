//! The one store that the replicas of a fleet share.
//!
//! Each of its parts is a trait beside this one, named after what it keeps: `pace` the rows of paced limits, `limits`
//! the states of the others, `policy` what is in force for them, `breaker` how downstreams stand, `status` how the
//! replicas are. A part of the program that needs one of them takes that trait; `wire` makes one object of all.

use super::breaker::BreakerStore;
use super::limits::LimitStore;
use super::pace::PaceStore;
use super::status::StatusStore;

/// All parts but the policies, of which there are two sets.
pub trait Store: PaceStore + LimitStore + BreakerStore + StatusStore {}

impl<T: PaceStore + LimitStore + BreakerStore + StatusStore> Store for T {}
