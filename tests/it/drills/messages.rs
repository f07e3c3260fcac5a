//! Malformed or hostile messages among good ones.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;

use super::{Drill, PATIENCE, lasts, plan};
use crate::fleet::Plan;
use crate::support::daemon::NEW_SCHEDULE;

const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "dead letter",
    "nothing is kept on disk",
    "headers that only sluiced may write",
];

type Message = (Vec<u8>, BasicProperties);

/// Everything that is built from a message: a key in Redis, a URL, headers, a body.
fn templates(row: &'static str) -> Plan {
    Plan {
        limits: &["provider", "person"],
        tables: "[limits.person]\nkind = \"gcra\"\nrate = \"1000/1s\"\nburst = 100\nheadroom = \"100ms\"\n\
                 key = \"{{ body.to }}\"\n",
        settings: vec![
            (
                "/send\"",
                "/send/{{ body.to | urlencode }}?to={{ body.to | urlencode }}\"".to_owned(),
            ),
            (
                "headers = {",
                "body = \"{{ body | tojson }}\"\nheaders = { x-to = \"{{ body.to }}\",".to_owned(),
            ),
        ],
        keys: "prefetch = 100\nmax_age = \"1h\"\n",
        ..plan(row)
    }
}

/// A replica with a few messages: a bad one is settled at once.
async fn start(row: &'static str, fault: &'static str) -> Drill {
    let mut drill = Drill::prepare(row, fault, templates(row)).await;
    drill.backlog = 150;
    drill.flow(1).await;
    drill
}

/// Good ones, and these in between. Returns how many of these were delivered and how many are dead.
async fn among_others(
    row: &'static str,
    fault: &'static str,
    done: &str,
    odd: Vec<Message>,
) -> (u64, u64) {
    let drill = start(row, fault).await;
    publish_among_others(drill, done, odd).await
}

async fn publish_among_others(mut drill: Drill, done: &str, odd: Vec<Message>) -> (u64, u64) {
    let count = odd.len() as u64;
    drill.begins();
    for (n, (body, properties)) in odd.into_iter().enumerate() {
        drill
            .publish(vec![(format!("odd-{n}"), body, properties)])
            .await;
        drill.feed(100).await;
    }
    drill.ends().await;
    let sums = drill.proves(done, DECLARED).await.sums();
    (count - sums.dead - sums.waiting, sums.dead)
}

fn plain(bodies: impl IntoIterator<Item = Vec<u8>>) -> Vec<Message> {
    let bodies = bodies.into_iter();
    bodies
        .map(|body| (body, BasicProperties::default()))
        .collect()
}

fn to(recipient: &str) -> Vec<u8> {
    json!({"to": recipient, "text": recipient})
        .to_string()
        .into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn not_json() {
    let texts = [
        "no JSON",
        "{",
        "{\"to\":",
        "[1,2",
        "\0",
        "{\"to\":\"a\"} more",
        "NaN",
        "'",
    ];
    let odd = plain(texts.map(|text| text.as_bytes().to_vec()));
    let (_, dead) = among_others("messages::not_json", "not JSON", "8 texts", odd).await;
    assert_eq!(dead, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty() {
    let odd = plain([
        vec![],
        b"null".to_vec(),
        b"{}".to_vec(),
        b"[]".to_vec(),
        b"\"\"".to_vec(),
    ]);
    let done = "nothing, `null`, `{}`, `[]`, `\"\"`";
    let (_, dead) = among_others("messages::empty", "empty", done, odd).await;
    assert_eq!(dead, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_mebibytes() {
    let large = json!({"to": "a", "text": "x".repeat(16 << 20)}).to_string();
    let odd = plain([large.into_bytes(), vec![b'x'; 16 << 20]]);
    let (_, dead) = among_others("messages::sixteen_mebibytes", "16 MiB", "2 messages", odd).await;
    assert_eq!(dead, 2);
}

/// They fit into the prefetch, while the dead-letter queue accepts none: no replica holds all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_ones() {
    const COUNT: usize = 40;
    const LARGE: usize = 4 << 20;
    const NO_ROOM: &str = "the messages in memory are too large together";
    let row = "messages::many_large_ones";
    let fault = "40 of 4 MiB, and no dead letter is taken";
    let mut drill = Drill::prepare(row, fault, templates(row)).await;
    let large = plain(vec![vec![b'x'; LARGE]; COUNT]).into_iter().zip(0..);
    let large = large.map(|((body, properties), n)| (format!("large-{n}"), body, properties));
    drill.publish(large.collect()).await;
    let name = format!("{}.dead", drill.fleet.plan.name);
    let full = r#"{"max-length":0,"overflow":"reject-publish"}"#;
    drill.fleet.servers.rabbit().set_policy(row, &name, full);
    drill.begins();
    drill.add(1);
    drill.fleet.replicas[0].says(NO_ROOM).await;
    let seconds = lasts(2.0, 20.0).await;
    drill.fleet.servers.rabbit().clear_policy(row);
    assert!(drill.accounted(PATIENCE * 2).await, "{}", drill.logs());
    drill.ends().await;
    let peak = drill.fleet.replicas[0].memory("VmHWM");
    let done = format!("for {seconds} s, in the queue when a replica starts");
    let declared = [DECLARED, &[NO_ROOM, "copies are not confirmed"]].concat();
    let sums = drill.proves(done, &declared).await.sums();
    assert_eq!(sums.dead, COUNT as u64);
    eprintln!("{} MiB at most", peak >> 20);
    // The bound is 64 MiB; without one it held all of them twice, once as copies on their way.
    assert!(peak < (COUNT * LARGE) as u64, "{peak} bytes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested() {
    let deep = |count: usize| {
        let text = format!("{}{}", "{\"to\":".repeat(count), "}".repeat(count));
        text.replacen(":}", ":1}", 1).into_bytes()
    };
    let arrays = |count: usize| format!("{}{}", "[".repeat(count), "]".repeat(count)).into_bytes();
    let odd = plain([
        deep(30),
        deep(120),
        deep(10_000),
        arrays(100),
        arrays(100_000),
    ]);
    let done = "JSON of up to 100,000 levels";
    among_others("messages::nested", "nested", done, odd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_values() {
    let texts = [
        "{{ 7 * 7 }}",
        "{% for a in range(999999999) %}{% endfor %}",
        "../../etc/passwd?a=b#c",
        "a\r\nx-caller: other\r\n\r\nGET / HTTP/1.1",
        "http://169.254.169.254/",
        "}:{provider}:paced\0*",
        "{\"level\":\"ERROR\"}\n{\"level\":\"ERROR\"}",
        "\u{1b}[2J\u{7}\u{202e}",
        "'; FLUSHALL; --",
        "\u{0}\u{ffff}\u{10ffff}",
        " ",
    ];
    let odd = plain(texts.map(to).into_iter().chain([to(&"x".repeat(100_000))]));
    let done = "12 texts aimed at templates, URLs, headers, keys of Redis and the log";
    among_others("messages::hostile_values", "hostile values", done, odd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_headers() {
    let with = |name: &str, value: AMQPValue| {
        let mut headers = FieldTable::default();
        headers.insert(name.into(), value);
        (to("a"), BasicProperties::default().with_headers(headers))
    };
    let text = |text: &str| AMQPValue::LongString(text.into());
    let names = [
        "x-sluiced-attempts",
        "x-sluiced-not-before",
        "x-sluiced-first-seen",
        "x-sluiced-expires",
        "x-sluiced-waited",
        "x-sluiced-parked",
        "x-death",
    ];
    let odd = names.iter().flat_map(|name| {
        [
            text("\u{0}no number"),
            AMQPValue::LongLongInt(i64::MIN),
            AMQPValue::LongLongInt(i64::MAX),
        ]
        .map(|value| with(name, value))
    });
    let row = "messages::forged_headers";
    let drill = start(row, "forged headers").await;
    let done = "21 values in headers that are ours or the broker's; they are ignored";
    let fates = publish_among_others(drill, done, odd.collect()).await;
    assert_eq!(fates, (21, 0), "delivered and dead");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priority_255() {
    let most = || (to("a"), BasicProperties::default().with_priority(255));
    let odd = (0..20).map(|_| most()).collect();
    let (delivered, _) =
        among_others("messages::priority_255", "priority 255", "20 messages", odd).await;
    assert_eq!(delivered, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired() {
    // In seconds since 1970; `max_age` is an hour.
    let old = || (to("a"), BasicProperties::default().with_timestamp(1));
    let odd = (0..20).map(|_| old()).collect();
    let (_, dead) = among_others("messages::expired", "expired", "20 messages of 1970", odd).await;
    assert_eq!(dead, 20);
}

/// Two messages are two messages, whatever their ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_id_twice() {
    let row = "messages::the_same_id_twice";
    let mut drill = start(row, "the same id twice").await;
    drill.begins();
    for n in 0..20 {
        let same = || {
            (
                format!("same-{}", n % 10),
                to("a"),
                BasicProperties::default(),
            )
        };
        drill.publish(vec![same(), same()]).await;
    }
    drill.ends().await;
    let sums = drill
        .proves("10 ids, 4 messages each", DECLARED)
        .await
        .sums();
    assert_eq!(sums.delivered, sums.messages, "{sums:?}");
}
