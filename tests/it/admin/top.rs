//! `sluiced top` on a terminal of 80 x 24.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::rabbit::Rabbit;
use crate::support::recorder::Recorder;
use crate::support::wait::eventually;

/// More than fit on the screen.
const ROUTES: usize = 20;

/// What the terminal got since it was drawn last, without colours.
fn last_screen(got: &Mutex<Vec<u8>>) -> String {
    let text = String::from_utf8_lossy(&got.lock().unwrap()).into_owned();
    // A screen begins at the top and ends with an erasure of what is below it.
    let ended = text.rsplit_once("\x1b[J").map_or("", |(before, _)| before);
    let drawn = ended.rsplit("\x1b[H").next().unwrap_or_default();
    let mut plain = String::new();
    for (place, part) in drawn.split("\x1b[").enumerate() {
        let skipped = part.find(|c: char| c.is_ascii_alphabetic());
        plain += match (place, skipped) {
            (0, _) => part,
            (_, Some(end)) => &part[end + 1..],
            (_, None) => "",
        };
    }
    plain
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_scrolls_and_fits_a_terminal_of_80_by_24() {
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    let downstream = Recorder::accepting().await;
    let names = (1..=ROUTES).map(|n| format!("top-{n:02}-of-several-long-names"));
    let names: Vec<_> = names.collect();
    for name in &names {
        broker.declare(name, "classic").await;
    }
    let routes = names
        .iter()
        .map(|name| Route::new(name, downstream.address));
    let mut daemon = Daemon::start(&Config::shared("top", "100/1s", routes.collect()));
    daemon.ready().await;
    let url = format!("http://{}", daemon.admin().await);

    // `script` is a terminal.
    let program = env!("CARGO_BIN_EXE_sluiced");
    let shown = format!("stty rows 24 cols 80; exec {program} top --url {url}");
    let mut terminal = Command::new("script")
        .args(["-qefc", &shown, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = terminal.stdin.take().unwrap();
    let mut out = terminal.stdout.take().unwrap();
    let got = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&got);
    std::thread::spawn(move || {
        let mut some = [0; 4096];
        while let Ok(size @ 1..) = out.read(&mut some) {
            to.lock().unwrap().extend_from_slice(&some[..size]);
        }
    });
    let sees = |text: &str| last_screen(&got).contains(text);
    eventually(LONG, "the first lines", || sees("lines 1 to 22 of ")).await;
    for line in last_screen(&got).lines() {
        assert!(line.chars().count() <= 80, "{line:?}");
    }
    assert!(
        last_screen(&got).lines().count() < 24,
        "{}",
        last_screen(&got)
    );
    assert!(sees("sluiced: 1 replica, all ready") && sees("   DEAD"));
    assert!(!sees("REPLICA  "), "it does not fit");
    keys.write_all(b"\x1b[B").unwrap();
    eventually(LONG, "one line more", || sees("lines 2 to 23 of ")).await;
    keys.write_all(b"G").unwrap();
    eventually(LONG, "the last lines", || {
        sees("REPLICA  ") && sees(&names[ROUTES - 1])
    })
    .await;
    keys.write_all(b"g").unwrap();
    eventually(LONG, "the first lines again", || sees("lines 1 to 22 of ")).await;
    keys.write_all(b"q").unwrap();
    eventually(LONG, "it ends", || terminal.try_wait().unwrap().is_some()).await;
    daemon
        .stop(&[NEW_SCHEDULE, "nothing is kept on disk", "tap closed"])
        .await;
}
