use tokio::sync::watch;

use super::*;
use sluiced_ports::clock::Clock;
use sluiced_ports::connect::Link;

fn text(done: u64, units: u64, open: u8) -> String {
    format!(
        "sluiced_start_time_seconds 970\nsluiced_tap_open{{route=\"sms\"}} {open}\n\
         sluiced_settled_total{{route=\"sms\",verdict=\"done\"}} {done}\n\
         sluiced_answers_total{{route=\"sms\",answer=\"2xx\"}} {done}\n\
         sluiced_queue_delay_seconds_bucket{{route=\"sms\",le=\"1\"}} {done}\n\
         sluiced_queue_delay_seconds_sum{{route=\"sms\"}} {units}\n\
         sluiced_queue_delay_seconds_count{{route=\"sms\"}} {done}\n\
         sluiced_answers_total{{route=\"sms\",answer=\"503\"}} {units}\n\
         sluiced_answers_total{{route=\"sms\",answer=\"timeout\"}} 0\n\
         sluiced_results_total{{route=\"sms\",outcome=\"confirmed\"}} {done}\n\
         sluiced_repeats_total{{route=\"sms\"}} {done}\n\
         sluiced_queue_messages{{route=\"sms\",part=\"dead\"}} 2\n\
         sluiced_breaker_open{{route=\"sms\"}} 1\n\
         sluiced_limit_units_per_second{{limit=\"account\"}} 400\n\
         sluiced_actual_units_total{{limit=\"account\"}} {done}\n\
         sluiced_permits_total{{limit=\"account\"}} {units}\n"
    )
}

#[tokio::test]
async fn counters_become_rates() {
    let health = Health::new(Clock::start());
    let at = |seconds| Duration::from_secs(seconds);
    let mut sampler = Sampler::new("host:1".to_owned(), at(999));
    let first = sampler.take(&text(100, 100, 1), &health, at(1000));
    let route = &first.routes["sms"];
    assert_eq!(
        (first.seconds, route.open, route.done, route.dead),
        (30, true, 100, 2)
    );
    assert_eq!((route.per_second, &*route.why), (0.0, ""));
    assert!(route.away, "also while the tap is open");
    let came = [("2xx".to_owned(), 100), ("503".to_owned(), 100)];
    assert_eq!(route.answers, BTreeMap::from(came));
    let results = [("confirmed".to_owned(), 100)];
    assert_eq!(route.results, BTreeMap::from(results));
    assert_eq!(route.repeats, 100);
    assert_eq!(first.limits["account"].actual, 100);

    let second = sampler.take(&text(600, 700, 1), &health, at(1005));
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
    let page = sampler.take(&text(601, 701, 1), &health, at(1006));
    assert_eq!(page.routes["sms"].done, 601);
    assert_eq!(page.limits["account"].used, 116.7);

    let third = sampler.take(&text(605, 710, 0), &health, at(1025));
    assert_eq!(third.limits["account"].used, 0.5);
    assert_eq!(third.routes["sms"].why, PROBES_ONLY);

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
    let links = links.map(|(part, why)| {
        let (link, down) = watch::channel(Link::Down(why.into()));
        health.component(&format!("{part}sms"), down);
        link
    });
    let still = sampler.take(&text(605, 710, 1), &health, at(1026));
    let route = &still.routes["sms"];
    assert_eq!(
        [&*route.stalled, &*route.dying, &*route.away_why],
        [
            "no call for 5 s",
            "50 messages died in a row, invalid",
            "503 Service Unavailable"
        ]
    );
    assert!(route.open, "none of these closes the tap");
    links[2].send_replace(Link::Down(ELSEWHERE.into()));
    tokio::task::yield_now().await;
    let other = sampler.take(&text(605, 710, 1), &health, at(1027));
    assert_eq!(other.routes["sms"].away_why, "", "another replica knows");

    let none = sampler.take(&text(605, 710, 1), &health, at(1031));
    assert_eq!(none.routes["sms"].delay, None, "no call was accepted");
    let seen = &sampler.curves()["sms"];
    assert_eq!(seen.delay.iter().flatten().count(), 2, "{seen:?}");

    let back = sampler.take(&text(610, 720, 1), &health, at(20));
    assert_eq!(back.limits["account"].used, 2.0);
}

#[test]
fn lines_are_read_and_others_passed_over() {
    let text = "# TYPE a counter\na{route=\"sms.de\",outcome=\"2xx\"} 3\nb 0.25\n\nnonsense\n# HELP c is 7\n";
    let all: Vec<_> = series(text).collect();
    assert_eq!(all.len(), 2);
    assert_eq!((all[0].name, all[0].value), ("a", 3.0));
    assert_eq!(all[0].label("outcome"), Some("2xx"));
    assert_eq!(all[0].label("route"), Some("sms.de"));
    assert_eq!(all[0].label("limit"), None);
    assert_eq!((all[1].name, all[1].value), ("b", 0.25));
}

#[test]
fn what_a_downstream_said_is_left_is_over_at_its_reset() {
    let health = Health::new(Clock::start());
    let mut sampler = Sampler::new("host:1".to_owned(), Duration::ZERO);
    let mut left = |reset: u64, now| {
        let labels = "{route=\"sms\",limit=\"account\"}";
        let text = format!(
            "sluiced_quota_reset_time_seconds{labels} {reset}\nsluiced_quota_remaining{labels} 3\n\
             sluiced_quota_remaining{{route=\"mail\",limit=\"account\"}} 7\n"
        );
        sampler
            .take(&text, &health, Duration::from_secs(now))
            .limits["account"]
            .left
    };
    assert_eq!(left(1_000, 999), Some(3.0));
    assert_eq!(left(1_000, 1_000), Some(7.0), "what another one said");
    assert_eq!(left(0, 1_000), Some(3.0), "it did not say until when");
}
