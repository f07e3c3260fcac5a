//! The proof that a fleet keeps its limits, separate from the product.
//!
//! Problem: a limit that many replicas share can be broken by a crash, a pause, a clock that steps
//! or a message that is too late, and no single test machine shows all of that. So there are two
//! judges, and neither is part of the path of a message:
//! - [`simulation`] drives the decisions in `core` on a virtual clock, with replicas, clocks and a
//!   store that fail as one seed says;
//! - [`provider`] is an HTTP server that stands in for the downstream, stamps each call where it
//!   arrives, and reports how full the fullest window was.
//!
//! Operators need not read any of this. `sluiced demo` and the hidden commands `sim` and `provider` run
//! it, and so do the tests and the benchmarks. `sluiced plan` uses the same virtual clock to show what
//! limits will do with expected messages.

pub mod provider;

pub use sluiced_simulation as simulation;
