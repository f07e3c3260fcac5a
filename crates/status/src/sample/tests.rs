//! Rates and quotas that a replica reports, made of its counters.

use tokio::sync::watch;

use super::*;
use sluiced_ports::link::Link;

fn figures(done: u64, units: u64, open: u8) -> Vec<SeriesReading> {
    let number = |name, labels: &[(&'static str, &str)], number: u64| {
        SeriesReading::new(name, labels, ReadValue::Number(number as f64))
    };
    let sms = ("route", "sms");
    let account = ("limit", "account");
    let delay = ReadValue::Samples {
        count: done,
        sum: units as f64,
    };
    vec![
        number("sluiced_start_time_seconds", &[], 970),
        number("sluiced_tap_open", &[sms], open.into()),
        number("sluiced_settled_total", &[sms, ("verdict", "done")], done),
        number("sluiced_answers_total", &[sms, ("answer", "2xx")], done),
        SeriesReading::new("sluiced_queue_delay_seconds", &[sms], delay),
        number("sluiced_answers_total", &[sms, ("answer", "503")], units),
        number("sluiced_answers_total", &[sms, ("answer", "timeout")], 0),
        number(
            "sluiced_results_total",
            &[sms, ("outcome", "confirmed")],
            done,
        ),
        number("sluiced_repeats_total", &[sms], done),
        number("sluiced_queue_messages", &[sms, ("part", "dead")], 2),
        number("sluiced_breaker_open", &[sms], 1),
        number("sluiced_limit_units_per_second", &[account], 400),
        number("sluiced_actual_units_total", &[account], done),
        number("sluiced_used_units_total", &[account], units),
    ]
}

#[tokio::test]
async fn counters_become_rates() {
    let health = Health::default();
    let at = |seconds| Duration::from_secs(seconds);
    let mut sampler = Sampler::new("host:1".to_owned(), at(999));
    let first = sampler.take(&figures(100, 100, 1), &health, at(1000));
    let route = &first.routes["sms"];
    assert_eq!(
        (first.seconds, route.open, route.done, route.dead),
        (30, true, 100, 2)
    );
    assert_eq!((route.per_second, &route.why), (0.0, &None));
    assert!(route.away, "also while the tap is open");
    let came = [("2xx".to_owned(), 100), ("503".to_owned(), 100)];
    assert_eq!(route.answers, BTreeMap::from(came));
    let results = [("confirmed".to_owned(), 100)];
    assert_eq!(route.results, BTreeMap::from(results));
    assert_eq!(route.repeats, 100);
    assert_eq!(first.limits["account"].actual, 100);

    let second = sampler.take(&figures(600, 700, 1), &health, at(1005));
    assert_eq!(second.routes["sms"].per_second, 100.0);
    assert_eq!(second.routes["sms"].calls_per_second, 216.7);
    assert_eq!(
        second.routes["sms"].delay,
        Some(1.167),
        "700 s over 600 calls"
    );
    let account = &second.limits["account"];
    assert_eq!((account.used, account.total), (116.7, 700));

    // A page requests a sample in between.
    let page = sampler.take(&figures(601, 701, 1), &health, at(1006));
    assert_eq!(page.routes["sms"].done, 601);
    assert_eq!(page.limits["account"].used, 116.7);

    let third = sampler.take(&figures(605, 710, 0), &health, at(1025));
    assert_eq!(third.limits["account"].used, 0.5);
    assert_eq!(third.routes["sms"].why.as_deref(), Some(PROBES_ONLY));

    // A fault of another route is not why this one stands still.
    let part = |name: &str| Missing {
        name: name.to_owned(),
        ..Missing::default()
    };
    for (name, is_why) in [
        ("redis", true),
        ("route sms", true),
        ("downstream of route sms", true),
        ("progress of route sms", true),
        ("progress of route email", false),
        ("route sms2", false),
        ("downstream of route email", false),
    ] {
        assert_eq!(concerns(&part(name), "sms"), is_why, "{name}");
    }

    let links = [
        (PROGRESS, "no call for 5 s"),
        (MESSAGES, "50 messages died in a row, invalid"),
        (DOWNSTREAM, "503 Service Unavailable"),
    ];
    let _links = links.map(|(part, why)| {
        let (link, down) = watch::channel(Link::Down(why.into()));
        health.component(&format!("{part}sms"), down);
        link
    });
    let still = sampler.take(&figures(605, 710, 1), &health, at(1026));
    let route = &still.routes["sms"];
    assert_eq!(
        [&route.stalled, &route.dying, &route.away_why].map(Option::as_deref),
        [
            Some("no call for 5 s"),
            Some("50 messages died in a row, invalid"),
            Some("503 Service Unavailable")
        ]
    );
    assert!(route.open, "none of these closes the tap");
    let none = sampler.take(&figures(605, 710, 1), &health, at(1031));
    assert_eq!(none.routes["sms"].delay, None, "no call was accepted");
    let seen = &sampler.curves()["sms"];
    assert_eq!(seen.delay.iter().flatten().count(), 2, "{seen:?}");

    let back = sampler.take(&figures(610, 720, 1), &health, at(20));
    assert_eq!(back.limits["account"].used, 2.0);

    // Nothing is consumed from a queue that is gone, whatever the tap would allow.
    let (_gone, down) = watch::channel(Link::Down("it is gone".into()));
    health.component("route sms", down);
    let gone = &sampler.take(&figures(610, 720, 1), &health, at(21)).routes["sms"];
    assert!(!gone.open && gone.why.is_some(), "{gone:?}");
}

#[test]
fn what_a_downstream_said_is_left_is_over_at_its_reset() {
    let health = Health::default();
    let mut sampler = Sampler::new("host:1".to_owned(), Duration::ZERO);
    let mut left = |reset: u64, now| {
        let of = |name, route: &str, number: u64| {
            let labels = [("route", route), ("limit", "account")];
            SeriesReading::new(name, &labels, ReadValue::Number(number as f64))
        };
        let figures = [
            of("sluiced_quota_reset_time_seconds", "sms", reset),
            of("sluiced_quota_remaining", "sms", 3),
            of("sluiced_quota_remaining", "mail", 7),
        ];
        let replica = sampler.take(&figures, &health, Duration::from_secs(now));
        replica.limits["account"].left
    };
    assert_eq!(left(1_000, 999), Some(3.0));
    assert_eq!(left(1_000, 1_000), Some(7.0), "what another one said");
    assert_eq!(left(0, 1_000), Some(3.0), "it did not say until when");
}
