//! Scripts take from a limit that routes share: `sluiced throttle --limit`.

use std::process::Output;

use serde_json::Value;

use super::Alone;
use crate::support::daemon::{LONG, file, program};
use crate::support::wait::within;

const LIMITS: &str = "[limits.provider]\nkind = \"paced\"\nrate = \"200/1s\"\n\
                      [limits.sender]\nkind = \"sliding_log\"\nrate = \"2/1h\"\nkey = \"{{ body.from }}\"\n";
const DECLARED: &[&str] = &["the schedule was lost", "nothing is kept on disk"];

async fn throttle(alone: &Alone, arguments: &[&str]) -> Output {
    let config = alone.daemon.config();
    let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    let asked = tokio::task::spawn_blocking(move || {
        let mut command = program(&["throttle", "--config", config.to_str().unwrap()]);
        command.args(arguments).output().unwrap()
    });
    within(LONG, "an answer", asked).await.unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_waits_for_its_turn_of_a_limit_that_routes_share() {
    let callers = "limits = [\"provider\", \"sender\"]";
    let alone = Alone::start("callers-script", LIMITS, callers).await;
    for _ in 0..2 {
        let went = throttle(&alone, &["--limit", "sender", "ACME", "--fail"]).await;
        assert_eq!(went.status.code(), Some(0), "{went:?}");
        let said = text(&went);
        assert!(
            said.starts_with("limited    no\ncall       within "),
            "{said}"
        );
    }
    let limited = throttle(&alone, &["--limit", "sender", "ACME", "--fail", "--json"]).await;
    assert_eq!(limited.status.code(), Some(1), "{limited:?}");
    let said: Value = serde_json::from_slice(&limited.stdout).unwrap();
    assert_eq!(
        (&said["limited"], &said["limit"]),
        (&true.into(), &2.into())
    );
    assert!(
        said["retry_after_us"].as_u64() > Some(3_000_000_000),
        "{said}"
    );
    let plain = throttle(
        &alone,
        &["--limit", "sender", "B", "--units", "2", "--plain"],
    )
    .await;
    assert_eq!(text(&plain), "0\n0\n0\n-1\n0\n");
    for (arguments, said) in [
        (&["--limit", "sender"][..], "counts by a key; name one"),
        (
            &["--limit", "sendr", "x"],
            "there is no limit `sendr`; there are: provider, sender",
        ),
        (
            &["--limit", "provider"],
            "no callers may ask for the limit `provider` alone",
        ),
        (&["--limit", "sender", "x", "--wait", "1h"], "max_wait"),
    ] {
        let refused = throttle(&alone, arguments).await;
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        let why = String::from_utf8_lossy(&refused.stderr).into_owned() + &text(&refused);
        assert!(why.contains(said), "{arguments:?}: {why}");
    }
    let config = alone.daemon.config();
    let text = std::fs::read_to_string(config).unwrap();
    alone.daemon.stop(DECLARED).await;
    let dir = tempfile::tempdir().unwrap();
    let config = file(dir.path(), "sluiced.toml", &text);
    let arguments = [
        "--config",
        config.to_str().unwrap(),
        "--limit",
        "sender",
        "x",
    ];
    let failed = program(&["throttle"]).args(arguments).output().unwrap();
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let why = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(why.contains("is the daemon running?"), "{why}");
}
