//! What listens where a URL points: RabbitMQ, Redis, HTTP or TLS, told by its first bytes.
//!
//! A URL that leads to the wrong server fails in words that do not say so: Redis waits for the rest of
//! what an AMQP client sent, RabbitMQ answers what no Redis client can read, and a server with or without
//! TLS just ends the connection. So once a try has failed, `check --connect` asks the address itself and
//! adds what the URL should have been.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

/// How long one question may take.
const BOUND: Duration = Duration::from_secs(1);

/// Redis answers each line, also where it asks for a password first. RabbitMQ reads eight bytes and answers
/// with the header that it wants.
const LINES: &[u8] = b"PING\r\nPING\r\n";
/// The beginning of a TLS 1.2 connection. A server with TLS answers it, if only with an alert.
/// A record of 45 bytes with a message of 41: version, 32 bytes that need not be random here, no session, one
/// cipher suite (ECDHE-RSA-AES128-GCM-SHA256), no compression.
const HELLO: &[u8] =
    b"\x16\x03\x01\x00\x2d\x01\x00\x00\x29\x03\x03sluiced asks whether this is TLS\
    \x00\x00\x02\xc0\x2f\x01\x00";

/// What failed at `url`, and the one line that helps if another server listens there than the URL says.
pub(super) async fn explained(why: String, url: &str) -> String {
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

/// What listens there, if it is one of those that are known.
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

/// The scheme of what answers like this.
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
