//! The status page as a person sees it: in a real browser, of a real fleet.

use std::time::Duration;

use lapin::BasicProperties;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::support::broker::Broker;
use crate::support::browser::Browser;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route, program};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;

const NAME: &str = "page";
/// A route whose downstream is away.
const AWAY: &str = "page-away";
const MESSAGES: u64 = 60;
/// The message that is refused, and the one that waits to be tried again.
const REFUSED: u64 = 7;
const AGAIN: u64 = 8;
const DECLARED: &[&str] = &[
    NEW_SCHEDULE,
    "nothing is kept on disk",
    "the downstream is away",
    "differs from the current policy",
    "it would be held for longer",
    "dead-letter",
    "dead letter",
];
/// An operator whose name would be run if it were taken for a part of the page.
const OPERATOR: &str = "<img src=x onerror='window.ran = 1'>";

/// The texts that can be seen now.
const SEEN: &str = "(() => {
    const text = id => document.getElementById(id).innerText;
    const texts = found => [...document.querySelectorAll(found)].map(node => node.innerText);
    const rows = id => [...document.querySelectorAll(`#${id} tr`)].map(row => [...row.children].map(cell => cell.innerText));
    return { sum: text('sum'), stale: text('stale'), limits: texts('#limits .card'),
        routes: rows('routes'), replicas: rows('replicas'), events: rows('events') };
})()";

/// For each limit: visible bars, and lines that show what is allowed.
const PLOTS: &str = "[...document.querySelectorAll('#limits svg')].map(plot => [
    [...plot.querySelectorAll('rect')].filter(bar => bar.getBoundingClientRect().height >= 1).length,
    plot.querySelectorAll('line').length])";

/// Whether a replica that no longer reports has another colour than one that does.
const GREY: &str = "(() => {
    const [gone, here] = ['tr:has(.gone) td', '#replicas tr:not(:has(.gone)) td'].map(found => document.querySelector(found));
    return getComputedStyle(gone).color !== getComputedStyle(here).color;
})()";

/// Tables of which a part is seen only after scrolling to the right.
const CUT: &str = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).map(box => box.firstChild.id)";

/// Texts whose contrast with what is behind them is below 4.5, the least that WCAG asks for.
const FAINT: &str = "(() => {
    const parse = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => {
        const [r, g, b] = parse(colour).map(c => c / 255).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4);
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const behind = node => {
        for (; node; node = node.parentElement) {
            const colour = getComputedStyle(node).backgroundColor, alpha = parse(colour)[3];
            if (alpha === undefined || alpha === 1) return colour;
        }
        return 'rgb(255, 255, 255)';
    };
    const texts = node => [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    const shown = [...document.body.querySelectorAll('*')].filter(node => texts(node) && node.getClientRects().length);
    const faint = shown.filter(node => {
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))];
        return (Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5;
    });
    return { shown: shown.length, faint: faint.map(node => node.outerHTML) };
})()";

/// What the page shows, once it is as expected.
pub(super) async fn until(
    browser: &mut Browser,
    what: &str,
    mut holds: impl FnMut(&Value) -> bool,
) -> Value {
    let end = Instant::now() + LONG;
    loop {
        let seen = browser.value(SEEN).await;
        if holds(&seen) {
            return seen;
        }
        assert!(Instant::now() < end, "not seen: {what}\n{seen:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The row of a table that begins with this.
fn row<'a>(table: &'a Value, first: &str) -> Option<&'a Value> {
    table.as_array()?.iter().find(|row| row[0] == first)
}

/// The text of a row under a heading.
pub(super) fn cell<'a>(table: &'a Value, first: &str, heading: &str) -> &'a str {
    let place = || {
        let heads = table[0].as_array()?;
        let place = heads.iter().position(|head| head == heading)?;
        row(table, first)?[place].as_str()
    };
    place().unwrap_or_default()
}

fn limit<'a>(seen: &'a Value, name: &str) -> &'a str {
    let cards = seen["limits"].as_array().unwrap().iter();
    let mut cards = cards.filter_map(Value::as_str);
    cards
        .find(|card| card.starts_with(name))
        .unwrap_or_default()
}

fn has_all(text: &str, parts: &[&str]) -> bool {
    parts.iter().all(|part| text.contains(part))
}

/// A limit for the account, one for each recipient, and a second route that gets no good answer.
fn config(good: &Recorder, bad: &Recorder) -> Config {
    let mut route = Route::new(NAME, good.address);
    route.limits = vec!["recipient", "provider"];
    // It is not tried again while the test lasts.
    route.tables = format!("[routes.{NAME}.retry]\nbase = \"6h\"\nmax = \"6h\"\n");
    let mut config = Config::shared(NAME, "100/1s", vec![route, Route::new(AWAY, bad.address)]);
    config.tables = "[limits.recipient]\nkind = \"gcra\"\nrate = \"1/1s\"\nlost_wait = \"0s\"\n\
                     key = \"{{ body.n }}\"\n"
        .to_owned();
    config
}

async fn downstreams() -> [Recorder; 2] {
    let good = Recorder::start(|call| match call.number {
        REFUSED => Reply::status(400),
        AGAIN => Reply::status(500),
        _ => Reply::status(202),
    });
    let bad = Recorder::start(|_| Reply::status(500));
    [good.await, bad.await]
}

fn limits_command(daemon: &Daemon, arguments: &[&str]) {
    let file = daemon.config().display().to_string();
    let mut command = program(&["limits"]);
    command.args(arguments).args(["--config", &file]);
    let output = command.env("SUDO_USER", OPERATOR).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A replica whose report would be run if it were taken for a part of the page.
fn forge() {
    let code = |n| format!("<script>window.ran = {n}</script><b>{n}</b>");
    let text = json!({
        "name": code(1), "version": code(2), "seconds": 60,
        "missing": [{ "name": code(3), "reason": code(4), "seconds": 5 }],
        "routes": {
            code(5): { "open": false, "why": code(6), "answers": { code(7): 1 } },
            "dying": { "open": true, "dying": code(11), "oldest": 9.0, "max_delay": 1.0, "taken": code(13) },
            "probed": { "open": true, "away": true, "away_why": code(12) },
        },
        "events": [{ "at": code(8), "level": code(9), "text": code(10) }],
    });
    let mut redis = RedisServer::shared().connection();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut redis).unwrap();
    let key = format!("{NAME}:{{fleet}}:status");
    let told = format!("{} {text}", seconds * 1_000_000);
    let mut command = redis::cmd("HSET");
    command.arg(key).arg("forged").arg(told);
    command.query::<()>(&mut redis).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_sees_the_fleet_and_what_changes_in_it() {
    let Some(mut browser) = Browser::start().await else {
        println!("no chromium on this machine: not checked");
        return;
    };
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(NAME, "quorum").await;
    broker.declare(AWAY, "quorum").await;
    let [good, bad] = downstreams().await;
    let config = config(&good, &bad);
    let mut first = Daemon::start(&config);
    let url = format!("http://{}/", first.admin().await);
    browser.open(&url).await;
    browser.value("window.kept = true").await;
    publish_until_one_message_waits(&broker, &mut first).await;
    let second = Daemon::start(&config);

    the_work_is_seen(&mut browser).await;
    a_new_rate_and_pauses_are_seen(&mut browser, &second).await;
    text_is_shown_as_text(&mut browser).await;
    it_can_be_read_everywhere(&mut browser).await;
    it_was_not_loaded_again_and_asked_no_other_host(&mut browser, &url).await;
    a_killed_replica_is_grey_and_adds_nothing(&mut browser, second).await;
    first.stop(DECLARED).await;
    until(&mut browser, "what is shown is old", |seen| {
        has_all(seen["stale"].as_str().unwrap(), &["does not answer", "old"])
            && !seen["sum"].as_str().unwrap().contains("ready")
    })
    .await;
}

/// A new wait queue is counted late, but a replica that finds it there counts it at once.
async fn publish_until_one_message_waits(broker: &Broker, daemon: &mut Daemon) {
    for (queue, count) in [(NAME, MESSAGES), (AWAY, 20)] {
        let messages = (1..=count).map(|n| (body(n), BasicProperties::default()));
        broker.publish(queue, messages).await;
    }
    let waits = format!("sluiced_settled_total{{route=\"{NAME}\",verdict=\"later\"}}");
    daemon.until_metric(&waits, 1.0).await;
}

/// What an operator does, and who it was.
async fn a_new_rate_and_pauses_are_seen(browser: &mut Browser, daemon: &Daemon) {
    limits_command(daemon, &["set", "provider", "rate=50/1s"]);
    until(browser, "the new rate and who set it", |seen| {
        let parts = ["of 50 units a second", "rate=50/1s", "set by", OPERATOR];
        has_all(limit(seen, "provider"), &parts)
    })
    .await;
    limits_command(daemon, &["pause", "provider", "--for", "10m"]);
    until(browser, "the pause, who did it and until when", |seen| {
        let parts = ["paused by", OPERATOR, "until ", "9m left"];
        let why = cell(&seen["routes"], NAME, "tap");
        has_all(limit(seen, "provider"), &parts)
            && why.starts_with("closed: its limit provider is paused for another ")
    })
    .await;
    // Both replicas noted it, and the page shows it once.
    until(browser, "who did what", |seen| {
        let events = seen["events"].as_array().unwrap();
        let said = |text: &str| {
            let of = events.iter().filter(|row| row[1] == "fleet");
            of.filter(|row| row[3].as_str().is_some_and(|what| what.contains(text)))
                .count()
        };
        said("rate=50/1s") == 1 && said("limit provider is paused by ") == 1
    })
    .await;
    limits_command(daemon, &["pause", "recipient"]);
    until(browser, "a pause without an end", |seen| {
        limit(seen, "recipient").contains("until it is resumed")
    })
    .await;
}

async fn text_is_shown_as_text(browser: &mut Browser) {
    until(browser, "text is shown as text", |seen| {
        forge();
        let shown = seen.to_string();
        let tap = |route| cell(&seen["routes"], route, "tap");
        (1..=12).all(|n| shown.contains(&format!("<script>window.ran = {n}</script><b>{n}</b>")))
            && tap("dying").starts_with("sets messages aside: ")
            && tap("probed").starts_with("only single probes are sent: ")
    })
    .await;
}

/// And there was no error.
async fn it_was_not_loaded_again_and_asked_no_other_host(browser: &mut Browser, url: &str) {
    assert_eq!(browser.value("window.kept").await, true);
    assert_eq!(browser.value("window.ran").await, Value::Null);
    let made = "document.querySelectorAll('body img, body b b, td b, td script').length";
    assert_eq!(browser.value(made).await, 0);
    let requests = browser.requests();
    assert!(requests.len() >= 3, "{requests:?}");
    let own = format!("\"{url}");
    let elsewhere = requests.iter().find(|asked| !asked.starts_with(&own));
    assert_eq!(elsewhere, None, "{requests:?}");
    let complaints = browser.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

async fn a_killed_replica_is_grey_and_adds_nothing(browser: &mut Browser, killed: Daemon) {
    let name = format!(":{}", killed.id());
    killed.kill(DECLARED).await;
    until(browser, "one is not heard of", |seen| {
        let mut rows = seen["replicas"].as_array().unwrap().iter();
        let row = rows.find(|row| row[0].as_str().unwrap().ends_with(&name));
        row.is_some_and(|row| row.to_string().contains("not heard of for "))
            && seen["sum"].as_str().unwrap().contains(" not heard of")
    })
    .await;
    assert_eq!(browser.value(GREY).await, true);
}

/// Both limits with their use, both routes, both replicas.
async fn the_work_is_seen(browser: &mut Browser) {
    until(browser, "the work of two replicas", |seen| {
        let routes = &seen["routes"];
        let of = |heading| cell(routes, NAME, heading);
        let answers = ["2xx: 58", "4xx: 1", "5xx: 1"];
        of("tap") == "open"
            && (of("dead"), of("waiting")) == ("1", "1")
            && has_all(of("answers since start"), &answers)
            && of("delay").contains(" in 10 min")
            && cell(routes, AWAY, "tap").starts_with("only single probes are sent: 500 ")
            && seen["replicas"].as_array().map(Vec::len) == Some(3)
            && seen["sum"] == "2 replicas, 2 not ready"
    })
    .await;
    until(browser, "the limits", |seen| {
        let account = [
            "paced",
            "open",
            "of 100 units a second",
            "rate=100/1s",
            "file of",
        ];
        let key = ["gcra", "open", "over all keys", "rate=1/1s"];
        has_all(limit(seen, "provider"), &account) && has_all(limit(seen, "recipient"), &key)
    })
    .await;
    // A bar covers ten seconds, and is shown once they are over.
    let end = Instant::now() + LONG;
    loop {
        let plots = browser.value(PLOTS).await;
        let bars = |plot: usize| plots[plot][0].as_u64().unwrap();
        // The account's limit is a line in its plot; a limit of many keys has none.
        assert_eq!((&plots[0][1], &plots[1][1]), (&json!(1), &json!(0)));
        if bars(0) >= 1 && bars(1) >= 1 {
            return;
        }
        assert!(Instant::now() < end, "{plots}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// On a wide screen and on a phone, by day and by night.
async fn it_can_be_read_everywhere(browser: &mut Browser) {
    let mut behind = Vec::new();
    for scheme in ["light", "dark"] {
        for (width, height) in [(1_280, 900), (390, 844), (320, 568)] {
            browser.look(scheme, width, height).await;
            let read = browser.value(FAINT).await;
            assert!(read["shown"].as_u64().unwrap() > 50, "{read}");
            assert_eq!(read["faint"], json!([]), "{scheme}, {width} wide");
            let cut = browser.value(CUT).await;
            assert_eq!(cut, json!([]), "{scheme}, {width} wide");
            let needed = browser.value("document.documentElement.scrollWidth").await;
            assert!(
                needed.as_u64().unwrap() <= width.into(),
                "{needed} of {width}"
            );
        }
        let colour = "getComputedStyle(document.body).backgroundColor";
        behind.push(browser.value(colour).await);
    }
    assert_ne!(behind[0], behind[1], "dark is another page than light");
}
