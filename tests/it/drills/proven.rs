//! Rows that another suite proves already: the table names its test.

use serde_json::json;

use super::row::append;

/// The place, the fault, and the test.
const ROWS: &[(&str, &str, &str)] = &[
    (
        "redis",
        "failover by Sentinels",
        "redis_topologies::sentinel::a_primary_that_is_killed_in_flow_is_succeeded_with_nothing_over",
    ),
    (
        "redis",
        "a master of a cluster dies",
        "redis_topologies::cluster::a_master_that_dies_is_succeeded_by_its_replica_with_nothing_over",
    ),
    (
        "rabbitmq",
        "a broker that stood still",
        "broker_faults::restarts::a_quorum_queue_that_stood_still_forgets_no_acknowledgement",
    ),
    (
        "downstream",
        "allows less than configured",
        "paths::adaptive::the_rate_follows_a_downstream_that_allows_less",
    ),
    (
        "downstream",
        "a huge answer",
        "downstream::connections::a_huge_answer_costs_its_connection_and_nothing_else",
    ),
    (
        "smpp",
        "ESME_RMSGQFUL after ESME_RTHROTTLED, four replicas",
        "fleet::smpp::the_centre_throttles",
    ),
    (
        "providers",
        "one answers 500, and comes back",
        "paths::providers::what_an_away_provider_cannot_take_the_other_one_takes",
    ),
    (
        "providers",
        "one hangs, and comes back",
        "paths::providers::what_a_provider_that_hangs_cannot_take_the_other_one_takes",
    ),
    (
        "providers",
        "one throttles: 429 with Retry-After",
        "paths::providers::what_a_throttling_provider_cannot_take_the_other_one_takes",
    ),
    (
        "providers",
        "one answers 5 s late",
        "paths::providers::a_slow_provider_is_used_all_the_same",
    ),
    (
        "providers",
        "both answer 500, and come back one after the other",
        "paths::providers::after_both_failed_the_one_that_is_back_sends",
    ),
    (
        "providers",
        "kill -9 of a replica while one is away",
        "paths::providers::a_replica_that_dies_while_one_provider_is_away_loses_nothing",
    ),
    (
        "providers",
        "a standby takes over, and gives back",
        "paths::providers::a_standby_sends_only_while_its_main_route_cannot",
    ),
    (
        "messages",
        "not UTF-8 anywhere; every AMQP header type; nested headers",
        "paths::unreadable::what_cannot_be_read_is_buried_and_stops_nothing",
    ),
    (
        "host",
        "admin port taken",
        "daemon::refused::an_admin_address_that_is_taken_ends_with_1_and_is_named",
    ),
    (
        "host",
        "blocked stderr",
        "daemon::outside::a_log_that_nothing_reads_stops_no_call",
    ),
    (
        "host",
        "unwritable leftover file",
        "daemon::embedded::what_cannot_be_left_over_is_said_and_sent_again_by_the_next_run",
    ),
    (
        "host",
        "a task panics",
        "daemon::panics::a_panic_ends_with_1_after_the_calls_in_flight",
    ),
];

#[test]
fn each_of_these_rows_is_a_test() {
    for (place, fault, test) in ROWS {
        let (file, name) = test.rsplit_once("::").expect("a file and a name");
        let file = format!("tests/it/{}", file.replace("::", "/"));
        let text = std::fs::read_to_string(format!("{file}.rs"));
        let text = text.unwrap_or_else(|_| panic!("no file of {test}"));
        assert!(text.contains(&format!("fn {name}(")), "no {test}");
        append(&json!({"row": format!("{place}::"), "fault": fault, "test": test}));
    }
}
