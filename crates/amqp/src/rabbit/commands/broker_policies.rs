//! What the policies of a broker do to queues of ours. Decides only; `management` asks the broker.
//!
//! A policy sets what a queue's own arguments leave open. Of `expires`, `message-ttl` and `max-length` the smaller
//! value counts, so no argument of a queue can keep a policy off. Of all policies whose pattern matches a name, the
//! one with the highest priority acts alone; an operator policy acts beside it. Of `overflow` the policy's value
//! counts for a quorum queue, and the queue's own for a classic one (tried on 3.10).

use std::collections::BTreeMap;
use std::time::Duration;

use regex_lite::Regex;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::rabbit::options::RENEW;
use crate::rabbit::queues;
use crate::rabbit::topology::Target;
use sluiced_settings::text::Length;
use sluiced_settings::types::QueueType;

/// RabbitMQ 4 allows this many returns; fewer are not enough for what is read or given back now and then.
const RETURNS: u64 = 20;

/// A policy, as the management API describes it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct BrokerPolicy {
    pub(super) name: String,
    pattern: String,
    #[serde(rename = "apply-to")]
    apply_to: String,
    definition: Map<String, Value>,
    #[serde(default)]
    priority: i64,
}

/// A queue of ours.
#[derive(Clone, Debug)]
pub(super) struct OwnQueue {
    pub(super) target: Target,
    pub(super) name: String,
    pub(super) queue_type: QueueType,
    /// The queue's own argument `x-overflow`, if it has one.
    pub(super) overflow: Option<String>,
}

/// What the policies do to these queues, in words: one line for each policy and effect.
pub(super) fn effects(policies: &[BrokerPolicy], queues: &[OwnQueue]) -> Vec<String> {
    let mut lines: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
    let mut unread = Vec::new();
    let patterns: Vec<_> = policies
        .iter()
        .filter_map(|policy| match Regex::new(&policy.pattern) {
            Ok(pattern) => Some((policy, pattern)),
            Err(_) => {
                unread.push(format!(
                    "policy `{}`: its pattern `{}` cannot be read here: look yourself at which queues it acts on",
                    policy.name, policy.pattern
                ));
                None
            }
        })
        .collect();
    for queue in queues {
        let matching = patterns
            .iter()
            .filter(|(policy, pattern)| applies(policy, queue) && pattern.is_match(&queue.name));
        let Some((policy, _)) = matching.max_by_key(|(policy, _)| policy.priority) else {
            continue;
        };
        for effect in effects_on(queue, &policy.definition) {
            let line = lines.entry((policy.name.clone(), effect)).or_default();
            line.push(&queue.name);
        }
    }
    lines
        .into_iter()
        .map(|((policy, effect), queues)| {
            format!("policy `{policy}` on {}: {effect}", queues.join(", "))
        })
        .chain(unread)
        .collect()
}

fn applies(policy: &BrokerPolicy, queue: &OwnQueue) -> bool {
    match policy.apply_to.as_str() {
        "all" | "queues" => true,
        "classic_queues" => queue.queue_type == QueueType::Classic,
        "quorum_queues" => queue.queue_type == QueueType::Quorum,
        _ => false,
    }
}

/// What a definition does to one queue.
fn effects_on(queue: &OwnQueue, definition: &Map<String, Value>) -> Vec<String> {
    let number = |key: &str| definition.get(key).and_then(Value::as_u64);
    let mut effects = Vec::new();
    if let Some(expires) = number("expires") {
        effects.push(expiry(queue, Duration::from_millis(expires)));
    }
    let ttl = number("message-ttl").map(Duration::from_millis);
    match (ttl, queue.target) {
        (Some(ttl), Target::Wait(rung)) if ttl < rung.length() => effects.push(format!(
            "`message-ttl` sends messages back after {}, before their time",
            Length(ttl)
        )),
        (None, _) | (Some(_), Target::Wait(_) | Target::Work) => {}
        (Some(ttl), Target::Parked(_) | Target::Dead) => effects.push(format!(
            "`message-ttl` drops messages that are in it for {}",
            Length(ttl)
        )),
    }
    for (key, unit) in [("max-length", "messages"), ("max-length-bytes", "bytes")] {
        let Some(most) = number(key) else { continue };
        let theirs = definition.get("overflow").and_then(Value::as_str);
        let own_overflow = queue.overflow.as_deref();
        let overflow = match queue.queue_type {
            QueueType::Quorum => theirs.or(own_overflow),
            QueueType::Classic => own_overflow.or(theirs),
        };
        effects.push(match (overflow, queue.target) {
            (Some("reject-publish" | "reject-publish-dlx"), _) => format!(
                "`{key}` refuses copies beyond {most} {unit}: they are tried again, and messages wait for that"
            ),
            (_, Target::Wait(_)) => format!(
                "`{key}` sends the oldest message back before its time, beyond {most} {unit}"
            ),
            _ => format!("`{key}` drops the oldest message beyond {most} {unit}"),
        });
    }
    if let Some(returns) = number("delivery-limit").filter(|returns| *returns < RETURNS)
        && queue.queue_type == QueueType::Quorum
    {
        effects.push(format!(
            "`delivery-limit` drops a message after {returns} returns: {RETURNS} are needed"
        ));
    }
    effects
}

fn expiry(queue: &OwnQueue, expires: Duration) -> String {
    // Twice: one look may fail.
    let renewed = match queue.queue_type {
        QueueType::Quorum => 2 * RENEW,
        QueueType::Classic => 2 * queues::COUNT_INTERVAL,
    };
    let expires_in = Length(expires);
    if expires < renewed {
        format!("`expires` deletes it {expires_in} after its last use, with the messages in it")
    } else {
        format!(
            "`expires` deletes it, with the messages in it, once no replica has run for {expires_in}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use sluiced_core::ladder::Ladder;
    use sluiced_core::parking::ParkedQueue;

    fn policy(value: Value) -> BrokerPolicy {
        serde_json::from_value(value).expect("a policy")
    }

    fn all(definition: Value) -> BrokerPolicy {
        policy(
            json!({"vhost": "/", "name": "all", "pattern": ".*", "apply-to": "all", "priority": 0, "definition": definition}),
        )
    }

    fn ours(target: Target, queue_type: QueueType) -> OwnQueue {
        OwnQueue {
            target,
            name: target.queue("sms"),
            queue_type,
            overflow: Some("reject-publish".to_owned()),
        }
    }

    fn wait(seconds: u64) -> Target {
        let length = Duration::from_secs(seconds);
        Target::Wait(Ladder::up_to(length).rung(length))
    }

    fn said(policies: &[BrokerPolicy], queue: OwnQueue) -> String {
        effects(policies, &[queue]).join("\n")
    }

    #[test]
    fn each_effect_is_named_with_the_queues_that_have_it() {
        let dead = || ours(Target::Dead, QueueType::Quorum);
        let parked = ours(Target::Parked(ParkedQueue::of(1)), QueueType::Quorum);
        let short = all(json!({"expires": 4000, "message-ttl": 8000}));
        assert_eq!(
            effects(
                &[short],
                &[
                    ours(wait(4), QueueType::Quorum),
                    ours(wait(16), QueueType::Quorum),
                    parked,
                    dead(),
                ]
            ),
            [
                "policy `all` on sms.wait.4s, sms.wait.16s, sms.parked.1, sms.dead: `expires` deletes it 4s after its last use, with the messages in it",
                "policy `all` on sms.parked.1, sms.dead: `message-ttl` drops messages that are in it for 8s",
                "policy `all` on sms.wait.16s: `message-ttl` sends messages back after 8s, before their time",
            ]
        );
        let few = all(json!({"max-length": 5, "delivery-limit": 3}));
        let said = said(&[few], dead());
        assert!(said.contains("refuses copies beyond 5 messages"), "{said}");
        assert!(said.contains("after 3 returns"), "{said}");
        let harmless = all(json!({"ha-mode": "all", "delivery-limit": 20}));
        assert_eq!(effects(&[harmless], &[dead()]), [""; 0]);
    }

    #[test]
    fn a_queue_that_is_used_often_enough_does_not_expire() {
        for (queue_type, seconds, kept) in [
            (QueueType::Quorum, 1199, false),
            (QueueType::Quorum, 1200, true),
            (QueueType::Classic, 19, false),
            (QueueType::Classic, 20, true),
        ] {
            let policy = all(json!({"expires": seconds * 1000}));
            let said = said(&[policy], ours(Target::Dead, queue_type));
            assert_eq!(said.contains("once no replica"), kept, "{said}");
        }
    }

    #[test]
    fn overflow_is_of_the_policy_for_quorum_queues_and_their_own_for_classic_ones() {
        let dropping = all(json!({"max-length": 5, "overflow": "drop-head"}));
        for (queue_type, drops) in [(QueueType::Quorum, true), (QueueType::Classic, false)] {
            let said = said(
                std::slice::from_ref(&dropping),
                ours(Target::Dead, queue_type),
            );
            assert_eq!(said.contains("drops the oldest"), drops, "{said}");
        }
    }

    #[test]
    fn the_policy_of_the_highest_priority_acts_alone() {
        let shield = policy(json!({
            "name": "shield", "pattern": r"^.*\.(wait|dead|parked).*$", "apply-to": "queues",
            "priority": 100, "definition": {"delivery-limit": 100}
        }));
        let short = all(json!({"expires": 4000}));
        let policies = [shield, short.clone()];
        let dead = || ours(Target::Dead, QueueType::Quorum);
        assert_eq!(said(&policies, dead()), "");
        assert!(said(&[short], dead()).contains("`expires`"));
        let classic = policy(json!({
            "name": "c", "pattern": ".*", "apply-to": "classic_queues", "definition": {"expires": 1}
        }));
        assert_eq!(said(&[classic], dead()), "");
        let odd = policy(json!({
            "name": "odd", "pattern": "^(?!amq)", "apply-to": "all", "definition": {}
        }));
        assert!(said(&[odd], dead()).contains("cannot be read here"));
    }
}
