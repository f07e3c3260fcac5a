//! Routes with limits and queues that do not go together.

use crate::tests::changed;

#[test]
fn a_limit_that_is_not_defined() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provder\"]"),
        [
            "a.toml:6:11: routes.sms.limits[0]: no limit has the name `provder`; did you mean \"provider\"?"
        ]
    );
}

#[test]
fn two_limits() {
    assert_eq!(
        changed(
            "[\"provider\"]",
            "[\"provider\", \"b\"]\n[limits.b]\nrate = \"1/1s\""
        ),
        [
            "a.toml:6:10: routes.sms.limits: 2 paced limits (provider, b): a message waits for one slot, so a route takes at most one; write kind = \"gcra\" for the others"
        ]
    );
}

#[test]
fn a_limit_twice() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provider\", \"provider\"]"),
        ["a.toml:6:23: routes.sms.limits[1]: `provider` is named twice; name it once"]
    );
}

#[test]
fn no_limit() {
    assert_eq!(
        changed("[\"provider\"]", "[]"),
        [
            "a.toml:1:9: warning: limits.provider: no route uses this limit; name it in `routes.sms.limits` or take it out",
            "a.toml:6:10: routes.sms.limits: no limit: nothing would hold the calls of this route back; write [\"NAME\"]"
        ]
    );
}

/// Each of them has a pacer of its own.
#[test]
fn a_priority_between_routes_that_share_no_slots() {
    let other = |limit| {
        changed(
            "[routes.sms]\n",
            &format!(
                "[limits.person]\nkind = \"sliding_log\"\nrate = \"5/1h\"\nkey = \"{{{{ body.to }}}}\"\n\
                 [limits.second]\nrate = \"5/1s\"\n\
                 [routes.fast]\nqueue = \"fast\"\npriority = 9\nlimits = [\"{limit}\", \"person\"]\n\
                 downstream = {{ kind = \"http\", url = \"http://h\" }}\n\
                 [routes.slow]\nqueue = \"slow\"\nlimits = [\"second\", \"person\"]\n\
                 downstream = {{ kind = \"http\", url = \"http://h\" }}\n[routes.sms]\n"
            ),
        )
    };
    assert_eq!(
        other("provider"),
        [
            "a.toml:12:12: warning: routes.fast.priority: `routes.slow` shares `person` with it and no paced limit, so its messages do not wait for these; name one paced limit in both, or take the priority out"
        ]
    );
    assert_eq!(other("second"), [""; 0]);
}

#[test]
fn a_journal_that_is_not_logged() {
    assert_eq!(
        changed(
            "queue = \"sms\"\n",
            "queue = \"sms\"\njournal_id = \"{{ answer.body.id }}\"\n"
        ),
        [
            "a.toml:6:14: routes.sms.journal_id: nothing is logged with it; write journal = \"after\" beside it, or take journal_id out"
        ]
    );
    let quiet = |level: &str| {
        changed(
            "[routes.sms]\nqueue = \"sms\"\n",
            &format!(
                "[log]\nlevel = \"{level}\"\n[routes.sms]\nqueue = \"sms\"\njournal = \"after\"\n"
            ),
        )
    };
    assert_eq!(
        quiet("warn"),
        [
            "a.toml:5:9: warning: log.level: `warn` logs none of its lines; write \"warn,sluiced::journal=info\""
        ]
    );
    assert_eq!(quiet("warn,sluiced::journal=info"), [""; 0]);
}

/// Another route of the same queue, with more in its table.
fn with_other(more: &str) -> Vec<String> {
    let other = format!(
        "[routes.b]\nqueue = \"sms\"\nlimits = [\"provider\"]\ndownstream = {{ kind = \"http\", url = \"http://h\" }}\n{more}\n[routes.sms]"
    );
    changed("[routes.sms]", &other)
}

#[test]
fn routes_may_share_a_queue_that_they_declare_alike() {
    assert_eq!(with_other(""), [""; 0]);
    assert_eq!(
        with_other("queue_type = \"classic\""),
        [
            "a.toml:9:9: routes.sms.queue_type: `routes.b` has \"classic\"; routes of one queue declare it alike, so write the same"
        ]
    );
    assert_eq!(
        with_other("declare = true"),
        [
            "a.toml:9:9: routes.sms.declare: `routes.b` has true; routes of one queue declare it alike, so write the same"
        ]
    );
    assert_eq!(
        with_other("fair_by = \"{{ body.tenant }}\""),
        [
            "a.toml:9:9: routes.sms.fair_by: only one of this route and `routes.b` parks messages beside their queue; write fair_by in both, or parked = 0"
        ]
    );
}

/// A message that one of them has called must not be called by the other.
#[test]
fn routes_of_one_queue_call_a_message_once_together() {
    let with = |key: &str, limits: [&str; 2]| {
        let once = format!("[limits.repeats]\nkind = \"once\"\nkey = \"{{{{ {key} }}}}\"\n");
        let limits = limits.map(|more| format!("limits = [\"provider\"{more}]\n"));
        changed(
            "[routes.sms]\nqueue = \"sms\"\nlimits = [\"provider\"]\n",
            &format!(
                "{once}[routes.b]\nqueue = \"sms\"\n{}downstream = {{ kind = \"http\", url = \"http://h\" }}\n\
                 [routes.sms]\nqueue = \"sms\"\n{}",
                limits[0], limits[1]
            ),
        )
    };
    let named = ", \"repeats\"";
    assert_eq!(with("message_id", [named, named]), [""; 0]);
    for limits in [[named, ""], ["", named]] {
        assert_eq!(
            with("message_id", limits),
            [
                "a.toml:13:10: routes.sms.limits: `repeats` calls each message once, and only one of this route and `routes.b` names it, so the other one could call what was called before; name it in both"
            ]
        );
    }
    assert_eq!(
        with("route ~ message_id", [named, named]),
        [
            "a.toml:6:7: limits.repeats.key: with `route` in it a message has another key in each route of the queue `sms`, and each of them could call it; take `route` out, and write a limit of its own for each queue"
        ]
    );
}

/// All results of a queue are published in the same place.
#[test]
fn routes_of_one_queue_publish_their_results_alike() {
    let of = |route: &str, results: &str| format!("[routes.{route}.results]\n{results}\n");
    let (here, there) = (
        "routing_key = \"r\"",
        "exchange = \"x\"\nrouting_key = \"r\"",
    );
    assert_eq!(with_other(&(of("b", here) + &of("sms", here))), [""; 0]);
    let apart = |line: u32, route: &str, first: &str| {
        format!(
            "a.toml:{line}:13: routes.{route}.results: `routes.{first}` publishes the results of the same queue to another exchange, or treats unroutable ones differently; write the same in both"
        )
    };
    assert_eq!(
        with_other(&(of("b", here) + &of("sms", there))),
        [apart(10, "sms", "b")]
    );
    let none = |line: u32, route: &str, first: &str| {
        format!(
            "a.toml:{line}:9: warning: routes.{route}.queue: `routes.{first}` of the same queue publishes results, and this route does not: of what it sends nothing is published; write the table in both, or in none"
        )
    };
    assert_eq!(with_other(&of("b", here)), [none(12, "sms", "b")]);
    let third = "[routes.c]\nqueue = \"sms\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://h\" }\n";
    let three = of("c", here) + third + &of("sms", there);
    assert_eq!(
        with_other(&three),
        [none(5, "b", "c"), apart(14, "sms", "c")]
    );
}

#[test]
fn a_standby_names_a_route_that_consumes_its_queue() {
    assert_eq!(with_other("standby_for = \"sms\""), [""; 0]);
    assert_eq!(
        with_other("standby_for = \"smms\""),
        [
            "a.toml:8:15: routes.b.standby_for: no route has the name `smms`; name a route with queue = \"sms\""
        ]
    );
    assert_eq!(
        with_other("standby_for = \"b\""),
        [
            "a.toml:8:15: routes.b.standby_for: a route cannot stand by for itself; name the other route of the queue"
        ]
    );
}

#[test]
fn a_small_prefetch() {
    assert_eq!(
        changed("[\"provider\"]", "[\"provider\"]\nprefetch = 20"),
        [
            "a.toml:7:12: warning: routes.sms.prefetch: 20 messages do not keep 400/1s busy at a latency of 250ms: one replica alone needs 100 or more; leave it out for 500"
        ]
    );
}

#[test]
fn a_prefetch_beyond_the_ack_timeout() {
    assert_eq!(
        changed(
            "400/1s\"\n\n[routes.sms]",
            "1/1s\"\n\n[routes.sms]\nprefetch = 1000"
        ),
        [
            "a.toml:5:12: routes.sms.prefetch: 1000 messages at 1/1s would be held for 16m40s, beyond half of the broker's ack timeout of 30m; write 900 or less"
        ]
    );
}

#[test]
fn a_slow_rate_is_fine() {
    assert!(changed("400/1s", "4/1h").is_empty());
}

#[test]
fn a_queue_of_the_broker() {
    assert_eq!(
        changed("\"sms\"\n", "\"amq.sms\"\n"),
        [
            "a.toml:5:9: routes.sms.queue: names that start with `amq.` belong to the broker; name a queue of your own"
        ]
    );
}

/// Two routes with results, in the order of their names.
fn with_results(first: &str, second: &str) -> Vec<String> {
    let route = |name: &str, results: &str| {
        format!(
            "[routes.{name}]\nqueue = \"{name}\"\nlimits = [\"provider\"]\n\
             downstream = {{ kind = \"http\", url = \"http://h\" }}\n[routes.{name}.results]\n{results}\n"
        )
    };
    let both = route("a", first) + &route("b", second);
    changed("[routes.sms]\n", &format!("{both}[routes.sms]\n"))
}

#[test]
fn results_that_come_back_over_another_route() {
    assert_eq!(
        with_results("routing_key = \"b\"", "routing_key = \"a\""),
        [
            "a.toml:9:15: routes.a.results.routing_key: results of `routes.a` come to `b`, and results of `routes.b` come to `a`: each message would be called again and again without an end; name a queue that none of these routes consumes"
        ]
    );
    // In a wait queue of the other route, it is a message of that route a while later.
    let over_wait = with_results("routing_key = \"b.wait.1s\"", "routing_key = \"a\"");
    assert!(over_wait[0].contains("again and again"), "{over_wait:?}");
    for fine in [
        "routing_key = \"out\"",
        "exchange = \"x\"\nrouting_key = \"a\"",
    ] {
        assert_eq!(with_results("routing_key = \"b\"", fine), [""; 0], "{fine}");
    }
}

#[test]
fn results_that_come_back_over_two_routes_or_over_dead_letters() {
    let over_two = changed(
        "[routes.sms]\n",
        "[routes.sms.results]\nrouting_key = \"b\"\n\
         [routes.b]\nqueue = \"b\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://h\" }\n\
         results = { routing_key = \"c\" }\n\
         [routes.c]\nqueue = \"c\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://h\" }\n\
         results = { routing_key = \"sms\" }\n[routes.sms]\n",
    );
    assert_eq!(over_two.len(), 1, "{over_two:?}");
    let all = "results of `routes.b` come to `c`, and results of `routes.c` come to `sms`, and results of `routes.sms` come to `b`:";
    assert!(over_two[0].contains(all), "{over_two:?}");

    let dead = changed(
        "[routes.sms]\n",
        "[routes.again]\nqueue = \"sms.dead\"\nlimits = [\"provider\"]\ndownstream = { kind = \"http\", url = \"http://h\" }\n\
         results = { routing_key = \"sms\" }\n[routes.sms]\n",
    );
    assert_eq!(dead.len(), 1, "{dead:?}");
    let words =
        "results of `routes.again` come to `sms`, and dead letters of `sms` are in `sms.dead`:";
    assert!(dead[0].contains(words), "{dead:?}");
}

#[test]
fn results_that_may_come_back_as_only_a_template_knows() {
    let made = "routing_key = \"{{ headers.to }}\"";
    let warned = with_results(made, "routing_key = \"a\"");
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].starts_with("a.toml:9:15: warning: routes.a.results.routing_key: which queue"),
        "{warned:?}"
    );
    let both = with_results(made, made);
    assert_eq!(both.len(), 2, "{both:?}");
    // The result of a result has no `reply_to`, and no result of `b` comes to `a`.
    let reply = "routing_key = \"{{ properties.reply_to }}\"";
    for fine in ["routing_key = \"out\"", reply] {
        assert_eq!(with_results(made, fine), [""; 0], "{fine}");
    }
}

/// A result in the work queue would be a message, and be called.
#[test]
fn results_that_come_back_or_that_no_queue_is_there_for() {
    let with = |results: &str| {
        changed(
            "[routes.sms]\n",
            &format!("[routes.sms.results]\n{results}\n[routes.sms]\n"),
        )
    };
    let back = |queue: &str| {
        format!(
            "a.toml:5:15: routes.sms.results.routing_key: results in `{queue}` would come back to this route as messages; name another queue"
        )
    };
    assert_eq!(with("routing_key = \"sms\""), [back("sms")]);
    assert_eq!(with("routing_key = \"sms.wait.1s\""), [back("sms.wait.1s")]);
    for fine in [
        "routing_key = \"sms.results\"",
        "exchange = \"x\"\nrouting_key = \"sms\"",
        "routing_key = \"{{ properties.reply_to }}\"",
    ] {
        assert_eq!(with(fine), [""; 0], "{fine}");
    }
    assert_eq!(
        with("routing_key = \"r\"\non = []"),
        [
            "a.toml:6:6: routes.sms.results.on: no result is published; write [\"accepted\", \"dead\"] or one of them, or take this table out"
        ]
    );
    let embedded = changed(
        "[routes.sms]\n",
        "[backend]\nqueue = \"embedded\"\n[routes.sms.results]\nrouting_key = \"r\"\n[routes.sms]\n",
    );
    assert!(
        embedded
            .iter()
            .any(|fault| fault.contains("an embedded queue publishes no results")),
        "{embedded:?}"
    );
}
