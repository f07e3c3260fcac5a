//! Limits in Redis, shared by every replica.
//!
//! `store` is what the pipeline holds: paced limits there, keyed ones in `limits`, and what is
//! in force for a limit in `policies`. All of them call `scripts` through `connection`, which leads
//! to the one `server`, the primary that `sentinel` names, or the node of a `cluster`. How a
//! connection is opened is in `access`; what an error means, in `fault`; what replicas tell each
//! other, in `notices`.

mod access;
mod address;
mod batch;
mod breakers;
mod cluster;
mod connection;
mod facts;
mod fault;
mod limits;
mod notices;
mod options;
mod policies;
mod probe;
mod rights;
mod scripts;
mod sentinel;
mod server;
mod slots;
mod status;
mod store;

pub use self::options::RedisOptions;
pub use self::policies::RedisPolicies;
pub use self::probe::{Report, probe};
pub use self::scripts::Family;
pub use self::store::RedisStore;
