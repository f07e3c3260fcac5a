//! Verdicts that publish something before the message is acknowledged: a copy of it, or its result.
//!
//! Until the broker has confirmed that, such a verdict and its message belong together. So the verdict is a value: it
//! waits with the message (`unsettled`), and may outlive its session (`kept`).

use std::sync::Arc;

use super::{RouteContext, SettledLabel};
use crate::rabbit::messages::convert::Original;
use crate::rabbit::topology::Target;
use sluiced_ports::message::{HeaderValue, header};
use sluiced_ports::queue::{HeaderPatch, Publication, Verdict};

/// A verdict that publishes something first.
#[derive(Clone, Debug)]
pub(super) enum PublishingVerdict {
    /// A copy of the message.
    Copy(CopyVerdict),
    /// The result of the message.
    WithResult(Box<WithResult>),
}

impl PublishingVerdict {
    /// Whether its message may go back to the queue, because the message is known again by its content. A message that
    /// is done is known again only by an id of its publisher or by a kept id: otherwise another message that looks the
    /// same would be lost without a call.
    pub(super) fn may_be_kept(&self, original: &Original) -> bool {
        match self {
            Self::Copy(_) => true,
            Self::WithResult(with_result) => {
                let is_done = with_result.verdict == Verdict::Done;
                !is_done || original.has_id() || original.kept_id().is_some()
            }
        }
    }
}

/// A verdict whose result comes first, and the route that gave it.
#[derive(Clone, Debug)]
pub(super) struct WithResult {
    pub(super) verdict: Verdict,
    pub(super) result: Publication,
    pub(super) route: Arc<str>,
}

/// A verdict that makes a copy.
#[derive(Clone, Debug)]
pub(super) struct CopyVerdict {
    pub(super) target: Target,
    /// The label that it is counted under.
    pub(super) label: SettledLabel,
    pub(super) patch: HeaderPatch,
}

impl CopyVerdict {
    /// The copy that a verdict makes; `None`: it makes none.
    pub(super) fn of(verdict: Verdict, route: Arc<str>, context: &RouteContext) -> Option<Self> {
        let label = SettledLabel {
            route,
            verdict: verdict.label(),
        };
        let (target, patch) = match verdict {
            Verdict::Done | Verdict::Dropped | Verdict::GiveBack => return None,
            Verdict::Later { delay, headers } => {
                (Target::Wait(context.ladder.rung(delay)), headers)
            }
            Verdict::Parked {
                parked_queue,
                headers,
            } => (Target::Parked(parked_queue), headers),
            Verdict::Dead { reason, headers } => {
                let queue = context.route.queue();
                let mut patch: HeaderPatch = vec![
                    (header::REASON, HeaderValue::Text(reason.label().to_owned())),
                    (header::ROUTE, HeaderValue::Text(label.route.to_string())),
                    (header::QUEUE, HeaderValue::Text(queue.to_owned())),
                ];
                patch.extend(headers);
                (Target::Dead, patch)
            }
        };
        Some(Self {
            target,
            label,
            patch,
        })
    }
}

/// The message goes to the end of its queue, with its returns counted from zero.
pub(super) fn to_end_of_queue(route: &Arc<str>) -> CopyVerdict {
    CopyVerdict {
        target: Target::Work,
        label: SettledLabel {
            route: Arc::clone(route),
            verdict: Verdict::GiveBack.label(),
        },
        patch: vec![(header::REDELIVERED, HeaderValue::Bool(true))],
    }
}
