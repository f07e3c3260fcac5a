//! What a verdict becomes: an acknowledgement, or a copy that is published first.

use lapin::BasicProperties;

use super::Session;
use crate::core::acks::Fate;
use crate::ports::message::{HeaderValue, header};
use crate::ports::queue::{HeaderPatch, Settlement, Verdict};
use crate::queue::rabbit::context::Context;
use crate::queue::rabbit::convert::{copy_properties, numbered, returned_properties};
use crate::queue::rabbit::kept::CopyVerdict;
use crate::queue::rabbit::publisher::Republish;
use crate::queue::rabbit::shorten::shortened;
use crate::queue::rabbit::topology::Target;

impl Session<'_> {
    pub(super) fn settle(&mut self, settlement: Settlement) {
        let Settlement { tag, verdict } = settlement;
        let label = verdict.label();
        let (target, patch) = match verdict {
            Verdict::Done | Verdict::Dropped => return self.settle_as(tag, Fate::Ack, label),
            Verdict::GiveBack => return self.settle_as(tag, Fate::Requeue, label),
            Verdict::Later { delay, headers } => {
                (Target::Wait(self.context.ladder.step(delay)), headers)
            }
            Verdict::Parked { space, headers } => {
                self.context.parked_queues.add();
                (Target::Parked(space), headers)
            }
            Verdict::Dead { reason, headers } => {
                let route = &self.context.route;
                let mut patch: HeaderPatch = vec![
                    (header::REASON, HeaderValue::Text(reason.label().to_owned())),
                    (header::ROUTE, HeaderValue::Text(route.name.clone())),
                    (
                        header::QUEUE,
                        HeaderValue::Text(route.settings.queue.clone()),
                    ),
                ];
                patch.extend(headers);
                (Target::Dead, patch)
            }
        };
        let verdict = CopyVerdict {
            target,
            label,
            patch,
        };
        self.copy(tag, verdict);
    }

    pub(super) fn settle_as(&mut self, tag: u64, fate: Fate, label: &'static str) {
        if let Some(original) = self.originals.remove(&tag) {
            self.room.settle(original.size());
        }
        let now = self.context.clock.now();
        self.acks.settle(tag, fate, label, now);
    }

    pub(super) fn copy(&mut self, tag: u64, verdict: CopyVerdict) {
        let Some(original) = self.originals.remove(&tag) else {
            return;
        };
        let properties = match verdict.target {
            // The broker shall go on to expire it.
            Target::Work => returned_properties(&original),
            _ => copy_properties(&original, verdict.patch.iter().cloned()),
        };
        let copy = Republish {
            tag,
            target: verdict.target,
            properties: self.fitting(numbered(properties, tag)),
            body: original.body.clone(),
        };
        self.copying.insert(tag, (original, verdict));
        // The publisher runs as long as the session; without it the end of the session decides.
        drop(self.copies.send(copy));
    }

    fn fitting(&self, properties: BasicProperties) -> BasicProperties {
        // Both connections are to the same broker.
        let frame_max = self.live.connection.configuration().frame_max() as usize;
        let Some(short) = shortened(&properties, frame_max) else {
            return properties;
        };
        let Context {
            route,
            clock,
            events,
            shortened: log,
            ..
        } = self.context;
        events.shortened(&route.name);
        if let Some(more) = log.event(clock.now()) {
            let route = &route.name;
            tracing::warn!(
                route,
                "a copy does not fit a frame: its largest headers stay behind{more}"
            );
        }
        short
    }

    pub(super) fn on_confirmed(&mut self, tag: u64) {
        if let Some((original, verdict)) = self.copying.remove(&tag) {
            self.room.settle(original.size());
            self.settle_as(tag, Fate::Ack, verdict.label);
        }
    }
}

/// The message goes to the end of its queue, without the returns behind it.
pub(super) fn renewed() -> CopyVerdict {
    CopyVerdict {
        target: Target::Work,
        label: Verdict::GiveBack.label(),
        patch: Vec::new(),
    }
}
