//! The requests of callers: `POST /v1/permits` asks for a turn, or with `?mode=check` what would pass without taking
//! anything; `DELETE /v1/permits/ID` ends a permit.
//!
//! A request becomes a delivery and waits for what the pipeline makes of it. A caller that hangs up drops the request,
//! and with it the delivery's session: nothing is taken then.
//!
//! A page in a browser must not spend a limit of this machine. It may send only a few types of content to other
//! hosts without asking first, and `application/json` is none of them.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use axum::routing::{delete, post};
use http::header::{CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use http_body_util::LengthLimitError;
use serde::Deserialize;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tracing::warn;

use super::look::KeyedLimits;
use super::meters::CallersMeters;
use super::permits::{PermitEnd, PermitId, Permits, WaitOutcome, WaitingRequest};
use super::reply;
use super::request::AskableLimits;
use super::token::Token;
use sluiced_core::gate::Tap;
use sluiced_core::rate::Span;
use sluiced_core::time::Mono;
use sluiced_net::connect::find;
use sluiced_ports::clock;
use sluiced_ports::link::Link;
use sluiced_ports::queue::{Delivery, SettlementSender, Verdict};
use sluiced_telemetry::LogLimit;

/// The largest request.
const MAX_BODY: usize = 16 * 1024;
/// How long a request may take to come.
const BODY_BOUND: Duration = Duration::from_secs(10);
/// The pipeline decides at the end of the wait; it has this much longer to say why.
const SLACK: Duration = Duration::from_millis(50);
/// The longest `used_after_ms` that is believed, in milliseconds.
const LONGEST_USE: f64 = 60_000.0;

static FULL: LogLimit = LogLimit::new(Duration::from_secs(60));
static UNENDED: LogLimit = LogLimit::new(Duration::from_secs(60));
static UNKNOWN: LogLimit = LogLimit::new(Duration::from_secs(60));
static LATE: LogLimit = LogLimit::new(Duration::from_secs(60));

const UNDECIDED: &str = "nothing was decided within the wait: this replica starts, an operator paused it, or it cannot reach the store of the limits";

/// What the requests of one listener need.
#[derive(Debug)]
pub(crate) struct ServiceState {
    pub(crate) route: Arc<str>,
    pub(crate) offer: AskableLimits,
    pub(crate) keyed: KeyedLimits,
    pub(crate) permits: Arc<Permits>,
    /// One place for each request that may wait.
    pub(crate) places: Semaphore,
    /// One place for each request that may look at the same time.
    pub(crate) looks: Semaphore,
    pub(crate) deliveries: mpsc::UnboundedSender<Delivery>,
    /// Opened once, when the limits can be asked. What closes it later changes nothing: a request waits for its own
    /// time, and is answered at its end.
    pub(crate) tap: watch::Receiver<Tap>,
    pub(crate) sink: SettlementSender,
    pub(crate) is_open: AtomicBool,
    pub(crate) store: watch::Receiver<Link>,
    pub(crate) meters: Arc<CallersMeters>,
    pub(crate) token: Option<Token>,
    /// The listener is at an address, and not at a socket of this machine.
    pub(crate) is_at_address: bool,
    pub(crate) use_within: Duration,
}

/// All requests that are answered; anything else is 404 or 405.
pub(crate) fn router(service: Arc<ServiceState>) -> Router {
    Router::new()
        .route("/v1/permits", post(ask))
        .route("/v1/permits/{id}", delete(end))
        .with_state(service)
}

/// The query of a request for a permit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskQuery {
    mode: Option<Mode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// Takes nothing.
    Check,
}

async fn ask(
    State(service): State<Arc<ServiceState>>,
    Query(asking): Query<AskQuery>,
    request: Request<Body>,
) -> Response {
    let came = clock::now();
    let looks = asking.mode == Some(Mode::Check);
    let response = service.respond(looks, request, came).await;
    if !looks {
        service.meters.count_answer(response.status().as_str());
    }
    response
}

impl ServiceState {
    async fn respond(&self, looks: bool, request: Request<Body>, came: Mono) -> Response {
        let (head, body) = request.into_parts();
        if !self.may_ask(&head.headers) {
            return self.refuse_unknown();
        }
        if !is_json(&head.headers) {
            let why = "write Content-Type: application/json";
            return reply::wrong(StatusCode::UNSUPPORTED_MEDIA_TYPE, why);
        }
        match timeout(BODY_BOUND, to_bytes(body, MAX_BODY)).await {
            Ok(Ok(text)) if looks => self.look(&text).await,
            Ok(Ok(text)) => self.ask(&text, came).await,
            Ok(Err(error)) if find::<LengthLimitError>(&error).is_some() => {
                let why = format!("a request has {MAX_BODY} bytes at most");
                reply::wrong(StatusCode::PAYLOAD_TOO_LARGE, &why)
            }
            Ok(Err(error)) => {
                let why = format!("the body of the request cannot be read: {error}");
                reply::wrong(StatusCode::BAD_REQUEST, &why)
            }
            Err(_) => {
                let why = "the request did not come in time";
                reply::wrong(StatusCode::REQUEST_TIMEOUT, why)
            }
        }
    }

    fn refuse_unknown(&self) -> Response {
        let why = "write Authorization: Bearer TOKEN, with the token of this listener; without a token, ask it by its address";
        if let Some(more) = UNKNOWN.event(clock::now()) {
            warn!(route = %self.route, "a request without the right token was refused{more}");
        }
        reply::wrong(StatusCode::UNAUTHORIZED, why)
    }
}

/// Whether a request is to an address, or to a name of loopback that no page can have.
fn names_address(headers: &HeaderMap) -> bool {
    let authority = headers
        .get(HOST)
        .and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    authority.is_some_and(|authority| {
        let name = authority.host().trim_matches(['[', ']']);
        name.parse::<IpAddr>().is_ok() || name.eq_ignore_ascii_case("localhost")
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let text = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
    let kind = text.and_then(|text| text.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// The query of a request that ends a permit.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndQuery {
    /// No call was made: what can be given back is.
    #[serde(default)]
    unused: bool,
    /// The call left this long after the permit.
    used_after_ms: Option<f64>,
}

async fn end(
    State(service): State<Arc<ServiceState>>,
    Path(id): Path<String>,
    Query(ending): Query<EndQuery>,
    headers: HeaderMap,
) -> Response {
    if !service.may_ask(&headers) {
        return service.refuse_unknown();
    }
    let id: PermitId = match id.parse() {
        Ok(id) => id,
        Err(why) => return reply::wrong(StatusCode::BAD_REQUEST, &format!("{why}")),
    };
    if let Some(millis) = ending.used_after_ms {
        if ending.unused {
            let why =
                "a permit is `unused`, or its call left `used_after_ms`: write one of the two";
            return reply::wrong(StatusCode::BAD_REQUEST, why);
        }
        if !(0.0..=LONGEST_USE).contains(&millis) {
            let why = format!("used_after_ms: write milliseconds from 0 to {LONGEST_USE}");
            return reply::wrong(StatusCode::BAD_REQUEST, &why);
        }
        let took = Duration::from_secs_f64(millis / 1e3);
        service.record_use(id, took);
    }
    if !ending.unused {
        return reply::permit_ended(service.permits.end(id, PermitEnd::Used));
    }
    if service.permits.take_unreported(id) {
        service.meters.unused_permits.increment(1);
    }
    reply::permit_ended(service.permits.end(id, PermitEnd::Unused))
}

impl ServiceState {
    /// With a token, those that carry it. Without one, over an address, those that name it as such: any page in a
    /// browser could have another name lead there (DNS rebinding).
    fn may_ask(&self, headers: &HeaderMap) -> bool {
        match &self.token {
            Some(token) => token.is_in(headers, clock::now()),
            None => !self.is_at_address || names_address(headers),
        }
    }

    /// A caller says that its call left this long after its permit.
    fn record_use(&self, id: PermitId, took: Duration) {
        let now = clock::now();
        let most = self.permits.record_use(id, took, now);
        if let Some((most, more)) = most.and_then(|most| Some((most, LATE.event(now)?))) {
            warn!(route = %self.route, took = %Span(took), kept = %Span(most),
                "a caller reports that its call left later after its permit than is kept for that: it may have come too early for another window; let it call sooner, or raise use_within{more}");
        }
    }

    /// What its keyed limits have left.
    async fn look(&self, text: &[u8]) -> Response {
        let asked = match self.offer.read(text) {
            Ok(asked) => asked,
            Err(why) => return reply::wrong(StatusCode::BAD_REQUEST, &why.to_string()),
        };
        let Ok(_place) = self.looks.try_acquire() else {
            return reply::unavailable("too many requests look at the limits at the same time");
        };
        match self.keyed.look(&asked.costs).await {
            Ok(found) => reply::limits_left(&found),
            Err(_) => reply::unavailable("the store of the limits cannot be reached"),
        }
    }

    async fn ask(&self, text: &[u8], came: Mono) -> Response {
        let asked = match self.offer.read(text) {
            Ok(asked) => asked,
            Err(why) => return reply::wrong(StatusCode::BAD_REQUEST, &why.to_string()),
        };
        if let Some(why) = self.keyed.too_costly(&asked.costs) {
            return reply::wrong(StatusCode::BAD_REQUEST, &why);
        }
        let Ok(_place) = self.places.try_acquire() else {
            if let Some(more) = FULL.event(clock::now()) {
                warn!(route = %self.route, "callers are refused: as many requests wait as max_waiting allows{more}");
            }
            return reply::unavailable("as many requests wait here as may (max_waiting)");
        };
        if self.permits.are_too_many() {
            if let Some(more) = UNENDED.event(clock::now()) {
                warn!(route = %self.route, "callers are refused: too many permits were not ended; let callers end them, or write a shorter ends_after{more}");
            }
            return reply::unavailable("too many permits count that were not ended (DELETE)");
        }
        let wait = asked.wait;
        let end = Instant::now() + wait;
        if timeout_at(end, self.wait_until_open()).await.is_err() {
            return reply::unavailable(UNDECIDED);
        }
        let time_left = end.saturating_duration_since(Instant::now());
        let waits = self.permits.wait(self.sink.for_another_session());
        let id = waits.id;
        let session = waits.session.clone();
        let (now, route) = (clock::now(), Arc::clone(&self.route));
        let delivery = Delivery::new(asked.message(id, time_left), now, id.0, route, session);
        if self.deliveries.send(delivery).is_err() {
            return reply::unavailable("this replica stops");
        }
        self.answer(waits, wait, end, came).await
    }

    /// Waits until the limits can be asked for the first time.
    async fn wait_until_open(&self) {
        if !self.is_open.load(Ordering::Relaxed) {
            let mut tap = self.tap.clone();
            // An error means that the replica stops: the delivery is given back.
            drop(tap.wait_for(|tap| *tap == Tap::Open).await);
            self.is_open.store(true, Ordering::Relaxed);
        }
    }

    /// Whether turns could come: the limits can be asked.
    fn is_able(&self) -> bool {
        *self.tap.borrow() == Tap::Open && self.store.borrow().is_up()
    }

    /// Whether a verdict may be told as the limits' answer. "Later" without a delay comes from the clock alone: while
    /// the store is away, nothing is known of the limits.
    fn is_told(&self, verdict: &Verdict) -> bool {
        !matches!(verdict, Verdict::Later { delay, .. } if delay.is_zero()) || self.is_able()
    }

    /// Waits for the turn.
    async fn answer(
        &self,
        mut waits: WaitingRequest,
        wait: Duration,
        end: Instant,
        came: Mono,
    ) -> Response {
        let told_by = end + SLACK;
        loop {
            let heard = tokio::select! {
                heard = waits.heard.recv() => heard,
                () = sleep_until(told_by) => None,
            };
            match heard {
                Some(WaitOutcome::TurnOffer(turn)) => {
                    // `waited_ms` ends before the last check of the slot: a pause after this line is in the time that
                    // the caller measures.
                    let waited = clock::now().since(came);
                    // The clock is read once more, as when a request is written. Its message waits for another turn.
                    if turn.leave_by.has_passed() {
                        continue;
                    }
                    // The caller may use what is left of the time in which the slot's call may leave, and `use_within`
                    // after it.
                    let (id, within) = (waits.id, turn.leave_by.left() + self.use_within);
                    return match waits.take_turn(turn) {
                        true => reply::go(id, waited, within),
                        false => reply::unavailable("this replica stops"),
                    };
                }
                Some(WaitOutcome::Settled(verdict)) if self.is_told(&verdict) => {
                    return reply::for_verdict(&verdict, wait);
                }
                None if self.is_able() => return reply::others_first(wait),
                _ => return reply::unavailable(UNDECIDED),
            }
        }
    }
}
