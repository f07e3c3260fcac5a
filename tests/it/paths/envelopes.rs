//! Messages as libraries and brokers write them: each is sent, or its dead letter says what it is.
//!
//! Those of Celery 5.7.0 and Dramatiq 2.2.1 were taken from these programs, the others from the documentation and
//! sources of theirs. `docs/migration.md` has a row for each.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use sluiced_ports::message::header as known;

use super::{NO_BREAKER, config, header, holds, queue, unix};
use crate::support::broker::Broker;
use crate::support::daemon::{Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::rabbit::Rabbit;
use crate::support::raw_amqp_1::{Link, compound, section, short};
use crate::support::recorder::Recorder;
use crate::support::wait::{eventually, eventually_async};

/// `compression="gzip"` of Celery.
const COMPRESSED: &[u8] = include_bytes!("../../../crates/template/src/content/celery.zlib");

/// One envelope.
struct Envelope {
    library: &'static str,
    /// What the request is made of: `{{ … }}` is left out.
    to: &'static str,
    body: &'static [u8],
    content_type: &'static str,
    encoding: &'static str,
    headers: &'static [(&'static str, &'static str)],
    /// What the downstream gets, or why the message is dead.
    becomes: Result<&'static str, &'static str>,
}

const SENT: Result<&str, &str> = Ok("\"+4915550000001\"");

const ENVELOPES: &[Envelope] = &[
    Envelope {
        library: "celery",
        to: "body[1].to",
        body: br#"[[], {"to": "+4915550000001", "text": "Order 1"}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]"#,
        content_type: "application/json",
        encoding: "utf-8",
        headers: &[("task", "shop.send_sms"), ("lang", "py")],
        becomes: SENT,
    },
    Envelope {
        library: "celery-gzip",
        to: "body[1].to",
        body: COMPRESSED,
        content_type: "application/json",
        encoding: "utf-8",
        headers: &[("compression", "application/x-gzip")],
        becomes: SENT,
    },
    Envelope {
        library: "celery-bzip2",
        to: "body[1].to",
        body: b"BZh91AY&SY\xe4\xae\xc4l",
        content_type: "application/json",
        encoding: "utf-8",
        headers: &[("compression", "application/x-bz2")],
        becomes: Err(
            "body: has the coding `bz2`, which cannot be undone; gzip, zlib, deflate, zip and br can",
        ),
    },
    Envelope {
        library: "celery-protocol-1",
        to: "body.kwargs.to",
        body: br#"{"task": "shop.send_sms", "id": "5707cd99-9f6d-4278-812c-0192d026d106", "args": [], "kwargs": {"to": "+4915550000001", "text": "Order 1"}, "retries": 0, "eta": null}"#,
        content_type: "application/json",
        encoding: "utf-8",
        headers: &[],
        becomes: SENT,
    },
    Envelope {
        library: "celery-pickle",
        to: "body[1].to",
        body: b"\x80\x04\x95^\0\0\0\0\0\0\0)}\x94(\x8c\x02to\x94\x8c\x0e+4915550000001\x94u.",
        content_type: "application/x-python-serialize",
        encoding: "binary",
        headers: &[],
        becomes: Err(
            "body: is no JSON, which the templates need (line 1, column 1); it looks like a pickled object of Python",
        ),
    },
    Envelope {
        library: "celery-msgpack",
        to: "body[1].to",
        body: b"\x93\x90\x82\xa2to\xae+4915550000001\xa4text\xa7Order 1\x84",
        content_type: "application/x-msgpack",
        encoding: "binary",
        headers: &[],
        becomes: Err(
            "body: is no JSON, which the templates need (line 1, column 1); it looks like MessagePack",
        ),
    },
    Envelope {
        library: "dramatiq",
        to: "body.kwargs.to",
        body: br#"{"queue_name":"default","actor_name":"send_sms","args":[],"kwargs":{"to":"+4915550000001","text":"Order 1"},"options":{},"message_id":"46b95ccc-f149-436e-a410-fa28d5a9e3f7","message_timestamp":1795759199875}"#,
        content_type: "",
        encoding: "",
        headers: &[],
        becomes: SENT,
    },
    // A job of BullMQ, published to RabbitMQ as it is.
    Envelope {
        library: "bullmq",
        to: "body.data.to",
        body: br#"{"name":"send","data":{"to":"+4915550000001","text":"Order 1"},"opts":{"attempts":5,"delay":0},"id":"17","timestamp":1795759199875}"#,
        content_type: "application/json",
        encoding: "",
        headers: &[],
        becomes: SENT,
    },
    // createObjectPayload of the class Queue in Illuminate.
    Envelope {
        library: "laravel",
        to: "body.displayName",
        body: br#"{"uuid":"d2f1","displayName":"App\\Jobs\\SendSms","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":null,"data":{"commandName":"App\\Jobs\\SendSms","command":"O:16:\"App\\Jobs\\SendSms\":1:{s:2:\"to\";s:14:\"+4915550000001\";}"}}"#,
        content_type: "application/json",
        encoding: "",
        headers: &[],
        becomes: Ok(r#""App\\Jobs\\SendSms""#),
    },
    Envelope {
        library: "laravel-job",
        to: "body.data.command.to",
        body: br#"{"displayName":"App\\Jobs\\SendSms","data":{"command":"O:16:\"App\\Jobs\\SendSms\":1:{s:2:\"to\";s:14:\"+4915550000001\";}"}}"#,
        content_type: "application/json",
        encoding: "",
        headers: &[],
        becomes: Err("body: `body.data.command.to | tojson` is missing"),
    },
    // Symfony\Component\Messenger\Transport\Serialization\PhpSerializer: serialize() and addslashes().
    Envelope {
        library: "symfony",
        to: "body.to",
        body: br#"O:36:\"Symfony\\Component\\Messenger\\Envelope\":2:{s:44:\"\0Symfony\\Component\\Messenger\\Envelope\0stamps\";a:0:{}}"#,
        content_type: "",
        encoding: "",
        headers: &[],
        becomes: Err(
            "body: is no JSON, which the templates need (line 1, column 1); it looks like a serialised object of PHP",
        ),
    },
    // messenger.transport.symfony_serializer.
    Envelope {
        library: "symfony-json",
        to: "body.to",
        body: br#"{"to":"+4915550000001","text":"Order 1"}"#,
        content_type: "application/json",
        encoding: "",
        headers: &[("type", "App\\Message\\SendSms")],
        becomes: SENT,
    },
    // Jackson2JsonMessageConverter of Spring AMQP.
    Envelope {
        library: "spring",
        to: "body.to",
        body: br#"{"to":"+4915550000001","text":"Order 1"}"#,
        content_type: "application/json",
        encoding: "UTF-8",
        headers: &[("__TypeId__", "shop.SendSms")],
        becomes: SENT,
    },
    // SimpleMessageConverter of Spring AMQP with an object.
    Envelope {
        library: "spring-object",
        to: "body.to",
        body: b"\xac\xed\0\x05sr\0\x0cshop.SendSms",
        content_type: "application/x-java-serialized-object",
        encoding: "",
        headers: &[],
        becomes: Err(
            "body: is no JSON, which the templates need (line 1, column 1); it looks like a serialised object of Java",
        ),
    },
    Envelope {
        library: "nestjs",
        to: "body.data.to",
        body: br#"{"pattern":"send_sms","data":{"to":"+4915550000001","text":"Order 1"}}"#,
        content_type: "",
        encoding: "",
        headers: &[],
        becomes: SENT,
    },
    Envelope {
        library: "masstransit",
        to: "body.message.to",
        body: b"\xef\xbb\xbf{\"messageId\":\"08dc\",\"messageType\":[\"urn:message:Shop:SendSms\"],\"message\":{\"to\":\"+4915550000001\"}}",
        content_type: "application/vnd.masstransit+json",
        encoding: "",
        headers: &[],
        becomes: SENT,
    },
    // text.slice(0, 160) of JavaScript, through the middle of a character.
    Envelope {
        library: "javascript",
        to: "body.text",
        body: br#"{"text":"Hi \ud83d"}"#,
        content_type: "application/json",
        encoding: "",
        headers: &[],
        becomes: Ok("\"Hi \u{fffd}\""),
    },
];

impl Envelope {
    fn queue(&self) -> String {
        format!("envelopes-{}", self.library)
    }

    fn properties(&self) -> BasicProperties {
        let mut properties = BasicProperties::default();
        if !self.content_type.is_empty() {
            properties = properties.with_content_type(self.content_type.into());
        }
        if !self.encoding.is_empty() {
            properties = properties.with_content_encoding(self.encoding.into());
        }
        let mut headers = FieldTable::default();
        for (name, value) in self.headers {
            headers.insert((*name).into(), AMQPValue::LongString((*value).into()));
        }
        properties.with_headers(headers)
    }

    fn route(&self, downstream: &Recorder) -> Route {
        let mut route = Route::new(&self.queue(), downstream.address);
        route.caller = self.library.to_owned();
        route.downstream = format!("{NO_BREAKER}body = '''{{{{ {} | tojson }}}}'''\n", self.to);
        route
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_is_sent_or_named() {
    let downstream = Recorder::accepting().await;
    let mut broker = None;
    for envelope in ENVELOPES {
        let name = envelope.queue();
        let connected = queue(&name, "quorum").await;
        let message = (envelope.body.to_vec(), envelope.properties());
        connected.publish(&name, [message]).await;
        broker = Some(connected);
    }
    let broker = broker.expect("there are some");
    let routes = ENVELOPES.iter().map(|envelope| envelope.route(&downstream));
    let daemon = Daemon::start(&config("envelopes", routes.collect()));
    let sent = ENVELOPES.iter().filter(|envelope| envelope.becomes.is_ok());
    let sent = sent.count();
    eventually(LONG, "all that can be sent were", || {
        downstream.count() == sent
    })
    .await;
    let calls = downstream.calls();
    for envelope in ENVELOPES {
        let library = envelope.library;
        let call = calls.iter().find(|call| call.caller == library);
        let said = call.map(|call| String::from_utf8_lossy(&call.body).into_owned());
        match envelope.becomes {
            Ok(body) => assert_eq!(said.as_deref(), Some(body), "{library}"),
            Err(why) => {
                assert_eq!(said, None, "{library}");
                let dead = format!("{}.dead", envelope.queue());
                holds(&broker, &dead, 1).await;
                let (body, properties) = broker.drain(&dead).await.remove(0);
                assert_eq!(body, envelope.body, "{library}: as it came");
                assert_eq!(header(&properties, known::DETAIL).as_deref(), Some(why));
                let reason = header(&properties, known::REASON);
                assert_eq!(reason.as_deref(), Some("undecodable"));
            }
        }
    }
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
}

/// RabbitMQ hands all but a single data section to clients of AMQP 0.9.1 as it was encoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_of_amqp_1_is_read() {
    let name = "sections";
    let server = Rabbit::start_with("rabbitmq_amqp1_0");
    let broker = Broker::connect(&server.url()).await;
    broker.declare(name, "classic").await;
    let text = br#"{"to":"+491"}"#;
    let map = compound(0xc1, &[&short(0xa1, b"to"), &short(0xa1, b"+491")]);
    let bodies = [
        section(0x77, &short(0xa1, text)),
        section(0x77, &short(0xa0, text)),
        section(0x77, &map),
        section(0x76, &compound(0xc0, &[&map])),
        [
            section(0x75, &short(0xa0, &text[..5])),
            section(0x75, &short(0xa0, &text[5..])),
        ]
        .concat(),
        section(0x75, &short(0xa0, text)),
        // No text and no number of JSON: a decimal.
        section(0x77, &[0x74, 0, 0, 0, 0]),
    ];
    let mut link = Link::to(server.port(), name);
    for body in &bodies {
        link.publish(body);
    }
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "queue_type = \"classic\"\n".to_owned();
    route.downstream = format!("{NO_BREAKER}body = '''{{{{ body | tojson }}}}'''\n");
    let mut config = config(name, vec![route]);
    config.rabbit = Some(server.url());
    let daemon = Daemon::start(&config);
    eventually_async(LONG, "all are sent or dead", || async {
        let dead = broker.counts("sections.dead").await;
        let dead = dead.map_or(0, |(ready, _)| ready as usize);
        downstream.count() + dead == bodies.len()
    })
    .await;
    let dead = broker.drain("sections.dead").await;
    let why = dead.iter().map(|(body, properties)| {
        let detail = header(properties, known::DETAIL);
        (body.as_slice(), detail.unwrap_or_default())
    });
    let why: Vec<_> = why.collect();
    let unknown = "body: its AMQP 1.0 sections have a value of type 0x74, which is not known";
    assert_eq!(why, [(bodies[6].as_slice(), unknown.to_owned())]);
    let calls = downstream.calls();
    let mut said: Vec<_> = calls
        .iter()
        .map(|call| String::from_utf8_lossy(&call.body).into_owned())
        .collect();
    said.sort_unstable();
    let object = r#"{"to": "+491"}"#.to_owned();
    let list = format!("[{object}]");
    assert_eq!(said, [vec![list], vec![object; 5]].concat());
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
}

/// `Date.now()` of JavaScript: too old after `max_age`, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timestamp_in_milliseconds_counts() {
    let name = "envelopes-age";
    let broker = queue(name, "quorum").await;
    let published = |seconds_ago: u64, n: u64| {
        let timestamp = (unix() - seconds_ago) * 1_000 + 123;
        let properties = BasicProperties::default().with_timestamp(timestamp);
        (format!("{{\"n\":{n}}}").into_bytes(), properties)
    };
    broker
        .publish(name, [published(7_200, 1), published(60, 2)])
        .await;
    let downstream = Recorder::accepting().await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "max_age = \"1h\"\n".to_owned();
    let daemon = Daemon::start(&config(name, vec![route]));
    eventually(LONG, "the younger one is sent", || downstream.count() == 1).await;
    assert_eq!(downstream.calls()[0].number, 2);
    let dead = format!("{name}.dead");
    holds(&broker, &dead, 1).await;
    let (_, properties) = broker.drain(&dead).await.remove(0);
    assert_eq!(
        header(&properties, known::REASON).as_deref(),
        Some("expired")
    );
    daemon.stop(&[NEW_SCHEDULE, "dead letter"]).await;
}
