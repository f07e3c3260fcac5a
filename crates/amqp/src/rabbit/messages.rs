//! Messages as AMQP has them.
//!
//! - `convert`: makes ours of them, and copies of these;
//! - `marks`: which headers of ours a replica wrote.

pub(super) mod convert;
pub(super) mod marks;
