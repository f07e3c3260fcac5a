//! How the provider answers: its usual behaviour, and steps that were scripted for a while.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;

use super::double::Double;
use sluiced_core::rate::Rate;
use sluiced_core::time::Mono;
use sluiced_settings::text::Length;

/// At most this many steps wait their turn.
const MAX_STEPS: usize = 1_000;

/// What the provider does without a step.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The limit that calls are judged by.
    pub rate: Rate,
    /// The limit that the calls of each key (`x-key`) are judged by.
    pub key_rate: Option<Rate>,
    /// How long an answer takes.
    pub latency: Duration,
    /// Up to this much longer, at random.
    pub jitter: Duration,
    /// Shares of the calls that fail.
    pub failures: Vec<FailureShare>,
    /// Whether a call over the limit is answered with 429 and `Retry-After`, instead of only judged.
    pub enforce: bool,
    /// Answers to calls as this provider does. What is scripted goes before.
    pub double: Option<Arc<Double>>,
}

impl Behaviour {
    /// Returns 202 for everything, at once, and judges by `rate`.
    #[must_use]
    pub const fn judging(rate: Rate) -> Self {
        Self {
            rate,
            key_rate: None,
            latency: Duration::ZERO,
            jitter: Duration::ZERO,
            failures: Vec::new(),
            enforce: false,
            double: None,
        }
    }
}

/// A status for a share of the calls: `503:0.01`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailureShare {
    /// The status.
    pub status: StatusCode,
    /// From 0 to 1.
    pub share: f64,
}

/// Why a text is no [`FailureShare`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}`: write a status and its share of the calls, such as \"503:0.01\"")]
pub struct FailureError(String);

impl FromStr for FailureShare {
    type Err = FailureError;

    fn from_str(text: &str) -> Result<Self, FailureError> {
        text.split_once(':')
            .and_then(|(status, share)| {
                Some(Self {
                    status: status.trim().parse().ok()?,
                    share: share.trim().parse().ok()?,
                })
            })
            .filter(|failure| (0.0..=1.0).contains(&failure.share))
            .ok_or_else(|| FailureError(text.to_owned()))
    }
}

/// A change of behaviour for the next `count` calls, or for a time, or (with neither) until the
/// script is cleared: `{"status": 429, "retry_after": "2", "count": 10}`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptStep {
    /// What to do with a call.
    pub act: Act,
    /// The status of the answer; 202 if absent.
    #[serde(deserialize_with = "status")]
    pub status: Option<StatusCode>,
    /// The status of a response of SMPP. Absent, it follows from `status`: 429 is `ESME_RTHROTTLED`, another 4xx
    /// `ESME_RINVDSTADR`, 5xx `ESME_RSYSERR`.
    pub smpp: Option<u32>,
    /// The answer's `Retry-After`, as it is.
    pub retry_after: Option<String>,
    /// Added to the usual latency.
    pub delay: Option<Length>,
    /// Whether the provider keeps the message although it gives no answer, or no 2xx. This
    /// makes a repeat unavoidable.
    pub accept: bool,
    /// For this many calls.
    pub count: Option<u64>,
    /// For this long, from when the step becomes the first.
    #[serde(rename = "for")]
    pub lasts: Option<Length>,
}

/// What a step does with a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Returns an answer.
    #[default]
    Answer,
    /// Closes the connection without an answer.
    Close,
    /// Never answers.
    Hang,
}

fn status<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<StatusCode>, D::Error> {
    let code = u16::deserialize(from)?;
    StatusCode::from_u16(code)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

/// Too many steps wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_STEPS} steps wait already")]
pub struct ScriptFull;

/// The steps that wait; the first one counts now.
#[derive(Debug, Default)]
pub(super) struct Script {
    steps: VecDeque<ScriptStep>,
    /// When the first step ends, if it lasts for a time.
    ends: Option<Mono>,
}

impl Script {
    pub(super) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(super) fn push(&mut self, step: ScriptStep, now: Mono) -> Result<(), ScriptFull> {
        if self.steps.len() >= MAX_STEPS {
            return Err(ScriptFull);
        }
        self.steps.push_back(step);
        if self.steps.len() == 1 {
            self.begin(now);
        }
        Ok(())
    }

    pub(super) fn clear(&mut self) {
        self.steps.clear();
    }

    /// The step for a call that arrives now.
    pub(super) fn next(&mut self, now: Mono) -> Option<ScriptStep> {
        loop {
            let ended = self.ends.is_some_and(|end| now >= end);
            let step = self.steps.front_mut()?;
            match &mut step.count {
                _ if ended => {}
                Some(0) => {}
                Some(left) => {
                    *left -= 1;
                    return Some(step.clone());
                }
                None => return Some(step.clone()),
            }
            self.steps.pop_front();
            self.begin(now);
        }
    }

    fn begin(&mut self, now: Mono) {
        self.ends = self
            .steps
            .front()
            .and_then(|step| step.lasts)
            .map(|lasts| now + lasts.get());
    }
}

/// The plan for one call.
#[derive(Debug)]
pub(super) struct ResponsePlan {
    pub(super) act: Act,
    pub(super) status: StatusCode,
    pub(super) smpp: Option<u32>,
    pub(super) retry_after: Option<String>,
    pub(super) delay: Duration,
    pub(super) accepted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(json: &str) -> ScriptStep {
        serde_json::from_str(json).expect(json)
    }

    fn statuses(script: &mut Script, at: impl IntoIterator<Item = u64>) -> Vec<Option<u16>> {
        at.into_iter()
            .map(|ms| {
                let now = Mono::from_micros(ms * 1_000);
                script.next(now)?.status.map(|status| status.as_u16())
            })
            .collect()
    }

    #[test]
    fn steps_follow_each_other_by_count_and_by_time() {
        let mut script = Script::default();
        for json in [
            r#"{"status": 429, "retry_after": "2", "count": 2}"#,
            r#"{"status": 503, "for": "10ms"}"#,
            r#"{"status": 500, "count": 1}"#,
        ] {
            script
                .push(step(json), Mono::default())
                .expect("room for it");
        }
        assert_eq!(
            statuses(&mut script, [0, 1, 2, 11, 12, 13]),
            [Some(429), Some(429), Some(503), Some(503), Some(500), None]
        );
    }

    #[test]
    fn a_step_without_an_end_stays_until_it_is_cleared() {
        let mut script = Script::default();
        script
            .push(step(r#"{"act": "hang"}"#), Mono::default())
            .expect("room for it");
        for ms in [0, 1_000_000] {
            let now = Mono::from_micros(ms * 1_000);
            assert_eq!(script.next(now).map(|step| step.act), Some(Act::Hang));
        }
        script.clear();
        assert!(script.next(Mono::default()).is_none());
    }

    #[test]
    fn steps_are_bounded_and_unknown_words_are_refused() {
        let mut script = Script::default();
        for _ in 0..MAX_STEPS {
            script
                .push(ScriptStep::default(), Mono::default())
                .expect("room for it");
        }
        assert_eq!(
            script.push(ScriptStep::default(), Mono::default()),
            Err(ScriptFull)
        );
        for json in [r#"{"statu": 1}"#, r#"{"status": 42}"#, r#"{"for": 5}"#] {
            assert!(serde_json::from_str::<ScriptStep>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn failures_are_a_status_and_a_share() {
        let failure: FailureShare = "503:0.01".parse().expect("a failure");
        assert_eq!(failure.status, StatusCode::SERVICE_UNAVAILABLE);
        for text in ["503", "503:2", "x:0.1", "503:-0.1", "503:NaN"] {
            assert!(text.parse::<FailureShare>().is_err(), "{text}");
        }
    }
}
