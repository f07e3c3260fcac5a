//! Answers as a named provider does, from data (`doubles/*.toml`).
//!
//! Problem: a test provider that answers as our code would like it proves nothing about the one that is called in the
//! end. So a double says what its documentation says: which calls it refuses for what they hold, what it counts and how
//! it refuses what is too much, what an accepted call gets back, and what a repeat means. The words of the answers are
//! the provider's, with their source in the same file.
//!
//! `data` is the form of these files. A call is looked at in this order: the path; the answers, of which the first one
//! whose condition holds is given; a repeat of an accepted call, where the provider knows repeats; the limits, of which
//! the first that has no room refuses, and then none counts the call; else it is accepted.

mod data;

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};

use self::data::{Data, DoubleLimit, ReplyTemplate};
pub use self::data::{DoubleError, FleetTest};
use sluiced_core::time::Mono;
use sluiced_ports::lock;
use sluiced_simulation::window::Tally;

/// A provider that answers as it is documented.
#[derive(Debug)]
pub struct Double {
    data: Data,
    state: Mutex<DoubleState>,
}

#[derive(Debug, Default)]
struct DoubleState {
    /// What each key of each limit had.
    tallies: HashMap<(usize, String), Tally>,
    /// Calls at a time, by limit and key.
    in_flight: HashMap<(usize, String), u32>,
    /// The answers to accepted calls, by the key by which the provider recognizes a repeat.
    repeats: HashMap<String, (StatusCode, HeaderMap, Bytes)>,
    /// How many calls each limit still refuses although it has room.
    refuses: Vec<u32>,
    /// How many accepted calls get no answer.
    loses: u32,
    calls: u64,
    refused: u64,
}

/// What a call counts in, until it is answered.
#[derive(Debug, Default)]
pub(super) struct CallSlots(Vec<(usize, String)>);

/// A double's answer to a call.
#[derive(Debug)]
pub(super) struct DoubleAnswer {
    pub(super) response: Response<Bytes>,
    /// The double took the message: a repeat that it knows is not taken again.
    pub(super) accepted: bool,
    /// The call's connection ends without the answer.
    pub(super) is_lost: bool,
    /// Must be handed to [`Double::free`] when the answer is sent.
    pub(super) slots: CallSlots,
}

impl Double {
    /// Reads the text of a file of `doubles/`.
    ///
    /// # Errors
    /// When it is not in its form, or has an expression that cannot be read.
    pub fn parse(text: &str) -> Result<Self, DoubleError> {
        let data: Data = toml::from_str(text).map_err(DoubleError::Form)?;
        data.check(&environment())?;
        Ok(Self {
            state: Mutex::new(DoubleState {
                refuses: vec![0; data.limit.len()],
                ..DoubleState::default()
            }),
            data,
        })
    }

    /// What its file says of a test with a fleet.
    #[must_use]
    pub fn fleet(&self) -> Option<&FleetTest> {
        self.data.fleet.as_ref()
    }

    /// The names of its limits.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        self.data.limit.iter().map(|limit| limit.name.as_str())
    }

    /// Each limit refuses this many of the next calls, one limit after the other.
    pub fn refuse_next(&self, calls: u32) {
        lock(&self.state).refuses.fill(calls);
    }

    /// Whether it recognises repeats.
    #[must_use]
    pub const fn knows_repeats(&self) -> bool {
        self.data.idempotency.is_some()
    }

    /// This many of the next calls are accepted, and their connection ends without an answer.
    pub fn lose_next(&self, calls: u32) {
        lock(&self.state).loses = calls;
    }

    /// How many calls came, and how many of them a limit refused.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.calls, state.refused)
    }

    /// The answer to a call that arrived at `at`.
    pub(super) fn answer(&self, head: &Parts, body: &[u8], at: Mono) -> DoubleAnswer {
        let env = environment();
        let mut state = lock(&self.state);
        state.calls += 1;
        let number = state.calls;
        let call = call(head, body, number);
        if !self.is_here(head.uri.path()) {
            return DoubleAnswer::plain(StatusCode::NOT_FOUND, "no such path");
        }
        let holds = |when: &str| eval(&env, when, &call).is_true();
        if let Some(answer) = self.data.answer.iter().find(|answer| holds(&answer.when)) {
            return DoubleAnswer::not_taken(answer.reply.render(&env, &call));
        }
        let idempotency = self.data.idempotency.as_ref();
        let repeat_key = idempotency
            .map(|idempotency| eval(&env, &idempotency.key, &call))
            .filter(|key| !key.is_undefined() && !key.is_none())
            .map(|key| key.to_string());
        if let Some(first_answer) = repeat_key.as_ref().and_then(|key| state.repeats.get(key)) {
            return DoubleAnswer::not_taken(first_answer.clone());
        }
        let charges = self.charges(&env, &call);
        if let Some((refusal, wait)) = self.first_refusal(&mut state, &charges, at) {
            state.refused += 1;
            let call_and_wait = context! { wait => wait.as_secs_f64(), ..call };
            return DoubleAnswer::not_taken(refusal.reply.render(&env, &call_and_wait));
        }
        let slots = self.count(&mut state, charges, at);
        let (status, headers, body) = self.data.accepted.render(&env, &call);
        if let Some(key) = repeat_key {
            let answer = (status, headers.clone(), body.clone());
            state.repeats.insert(key, answer);
        }
        let is_lost = state.loses > 0;
        state.loses = state.loses.saturating_sub(1);
        DoubleAnswer {
            slots,
            accepted: true,
            is_lost,
            ..DoubleAnswer::not_taken((status, headers, body))
        }
    }

    /// The answer was sent: the call is no longer under way.
    pub(super) fn free(&self, slots: CallSlots) {
        let mut state = lock(&self.state);
        for key in slots.0 {
            if let Some(number) = state.in_flight.get_mut(&key) {
                *number = number.saturating_sub(1);
            }
        }
    }

    fn is_here(&self, path: &str) -> bool {
        let Some(fleet) = &self.data.fleet else {
            return true;
        };
        let (mut wanted, mut there) = (fleet.url.split('/'), path.split('/'));
        loop {
            match (wanted.next(), there.next()) {
                (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(one), Some(other)) if one == other => {}
                _ => return false,
            }
        }
    }

    /// The key and the units of a call in each limit.
    fn charges(&self, env: &Environment<'_>, call: &Value) -> Vec<(String, u32)> {
        let limits = self.data.limit.iter();
        let charges = limits.map(|limit| {
            let key = limit
                .key
                .as_ref()
                .map(|key| eval(env, key, call).to_string());
            let cost = limit.cost.as_ref().map(|cost| eval(env, cost, call));
            let units = cost.and_then(|cost| cost.to_string().parse().ok());
            (key.unwrap_or_default(), units.unwrap_or(1))
        });
        charges.collect()
    }

    /// The first limit that refuses, and when it has room.
    fn first_refusal(
        &self,
        state: &mut DoubleState,
        charges: &[(String, u32)],
        at: Mono,
    ) -> Option<(&DoubleLimit, Duration)> {
        for (number, limit) in self.data.limit.iter().enumerate() {
            if state.refuses[number] > 0 {
                state.refuses[number] -= 1;
                return Some((limit, Duration::from_secs(1)));
            }
        }
        for (number, (limit, (key, units))) in self.data.limit.iter().zip(charges).enumerate() {
            let place = (number, key.clone());
            let is_full = |in_flight: u32| limit.at_once.is_some_and(|most| in_flight >= most);
            if is_full(state.in_flight.get(&place).copied().unwrap_or_default()) {
                return Some((limit, Duration::from_secs(1)));
            }
            let Some(rate) = limit.rate else {
                continue;
            };
            let tally = state
                .tallies
                .entry(place)
                .or_insert_with(|| Tally::new(rate.0));
            let wait = tally.wait_for(at, *units);
            if !wait.is_zero() {
                return Some((limit, wait));
            }
        }
        None
    }

    /// Counts a call in each limit.
    fn count(&self, state: &mut DoubleState, charges: Vec<(String, u32)>, at: Mono) -> CallSlots {
        let mut slots = CallSlots::default();
        for (number, (key, units)) in charges.into_iter().enumerate() {
            let limit = &self.data.limit[number];
            let place = (number, key);
            if let Some(tally) = state.tallies.get_mut(&place) {
                tally.record_units(at, units);
            }
            if limit.at_once.is_some() {
                *state.in_flight.entry(place.clone()).or_default() += 1;
                slots.0.push(place);
            }
        }
        slots
    }
}

impl DoubleAnswer {
    /// The answer to a call whose message is not taken.
    fn not_taken((status, headers, body): (StatusCode, HeaderMap, Bytes)) -> Self {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        Self {
            response,
            accepted: false,
            is_lost: false,
            slots: CallSlots::default(),
        }
    }

    fn plain(status: StatusCode, body: &'static str) -> Self {
        Self::not_taken((
            status,
            HeaderMap::new(),
            Bytes::from_static(body.as_bytes()),
        ))
    }
}

impl ReplyTemplate {
    fn render(&self, env: &Environment<'_>, call: &Value) -> (StatusCode, HeaderMap, Bytes) {
        let text = |template: &str| env.render_str(template, call).unwrap_or_default();
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            if let (Ok(name), Ok(value)) = (
                http::HeaderName::try_from(name.as_str()),
                http::HeaderValue::try_from(text(value)),
            ) {
                headers.insert(name, value);
            }
        }
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, headers, text(&self.body).into())
    }
}

/// Fields that are missing are empty, at any depth: a condition about them does not hold.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Chainable);
    env
}

fn eval(env: &Environment<'_>, expression: &str, call: &Value) -> Value {
    let value = env
        .compile_expression(expression)
        .and_then(|compiled| compiled.eval(call));
    value.unwrap_or(Value::UNDEFINED)
}

/// What expressions and texts of answers know of a call.
fn call(head: &Parts, body: &[u8], number: u64) -> Value {
    let headers = head.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.as_str().to_owned(), value)
    });
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = since_epoch.unwrap_or_default();
    context! {
        method => head.method.as_str(),
        path => head.uri.path(),
        query => form(head.uri.query().unwrap_or_default().as_bytes()),
        headers => Value::from(headers.collect::<BTreeMap<_, _>>()),
        body => json.map_or_else(|| form(body), |json| Value::from(Serde(json))),
        text => String::from_utf8_lossy(body).into_owned(),
        id => format!("{:08x}{number:08x}", now.as_secs()),
        now => now.as_secs_f64(),
    }
}

/// The fields of a form, or of a query.
fn form(text: &[u8]) -> Value {
    let fields = url::form_urlencoded::parse(text)
        .map(|(name, value)| (name.into_owned(), value.into_owned()));
    Value::from(fields.collect::<BTreeMap<_, _>>())
}

#[cfg(test)]
mod tests;
