//! The tests that need no server: the fleet under a virtual clock, and what the files of this
//! repository must contain.

mod chart;
mod keyed;
mod layers;
mod links;
mod manifests;
mod metrics;
mod monitoring;
mod names;
mod progress;
mod providers;
mod release;
mod simulation;
#[path = "../it/support/soak.rs"]
#[allow(dead_code, unreachable_pub, reason = "the other binary uses it too")]
mod soak;
mod tidy;
mod units;
mod way;
#[path = "../it/support/yaml.rs"]
#[allow(unreachable_pub, reason = "the other binary uses it too")]
mod yaml;
