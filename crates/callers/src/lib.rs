//! Callers: programs that share the limits without a queue. They ask for a turn over HTTP, and make the call
//! themselves.
//!
//! Problem: a limit belongs to an account, and not only the workers of a queue spend it: a web application, a cron job,
//! the old workers during a migration. A limiter of their own would cut the limit in two, or break it.
//!
//! So a caller's request is a message like any other, whose downstream is the answer to it. It goes through the same
//! scheduler, leases, keyed limits, priorities and policies as the messages of a queue:
//!
//! ```text
//! POST /v1/permits ─ service ─> delivery ─> the pipeline ─> its slot ─ downstream ─> 200: go now
//!         ^            request      ^                           │
//!         └──── reply: 429, 503 ────┴──── verdict: denied ──────┘
//! ```
//!
//! This crate implements two ports. `queue`: [`Subscription`] delivers requests and answers those that are settled
//! without a turn (here). `downstream`: `downstream` answers a request when its slot is due. Both sides meet in
//! `permits`. `look` answers what would pass (`?mode=check`). `listener` has the sockets, `connections` what comes in
//! there, `tls` and `token` say which callers may ask.
//!
//! **What it does not promise**: a call that leaves later than `use_within` after its permit may come too early for
//! another window. The headroom covers `use_within`; a caller that is later must make no call, and ask again.
//!
//! **Public API**: [`start`], with as many connections as [`connections()`] allows. **May know**: `core`, `net`,
//! `ports`, values of `settings`, `telemetry`.

#![warn(missing_docs)]

mod connections;
mod downstream;
mod listener;
mod look;
pub mod meters;
mod permits;
mod reply;
mod request;
mod service;
mod tls;
mod token;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep};
use tracing::error;

pub use connections::connections;
pub use listener::{Inherited, ListenError, Listener};
pub use look::KeyedLimits;
pub use request::{AskedLimit, NamesKey};
pub use tls::{Identity, IdentityError};

use connections::Connections;
use downstream::CallersDownstream;
use meters::CallersMeters;
use permits::{PermitId, Permits};
use request::AskableLimits;
use service::{ServiceState, router};
use sluiced_net::connect::Secret;
use sluiced_ports::clock;
use sluiced_ports::downstream::Downstream;
use sluiced_ports::link::Link;
use sluiced_ports::queue::{
    Leftover, ServeChannels, Settlement, SettlementSender, Subscription, time_to_close,
};
use token::Token;

/// How long answers that are in flight may take once the listener stops.
const STOP: Duration = Duration::from_secs(1);
/// This many requests may look at the limits at a time (`?mode=check`): the store is asked for each.
const LOOKS: usize = 64;
/// After the stop, whether a request is still in flight is looked at this often.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How one listener serves its callers.
#[derive(Debug)]
pub struct CallersOptions {
    /// The name under which they are shown.
    pub route: Arc<str>,
    /// All limits that a request takes from.
    pub limits: Vec<AskedLimit>,
    /// The limits among them that are not paced, for `?mode=check`.
    pub keyed: KeyedLimits,
    /// Whether the store of the limits can be reached.
    pub store: watch::Receiver<Link>,
    /// The longest `wait` that a request may ask for. A longer one is wrong (400).
    pub max_wait: Duration,
    /// This many requests may wait at a time; one more is refused at once (503). 0 counts as 1.
    pub max_waiting: u16,
    /// How long after its permit the call of a caller may reach the downstream.
    pub use_within: Duration,
    /// How long a permit counts that its caller does not end. `None`: no limit counts it after its turn.
    pub counts: Option<Duration>,
    /// What requests carry (RFC 6750, section 2.1). `None`: the permissions of the socket protect it; at an address,
    /// the `Host` of a request must be an address or `localhost`.
    pub token: Option<Secret>,
    /// `None`: without TLS.
    pub identity: Option<Arc<Identity>>,
    /// This many connections at a time ([`connections()`]).
    pub connections: usize,
}

/// The two ports of one listener.
#[derive(Debug)]
pub struct Callers {
    /// Delivers requests, and answers those that are settled without a turn.
    pub subscription: Arc<Subscription>,
    /// Answers a request when its turn has come.
    pub downstream: Arc<dyn Downstream>,
}

/// Counts a verdict (`Verdict::label`).
pub type CountVerdict = Box<dyn Fn(&'static str) + Send>;

/// Starts to serve. Must be called inside a tokio runtime.
#[must_use]
pub fn start(options: CallersOptions, listener: Listener, count: CountVerdict) -> Callers {
    let permits = Permits::new(options.use_within);
    let meters = Arc::new(CallersMeters::new(&options.route));
    let downstream = Arc::new(CallersDownstream {
        permits: Arc::clone(&permits),
        counts: options.counts,
        meters: Arc::clone(&meters),
    });
    let server = Server {
        options,
        listener,
        settling: Settling { permits, count },
        meters,
    };
    Callers {
        subscription: Arc::new(Subscription::start(|channels| server.run(channels))),
        downstream,
    }
}

/// How the verdicts of requests are carried out.
struct Settling {
    permits: Arc<Permits>,
    count: CountVerdict,
}

impl Settling {
    fn settle(&self, settlement: Settlement) {
        (self.count)(settlement.verdict.label());
        let id = PermitId(settlement.tag);
        self.permits.tell_verdict(id, settlement.verdict);
    }

    /// The pipeline has given everything back: what still waits is answered, until `end` at the latest.
    async fn finish(
        self,
        settlements: &mut mpsc::UnboundedReceiver<Settlement>,
        open: Connections,
        end: Instant,
    ) {
        loop {
            while let Ok(settlement) = settlements.try_recv() {
                self.settle(settlement);
            }
            if !open.is_busy() || Instant::now() >= end {
                return;
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}

/// One listener with what it serves.
struct Server {
    options: CallersOptions,
    listener: Listener,
    settling: Settling,
    meters: Arc<CallersMeters>,
}

impl Server {
    /// Answers until the subscription is closed. Nothing is left then: callers ask again.
    async fn run(self, channels: ServeChannels) -> Leftover {
        let Self {
            options,
            listener,
            settling,
            meters,
        } = self;
        let ServeChannels {
            tap,
            mut closing,
            deliveries,
            link,
            ..
        } = channels;
        let (sink, mut settlements) = SettlementSender::new();
        let state = ServiceState {
            offer: AskableLimits {
                limits: options.limits,
                max_wait: options.max_wait,
            },
            keyed: options.keyed,
            permits: Arc::clone(&settling.permits),
            places: Semaphore::new(options.max_waiting.max(1).into()),
            looks: Semaphore::new(LOOKS),
            deliveries,
            tap,
            is_open: AtomicBool::new(false),
            store: options.store,
            sink,
            meters: Arc::clone(&meters),
            token: options.token.map(|token| Token::new(token, clock::now())),
            is_at_address: listener.is_at_address(),
            use_within: options.use_within,
            route: options.route,
        };
        link.send_replace(Link::Up);
        let mut open = Connections::new(options.connections, meters);
        let close_by = {
            let listening = listener.serve(router(Arc::new(state)), options.identity, &mut open);
            tokio::pin!(listening);
            loop {
                tokio::select! {
                    Some(settlement) = settlements.recv() => settling.settle(settlement),
                    close_by = time_to_close(&mut closing) => break close_by,
                    Err(why) = &mut listening => {
                        error!(%why, "callers cannot be served");
                        link.send_replace(Link::Down(why.to_string().into()));
                        break time_to_close(&mut closing).await;
                    }
                }
            }
        };
        let answer_by = close_by.min(Instant::now() + STOP);
        settling.finish(&mut settlements, open, answer_by).await;
        Leftover::default()
    }
}
