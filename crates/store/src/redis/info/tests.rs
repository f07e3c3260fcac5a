//! What INFO says: the run of the server, its kind, and what may cost the state.

use super::*;

#[test]
fn the_life_of_a_server_is_named_by_its_run_id() {
    let of = |info: &str| ServerRun::read(info).map(|life| life.id);
    assert_eq!(
        of("# Server\r\nrun_id:abc\r\nx:1\r\n"),
        Ok("abc".to_owned())
    );
    // What Redis keeps over a restart names no life; what Dragonfly draws at each start does.
    let replid = "master_replid:def\r\n";
    for none in ["", "run_id:\r\n", "run_id:0000\r\n", replid] {
        assert_eq!(of(none), Err(NO_RUN_ID), "{none}");
    }
    let dragonfly = format!("dragonfly_version:df-v1.30.0\r\n{replid}");
    assert_eq!(of(&dragonfly), Ok("def".to_owned()));
}

#[test]
fn a_life_is_over_once_the_server_says_another_one() {
    let life = ServerRun::read("run_id:abc\r\n").unwrap();
    assert!(!life.is_over("uptime:7\r\nrun_id:abc\r\n"));
    assert!(life.is_over("run_id:abd\r\n") && life.is_over(""));
}

#[test]
fn look_alikes_are_named() {
    let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.1\r\n";
    assert_eq!(version(valkey), "7.2.4 (Valkey 8.1.1)");
    assert_eq!(version("redis_version:7.0.15\r\n"), "7.0.15");
    assert_eq!(version(""), "unknown");
    let says = |info| misfit(info, RedisMode::Single).unwrap_or_default();
    assert!(says("garnet_version:1.0.84\r\nredis_mode:standalone\r\n").contains("Garnet"));
    assert!(says("redis_mode:standalone\r\nrole:active-replica\r\n").contains("KeyDB"));
    assert!(is_replica("role:replica\r\n") && is_replica("role:slave\r\n"));
}

#[test]
fn a_good_redis_bears_no_risk() {
    let info = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n";
    for save in [None, Some("3600 1 300 100")] {
        assert_eq!(risks(info, save), Vec::<String>::new());
    }
    let journal = "maxmemory:1\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";
    assert_eq!(risks(journal, Some("")), Vec::<String>::new());
}

#[test]
fn what_may_cost_the_state_is_said_with_what_to_set() {
    let info = "maxmemory:1000\r\nmaxmemory_policy:volatile-lru\r\naof_enabled:0\r\n";
    let said = risks(info, Some(""));
    assert_eq!(said.len(), 2);
    assert!(said[0].contains("volatile-lru") && said[0].contains("noeviction"));
    assert!(said[1].contains("appendonly yes"), "{}", said[1]);
}

#[test]
fn servers_of_another_kind_are_told_apart() {
    let says = |mode: &str, wanted| misfit(&format!("redis_mode:{mode}\r\n"), wanted);
    for (mode, wanted) in [
        ("standalone", RedisMode::Single),
        ("standalone", RedisMode::Sentinel),
        ("cluster", RedisMode::Cluster),
    ] {
        assert_eq!(says(mode, wanted), None);
    }
    for (mode, wanted, word) in [
        ("cluster", RedisMode::Single, "\"cluster\""),
        ("cluster", RedisMode::Sentinel, "\"cluster\""),
        ("sentinel", RedisMode::Single, "\"sentinel\""),
        ("standalone", RedisMode::Cluster, "\"single\""),
    ] {
        assert!(says(mode, wanted).is_some_and(|said| said.contains(word)));
    }
    let valkey = misfit("server_mode:cluster\r\n", RedisMode::Single);
    assert!(valkey.is_some_and(|said| said.contains("\"cluster\"")));
    assert_eq!(misfit("role:master\r\n", RedisMode::Single), None);
}
