//! What would happen to a message of a route, without a queue, a store or a call: for `sluiced try` and `sluiced test`.
//!
//! An operator must not need the downstream's token to find out why a message waits. So a secret that is not
//! available is left out of a trial, and the request shows that there would be one.
//!
//! What would follow from an answer is decided by the code that decides it for real calls: the downstream judges the
//! answer, and `core::after_call` says what becomes of the message, as if it were the first call of a replica.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderName, HeaderValue, Request, Response};

use super::WireError;
use super::downstreams::{BuiltDownstream, DownstreamUses, downstream, without_secrets};
use super::pacers::route_figures;
use super::planned::PlannedRoute;
use sluiced_core::after_call::{AfterCall, CallEnd, OnceRule, ThrottleSubject, Tries, decide};
use sluiced_core::gate::Gate;
use sluiced_core::judge::{Outcome, Silence};
use sluiced_core::limits::Rule;
use sluiced_core::limits::once::OnUnknown;
use sluiced_core::refusals::Refusals;
use sluiced_core::time::{Mono, Now, StoreTime};
use sluiced_pdu::CommandStatus;
use sluiced_pipeline::{Journal, check_cost, check_size};
use sluiced_ports::downstream::{Answer, Facts, Judgement, Status, UnfitReason};
use sluiced_ports::limits::{LimitInputs, key_id, message_key};
use sluiced_ports::message::Message;
use sluiced_settings::Loaded;
use sluiced_settings::types::{Auth, Downstream, Route};
use sluiced_smpp::Submission;
use sluiced_template::RouteFigures;

/// A route that is tried.
#[derive(Debug)]
pub struct Trial {
    pub route: PlannedRoute,
    downstream: BuiltDownstream,
    /// The headers that would be made with a secret that is not available, and what stands there instead.
    lacks: Vec<(HeaderName, &'static str)>,
    /// What else is read from answers.
    figures: RouteFigures,
    journal: Option<Journal>,
}

/// What the downstream is said to answer.
#[derive(Debug)]
pub enum TestAnswer {
    Http(Response<Bytes>),
    /// To every part of the message.
    Smpp(CommandStatus),
    /// Nothing.
    Silence(Silence),
}

/// What an answer would mean, and what would follow from it.
#[derive(Debug)]
pub struct Forecast {
    pub judgement: Judgement,
    /// The limit that the answer names as the one that refused the call.
    pub throttles: Option<String>,
    /// What becomes of the message, if this is the only call that is made.
    pub follows: AfterCall,
    /// Whether the call counts as one of `max_attempts`.
    pub spends_attempt: bool,
    /// The provider's id of the message.
    pub provider_id: Option<String>,
    /// What the call used, for each limit of which the answer says it.
    pub used: Vec<(String, u64)>,
    /// What is left of the provider's own quotas, for each limit of which the answer says it.
    pub left: Vec<(String, u64)>,
}

impl Trial {
    /// The trial of a route of the configuration.
    ///
    /// # Errors
    /// When a template or an option cannot be used.
    pub fn new(loaded: &Loaded, name: &str, route: &Route) -> Result<Self, WireError> {
        let bare = without_secrets(route, &loaded.secrets);
        let auth = |route: &Route| match &route.downstream {
            Downstream::Http(http) => http.auth.clone(),
            // Its password is in no message.
            Downstream::Smpp(_) => None,
        };
        let lacks = match (auth(route), auth(&bare)) {
            // A token is asked for, or made, when it is needed.
            (Some(auth @ (Auth::Oauth2(_) | Auth::Jwt(_))), _) if loaded.secrets.are_made_up() => {
                authorizing(&auth, "Bearer secret")
            }
            (Some(auth), None) => authorizing(&auth, "unknown"),
            _ => Vec::new(),
        };
        let id = route.journal_id.as_ref().map(|text| text.as_str());
        let journal = id.map(|id| Journal::new(Some(id), None)).transpose();
        Ok(Self {
            lacks,
            downstream: downstream(
                name,
                &bare,
                true,
                &loaded.secrets,
                DownstreamUses::default(),
            )?,
            figures: route_figures(&loaded.settings, name, route)?,
            journal: journal.map_err(|e| WireError::new(format!("routes.{name}.journal_id"), e))?,
            route: PlannedRoute::new(&loaded.settings, name, route)?,
        })
    }

    /// Whether the route takes a body of that size.
    ///
    /// # Errors
    /// When it is too large.
    pub fn check_size(&self, message: &Message) -> Result<(), UnfitReason> {
        check_size(message, self.route.rules.max_body)
    }

    /// What the limits of the route count of the message at this call, from 1.
    ///
    /// # Errors
    /// When it is too large, or a limit cannot count it or can never let it pass.
    pub fn limit_inputs_at(
        &self,
        message: &Message,
        attempt: u32,
    ) -> Result<LimitInputs, UnfitReason> {
        self.check_size(message)?;
        let inputs = self
            .route
            .templates
            .of(message, self.route.facts_of(message, attempt))?;
        for (limit, charge) in self.route.limits.iter().zip(&inputs.charges) {
            let most = limit.rule.as_ref().map(Rule::max_cost);
            if let (Some(most), Some(charge)) = (most, charge) {
                check_cost(&limit.name, charge.cost, most)?;
            }
        }
        Ok(inputs)
    }

    /// What its first call would send.
    ///
    /// # Errors
    /// When nothing can be made from the message.
    pub fn request(&self, message: &Message) -> Result<RenderedMessage, UnfitReason> {
        self.request_at(message, 1)
    }

    /// What call number `attempt` of the message would send; the first one is 1.
    ///
    /// # Errors
    /// As [`Trial::request`].
    pub fn request_at(
        &self,
        message: &Message,
        attempt: u32,
    ) -> Result<RenderedMessage, UnfitReason> {
        let facts = self.route.facts_of(message, attempt);
        let http = match &self.downstream {
            BuiltDownstream::Http(http) => http,
            BuiltDownstream::Smpp(smpp) => {
                return Ok(RenderedMessage::Smpp(smpp.submission(message, facts)?));
            }
        };
        let mut request = http.request(message, facts)?;
        for (name, text) in &self.lacks {
            let mut value = HeaderValue::from_static(text);
            value.set_sensitive(true);
            request.headers_mut().insert(name.clone(), value);
        }
        Ok(RenderedMessage::Http(request))
    }

    /// What would follow if this call of the message, from 1, were answered like that.
    ///
    /// # Errors
    /// When no call can be made for the message; or when the answer is of another protocol than the downstream.
    pub fn foresee(
        &self,
        message: &Message,
        attempt: u32,
        given: TestAnswer,
    ) -> Result<Forecast, ForecastError> {
        let facts = self.route.facts_of(message, attempt);
        let judgement = match (&self.downstream, given) {
            (BuiltDownstream::Http(http), TestAnswer::Http(answer)) => {
                http.judged(message, facts, answer)?
            }
            (BuiltDownstream::Http(http), TestAnswer::Silence(silence)) => http.unanswered(silence),
            (BuiltDownstream::Smpp(smpp), TestAnswer::Smpp(status)) => {
                smpp.judged(message, facts, status)?
            }
            (BuiltDownstream::Smpp(smpp), TestAnswer::Silence(silence)) => {
                smpp.unanswered(message, facts, silence)?
            }
            (BuiltDownstream::Http(_), TestAnswer::Smpp(_)) => return Err(ForecastError::NotSmpp),
            (BuiltDownstream::Smpp(_), TestAnswer::Http(_)) => return Err(ForecastError::NotHttp),
        };
        let inputs = self.limit_inputs_at(message, attempt)?;
        // A limit that does not count the message is not believed to have refused it.
        let throttles = self
            .throttles(message, facts, &judgement)
            .filter(|name| self.named(&inputs, name) != ThrottleSubject::Unnamed);
        let before = Tries {
            attempts: attempt.saturating_sub(1),
            ..Tries::default()
        };
        let follows = self.after_call(&inputs, before, &judgement, throttles.as_deref());
        let answer = judgement.answer.as_ref();
        let numbers = answer.map(|answer| self.numbers(message, facts, answer));
        let [used, left] = numbers.unwrap_or_default();
        let journal = self.journal.as_ref();
        Ok(Forecast {
            spends_attempt: follows.tries.attempts > before.attempts,
            provider_id: journal
                .zip(answer)
                .and_then(|(journal, answer)| journal.provider_id(message, facts, answer)),
            throttles,
            follows,
            used,
            left,
            judgement,
        })
    }

    fn after_call(
        &self,
        inputs: &LimitInputs,
        tries: Tries,
        judgement: &Judgement,
        throttles: Option<&str>,
    ) -> AfterCall {
        let now = Now {
            local: Mono::from_micros(0),
            store: StoreTime::from_micros(0),
        };
        let call = CallEnd {
            now,
            began: now.local,
            is_probe: false,
            outcome: judgement.outcome,
            throttles: throttles.map_or(ThrottleSubject::Unnamed, |name| self.named(inputs, name)),
            reply: judgement.reply.map(Status::as_answer),
            maybe_delivered: judgement.maybe_delivered,
            has_rest: judgement.rest.is_some(),
            renewed: false,
            message: 0,
            keys: &[],
            tries,
            once: self.once(inputs),
            rules: self.route.rules.calls,
            interval: Duration::ZERO,
            used: &[],
            quotas: &[],
            fraction: 1.0,
        };
        // No breaker: the first failures of a route do not open it.
        let mut gate = Gate::new(None, None);
        decide(&call, &mut gate, &mut Refusals::default(), |at| at)
    }

    /// Whether the message may be called again if it may have been accepted.
    fn once(&self, inputs: &LimitInputs) -> OnceRule {
        let limits = self.route.limits.iter().zip(&inputs.charges);
        let counting = limits.filter(|(_, charge)| charge.is_some());
        let never = |rule: &Rule| matches!(rule, Rule::Once(once) if once.on_unknown() == OnUnknown::DeadLetter);
        let mut rules = counting.filter_map(|(limit, _)| limit.rule.as_ref());
        match rules.any(never) {
            true => OnceRule::NeverRepeats,
            false => OnceRule::MayRepeat,
        }
    }

    /// The limit of this name, as the one that refused a call of the message.
    fn named(&self, inputs: &LimitInputs, name: &str) -> ThrottleSubject {
        let mut limits = self.route.limits.iter().zip(&inputs.charges);
        let Some((limit, charge)) = limits.find(|(limit, _)| limit.name == name) else {
            return ThrottleSubject::Unnamed;
        };
        match charge {
            Some(_) if limit.rule.is_none() => ThrottleSubject::All,
            Some(charge) => ThrottleSubject::Key {
                key: key_id(name, message_key(None, charge.key.0.as_deref())),
                is_for_all: charge.key.0.is_none(),
            },
            None => ThrottleSubject::Unnamed,
        }
    }

    /// The limit that a throttled answer names.
    fn throttles(
        &self,
        message: &Message,
        facts: Facts<'_>,
        judgement: &Judgement,
    ) -> Option<String> {
        let is_throttled = matches!(judgement.outcome, Outcome::Throttled { .. });
        let answer = judgement.answer.as_ref().filter(|_| is_throttled)?;
        self.figures.throttles.read(message, facts, answer)
    }

    /// What the call used, and what is left of quotas.
    fn numbers(&self, message: &Message, facts: Facts<'_>, answer: &Answer) -> [UnitsByLimit; 2] {
        let units = self.figures.actuals.read(message, facts, answer);
        let limits = self
            .figures
            .actuals
            .limits()
            .map(|(limit, _)| limit.to_owned());
        let used = limits
            .zip(units)
            .filter_map(|(limit, units)| Some((limit, units?)));
        let quotas = self
            .figures
            .quotas
            .read(message, facts, answer, SystemTime::now());
        let quotas_left = quotas.into_iter().filter_map(|reading| {
            let least = reading.left?.iter().map(|left| left.units).min()?;
            Some((reading.limit.to_owned(), least))
        });
        [used.collect(), quotas_left.collect()]
    }
}

/// Units by the names of limits.
type UnitsByLimit = Vec<(String, u64)>;

/// Why it is not known what would follow from an answer.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    #[error(transparent)]
    Unfit(#[from] UnfitReason),
    #[error("the route calls over HTTP: write `status`, not `smpp`")]
    NotSmpp,
    #[error("the route calls over SMPP: write `smpp`, not `status`")]
    NotHttp,
}

/// What would be sent.
#[derive(Debug)]
pub enum RenderedMessage {
    Http(Request<Bytes>),
    Smpp(Submission),
}

/// The headers that carry credentials or a signature, each with this text.
fn authorizing(auth: &Auth, text: &'static str) -> Vec<(HeaderName, &'static str)> {
    let names = match auth {
        Auth::Basic(_) | Auth::Bearer(_) | Auth::Oauth2(_) | Auth::Jwt(_) | Auth::Aws(_) => {
            vec![AUTHORIZATION]
        }
        Auth::Hmac(hmac) => hmac
            .headers
            .keys()
            .filter_map(|name| name.parse().ok())
            .collect(),
    };
    names.into_iter().map(|name| (name, text)).collect()
}
