//! The tests that need no server: the fleet under a virtual clock, and what files must say.

mod simulation;
mod tidy;
mod units;
