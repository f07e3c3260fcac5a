//! The tests that need no server: the fleet under a virtual clock, and what files must say.

mod keyed;
mod manifests;
mod monitoring;
mod simulation;
#[path = "../it/support/soak.rs"]
#[allow(unreachable_pub, reason = "the other binary uses it too")]
mod soak;
mod tidy;
mod units;
#[path = "../it/support/yaml.rs"]
#[allow(unreachable_pub, reason = "the other binary uses it too")]
mod yaml;
