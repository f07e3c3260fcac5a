use super::*;

#[test]
fn a_slow_round_trip_counts_but_not_the_slowest_of_twenty() {
    let of = |all: &[u64]| Trips::of(all.iter().copied().map(Duration::from_millis).collect());
    let trips = of(&[9, 31, 7, 11, 40, 8]);
    assert_eq!(trips.best, Duration::from_millis(7));
    assert_eq!(trips.slow, Duration::from_millis(11));
    let one = of(&[900]);
    assert_eq!((one.best, one.slow), (one.slow, Duration::from_millis(900)));
}

#[test]
fn what_works_badly_is_said() {
    let near = Duration::from_millis(100);
    assert_eq!(remarks("role:master\r\n", near), Vec::<String>::new());
    let said = remarks("role:slave\r\n", Duration::from_millis(101)).join("\n");
    for part in ["replica", "over 100ms"] {
        assert!(said.contains(part), "{said}");
    }
}

mod facts {
    use super::*;

    #[test]
    fn the_run_id_is_read_from_info() {
        let run_id = |info| field(info, "run_id");
        assert_eq!(run_id("# Server\r\nrun_id:abc\r\nx:1\r\n"), Some("abc"));
        assert_eq!(run_id("run_id:\r\n"), None);
        assert_eq!(run_id(""), None);
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
        assert_eq!(misfit("role:master\r\n", RedisMode::Single), None);
    }
}

mod rights {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    fn scripts(below: &Path, text: &mut String) {
        for entry in std::fs::read_dir(below).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                scripts(&path, text);
            } else {
                text.push_str(&std::fs::read_to_string(path).unwrap());
            }
        }
    }

    /// Every command that a script calls is in the list.
    #[test]
    fn the_scripts_call_nothing_else() {
        let mut text = String::new();
        let lua = concat!(env!("CARGO_MANIFEST_DIR"), "/../../lua");
        scripts(Path::new(lua), &mut text);
        let calls = text.split("call('").skip(1);
        let called: BTreeSet<&str> = calls.filter_map(|rest| rest.split('\'').next()).collect();
        assert!(called.contains("HMGET"));
        for command in called {
            let known = NEEDED.contains(&command) || WISHED.contains(&command);
            assert!(known, "{command} is not in the list");
        }
    }
}
