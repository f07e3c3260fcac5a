//! What `sluiced check --connect` adds about a server: what listens at the address of a URL, and how far away
//! a downstream is.
//!
//! A URL of the wrong server causes obscure errors: Redis waits for more data from an AMQP client, RabbitMQ
//! answers with bytes that no Redis client can read, and a server with or without TLS just ends the
//! connection. So after a failure the address itself is probed, and the message has the right form of the
//! URL.
//!
//! The way to a downstream is measured by handshakes: how long it takes, by how much that varies, which
//! headroom that needs and what it costs, and whether each limit of the route has it.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

use sluiced_core::headroom::{HeadroomTooShort, LatencySamples, Spread};
use sluiced_core::time::millis;
use sluiced_ports::clock;
use sluiced_ports::downstream::Downstream;
use sluiced_settings::types::Limit;

/// This many handshakes are measured, one at a time.
const HANDSHAKES: usize = 30;
/// The pause between two handshakes.
const APART: Duration = Duration::from_millis(20);
/// Slow handshakes are no longer measured after this time.
const ALL: Duration = Duration::from_secs(5);

/// What handshakes do not show.
const UNSEEN: &str =
    "; measured by handshakes: what is behind a proxy, a load balancer or a CDN is not seen";

/// The result of some handshakes, in words. Nothing, if too few could be made.
pub(super) async fn measure(
    downstream: &dyn Downstream,
    bound: Duration,
    limits: &[(String, Limit)],
) -> String {
    let mut way = LatencySamples::default();
    let end = clock::now() + ALL;
    for _ in 0..HANDSHAKES {
        let Some(made) = downstream.handshake(bound.min(ALL)).await else {
            break;
        };
        if made.is_local {
            return "; it is on this host: a way behind it is not measured".to_owned();
        }
        way.record(made.took, clock::now());
        if clock::now() >= end {
            break;
        }
        tokio::time::sleep(APART).await;
    }
    let seen = way.spread(clock::now());
    let way_words = seen.map(|seen| words(seen, limits) + UNSEEN);
    way_words.unwrap_or_default()
}

/// What the result means for the limits of the route.
fn words(seen: Spread, limits: &[(String, Limit)]) -> String {
    let mut text = format!(
        "; the way there and back takes {} and varies by {}",
        millis(seen.median),
        millis(seen.spread)
    );
    // Calls in flight are counted for as long as they last.
    let counted = limits.iter().filter(|(_, limit)| !limit.counts_calls());
    for (name, limit) in counted {
        if limit.auto_bounds().is_some() {
            text += &format!(", which the headroom of limits.{name} follows");
            continue;
        }
        let kept = limit.headroom().way;
        if seen.spread <= kept {
            text += &format!(", for which limits.{name} keeps {}", millis(kept));
            continue;
        }
        let too_short = HeadroomTooShort {
            limit: name,
            kept,
            seen,
        };
        text += &format!("; warning: {too_short}");
        if let Some(needed) = seen.headroom_needed() {
            let part = needed.as_secs_f64() / (limit.window() + needed).as_secs_f64();
            text += &format!(", which costs {:.1} % of the limit", part * 100.0);
        }
    }
    text
}

/// How long one question may take.
const BOUND: Duration = Duration::from_secs(1);

/// Redis answers each line, even if it asks for a password first. RabbitMQ reads eight bytes and answers
/// with the header that it expects.
const LINES: &[u8] = b"PING\r\nPING\r\n";
/// The beginning of a TLS 1.2 connection. A server with TLS answers it, if only with an alert.
/// A record of 45 bytes with a message of 41: version, 32 bytes that need not be random here, no session, one
/// cipher suite (ECDHE-RSA-AES128-GCM-SHA256), no compression.
const HELLO: &[u8] =
    b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03sluiced asks whether this is TLS\
    \x00\x00\x02\xc0\x2f\x01\x00";

/// What failed at `url`, and the right URL if another kind of server listens there.
pub(super) async fn explain(why: String, url: &str) -> String {
    match hint(url).await {
        Some(hint) => format!("{why}; {hint}"),
        None => why,
    }
}

async fn hint(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let (plain, usual) = match url.scheme() {
        "amqp" => ("amqp", 5672),
        "amqps" => ("amqp", 5671),
        "redis" | "rediss" => ("redis", 6379),
        "https" => ("http", 443),
        _ => return None,
    };
    let tls = url.scheme() != plain;
    let host = url.host_str()?.trim_matches(['[', ']']);
    Some(match find(host, url.port().unwrap_or(usual)).await? {
        "tls" if tls => return None,
        "tls" => format!("TLS is spoken there: write {plain}s://"),
        found if found == plain && tls => format!("no TLS is spoken there: write {plain}://"),
        found if found == plain => return None,
        "redis" => "a Redis listens there: its URL belongs into redis.url".to_owned(),
        "amqp" => "a RabbitMQ listens there: its URL belongs into rabbitmq.urls".to_owned(),
        _ => format!("an HTTP server listens there; the usual port is {usual}"),
    })
}

/// What listens there, if it is a known kind of server.
async fn find(host: &str, port: u16) -> Option<&'static str> {
    for question in [LINES, HELLO] {
        let mut answer = [0; 16];
        let asked = async {
            let mut stream = TcpStream::connect((host, port)).await?;
            stream.write_all(question).await?;
            stream.read(&mut answer).await
        };
        if let Ok(Ok(_)) = timeout(BOUND, asked).await
            && let Some(found) = known(&answer)
        {
            return Some(found);
        }
    }
    None
}

/// The scheme of a server that answers like this.
fn known(answer: &[u8]) -> Option<&'static str> {
    match answer {
        [b'+' | b'-', ..] => Some("redis"),
        [b'A', b'M', b'Q', b'P', ..] => Some("amqp"),
        [b'H', b'T', b'T', b'P', ..] => Some("http"),
        // An alert, or a handshake that goes on.
        [0x15 | 0x16, 3, ..] => Some("tls"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_settings::{self as settings, Extra};

    fn said(spread: u64, limit: &str) -> String {
        let text = format!(
            "[limits.a]\n{limit}\n[routes.r]\nqueue = \"q\"\nlimits = [\"a\"]\n\
             [routes.r.downstream]\nkind = \"http\"\nurl = \"http://127.0.0.1/\"\n"
        );
        let extra = Extra {
            name: "a test".to_owned(),
            text,
        };
        let loaded =
            settings::load_with(settings::Needs::All, &[], Some(extra), std::iter::empty());
        let limits = loaded.expect("a good one").settings.limits;
        let limits: Vec<_> = limits.into_iter().collect();
        let seen = Spread {
            median: Duration::from_millis(40),
            spread: Duration::from_micros(spread),
            is_of_few: false,
        };
        words(seen, &limits)
    }

    #[test]
    fn a_limit_that_keeps_enough_says_so_and_one_that_does_not_says_what_to_write() {
        let any = "kind = \"paced\"\nrate = \"100/1s\"";
        let paced = &format!("{any}\nheadroom = \"5ms\"");
        assert_eq!(
            said(1_250, paced),
            "; the way there and back takes 40 ms and varies by 1.3 ms, for which limits.a keeps 1.3 ms"
        );
        assert_eq!(
            said(16_400, paced),
            "; the way there and back takes 40 ms and varies by 16.4 ms; warning: the way to the downstream and back varies by 16.4 ms, and limits.a keeps 1.3 ms for that: calls may come too close together there; write headroom = \"auto\", or \"66ms\" or more, which costs 6.2 % of the limit"
        );
        let keyed = "kind = \"sliding_log\"\nrate = \"10/1s\"\nheadroom = \"20ms\"";
        assert!(said(5_000, keyed).ends_with("limits.a keeps 5 ms"));
        assert!(said(5_001, keyed).contains("or \"21ms\" or more"));
        assert!(said(90_000, any).ends_with("which the headroom of limits.a follows"));
        assert!(said(90_000, paced).ends_with("write headroom = \"auto\""));
        let calls = "kind = \"concurrency\"\nlimit = 3";
        assert!(said(900_000, calls).ends_with("varies by 900 ms"));
    }
}
