//! What commands do at a broker.
//!
//! - `probe`: tries a broker and the user's rights for `sluiced check --connect`;
//! - `management`: reads the policies of a broker, `broker_policies`: what these do to queues of ours.

mod broker_policies;
pub mod management;
pub mod probe;
