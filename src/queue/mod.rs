//! The queues that messages come from: RabbitMQ, and one in this process.
//!
//! Both implement `ports::queue::Subscription` and pass the same contract suite.

pub mod embedded;
pub mod events;
pub mod rabbit;

mod backoff;
mod complaints;
