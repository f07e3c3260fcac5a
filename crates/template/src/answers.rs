//! What the answers of a downstream say: of its own count, for the limits of a route, and what a call really used.
//!
//! What cannot be read says nothing.

mod actuals;
mod quotas;
mod throttles;
mod words;

pub use self::actuals::RouteActuals;
pub use self::quotas::{QuotaIn, QuotaReading, RouteQuotas};
pub use self::throttles::RouteThrottles;
pub use self::words::{AnswerReading, AnswerTemplates};

/// Reads from the answers to a route's calls what limits need. Each part makes a context of its own: a body that the
/// templates of one cannot read says nothing to that one alone.
#[derive(Debug)]
pub struct RouteFigures {
    /// What is left of the provider's quotas.
    pub quotas: RouteQuotas,
    /// What a call used.
    pub actuals: RouteActuals,
    /// Which limit a throttled call was refused for.
    pub throttles: RouteThrottles,
}

impl RouteFigures {
    /// For answers that are not seen: nothing is read.
    #[must_use]
    pub fn none() -> Self {
        Self {
            quotas: RouteQuotas::none(),
            actuals: RouteActuals::none(),
            throttles: RouteThrottles::none(),
        }
    }
}

#[cfg(test)]
mod tests;
