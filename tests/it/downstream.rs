//! Downstreams against real sockets: proper servers, and peers that misbehave.
mod answers;
mod calls;
mod connections;
mod http2;
mod peers;
mod proxied;
mod secure;
mod smpp;
mod written;

use std::time::Duration;

use sluiced_http::HttpDownstream;
use sluiced_net::dial::Credentials;
use sluiced_ports::downstream::{Downstream as _, Facts, Judgement, LeaveBy};
use sluiced_ports::message::{Message, Properties};
use sluiced_settings::types::{Downstream, Http};
use sluiced_settings::{Extra, Needs, load_with};

use crate::support::machine;

/// Nothing here takes this long unless it hangs.
const BOUND: Duration = Duration::from_secs(20);

/// The settings of a downstream, with timeouts so long that no busy machine reaches them.
fn options(url: &str) -> Http {
    let text = r#"
        service.grace = "1m"
        limits.account.rate = "1/1s"
        [routes.sms]
        queue = "sms"
        limits = ["account"]
        [routes.sms.downstream]
        kind = "http"
        url = "http://h/"
        timeout = "15s"
        connect_timeout = "10s"
        idle_timeout = "60s"
        warm_connections = 0
        max_throttle_wait = "60s"
    "#;
    let (name, text) = ("test".to_owned(), text.to_owned());
    let loaded = load_with(
        Needs::All,
        &[],
        Some(Extra { name, text }),
        std::iter::empty(),
    );
    let Downstream::Http(http) = &loaded.expect("it loads").settings.routes["sms"].downstream
    else {
        panic!("another kind");
    };
    Http {
        url: url.to_owned(),
        ..(**http).clone()
    }
}

fn downstream(options: &Http) -> HttpDownstream {
    downstream_with(options, &Credentials::default())
}

fn downstream_with(options: &Http, credentials: &Credentials) -> HttpDownstream {
    machine::share();
    HttpDownstream::new(options, credentials, options.keep_answer, None).unwrap()
}

fn message() -> Message {
    Message {
        body: bytes::Bytes::from_static(b"{\"to\": \"+49170\"}"),
        properties: Properties {
            message_id: Some("m-1".to_owned()),
            ..Properties::default()
        },
        ..Message::default()
    }
}

const FACTS: Facts<'_> = Facts {
    route: "sms",
    attempt: 1,
    may_repeat: false,
    max_body: 1 << 20,
};

/// One call, which must end.
async fn call(downstream: &HttpDownstream) -> Judgement {
    let prepared = downstream.prepare(&message(), FACTS).unwrap();
    tokio::time::timeout(BOUND, prepared.send(LeaveBy::any_time()))
        .await
        .unwrap()
        .unwrap()
}
