//! Chromium without a window, driven over its own protocol (DevTools) through two pipes.
//!
//! Problem: the browser builds the text of the page, so a test of the file's text proves nothing about
//! what a person sees. A pipe needs no port, no driver and no other client than JSON: each message ends
//! with a zero byte. When the test process ends, its ends of the pipes are closed, and the browser ends
//! by itself.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::daemon::LONG;
use super::machine;
use super::process::Leash;
use super::wait::within;

/// The names under which it is installed.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// No account, no update, no name server: only what the test asks for. It reads commands from file 3
/// and answers to file 4.
const LAUNCH: &str = "exec \"$0\" --headless --remote-debugging-pipe --user-data-dir=\"$HOME/profile\" \
    --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run \
    --disable-background-networking --disable-component-update --disable-sync --disable-extensions \
    --disable-breakpad --disable-crash-reporter --host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE 127.0.0.1' \
    about:blank 3<&0 4>&1 </dev/null >/dev/null 2>\"$HOME/log\"";

/// A browser with one page, killed when dropped.
#[derive(Debug)]
pub struct Browser {
    process: Child,
    to: ChildStdin,
    from: mpsc::UnboundedReceiver<Value>,
    /// Of the page.
    session: Option<String>,
    last: u64,
    /// What happened in the page since it was asked last.
    events: Vec<Value>,
    _leash: Leash,
    dir: tempfile::TempDir,
}

impl Browser {
    /// `None`: there is none on this machine.
    pub async fn start() -> Option<Self> {
        let name = NAMES.into_iter().find(is_installed)?;
        machine::share();
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new("sh")
            .args(["-c", LAUNCH, name])
            .env("HOME", dir.path())
            .env("XDG_CONFIG_HOME", dir.path())
            .env("XDG_CACHE_HOME", dir.path())
            .env_remove("DISPLAY")
            .env_remove("DBUS_SESSION_BUS_ADDRESS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let (to, from) = (process.stdin.take(), process.stdout.take());
        let mut browser = Self {
            _leash: Leash::on(&process),
            process,
            to: to.unwrap(),
            from: messages(from.unwrap()),
            session: None,
            last: 0,
            events: Vec::new(),
            dir,
        };
        browser.attach().await;
        Some(browser)
    }

    /// Makes the page, and subscribes to what happens in it.
    async fn attach(&mut self) {
        let page = json!({ "url": "about:blank" });
        let page = self.call("Target.createTarget", page).await;
        let page = json!({ "targetId": page["targetId"], "flatten": true });
        let session = self.call("Target.attachToTarget", page).await;
        self.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        for part in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{part}.enable"), json!({})).await;
        }
    }

    /// A command of the protocol and its result.
    pub async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut command = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let mut text = command.to_string().into_bytes();
        text.push(0);
        let written = self.to.write_all(&text);
        assert!(written.is_ok(), "the browser has ended: {}", self.log());
        within(LONG, method, async {
            loop {
                let Some(mut message) = self.from.recv().await else {
                    panic!("{method}: the browser has ended: {}", self.log());
                };
                if message["id"] == self.last {
                    assert!(message["error"].is_null(), "{method}: {message}");
                    return message["result"].take();
                }
                self.events.push(message);
            }
        })
        .await
    }

    /// Opens an address and waits until it is loaded.
    pub async fn open(&mut self, url: &str) {
        let went = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(went["errorText"].is_null(), "{went}");
        let loaded = "document.readyState === 'complete' && location.href !== 'about:blank'";
        let end = Instant::now() + LONG;
        while self.value(loaded).await != true {
            assert!(Instant::now() < end, "{url} is not loaded");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The value of an expression in the page.
    pub async fn value(&mut self, expression: &str) -> Value {
        let asked = json!({ "expression": expression, "returnByValue": true });
        let mut answer = self.call("Runtime.evaluate", asked).await;
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer:#}"
        );
        answer["result"]["value"].take()
    }

    /// Shows it to a person who prefers `dark` or `light`, in a window of that size.
    pub async fn look(&mut self, scheme: &str, width: u32, height: u32) {
        let prefers = json!({ "name": "prefers-color-scheme", "value": scheme });
        let media = json!({ "features": [prefers] });
        self.call("Emulation.setEmulatedMedia", media).await;
        let window =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", window)
            .await;
    }

    /// The addresses that the page asked for.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let requests = self.events.iter();
        let requests = requests.filter(|event| event["method"] == "Network.requestWillBeSent");
        requests
            .map(|event| event["params"]["request"]["url"].to_string())
            .collect()
    }

    /// What a developer would see in the console: errors, warnings, and refused actions of the page.
    #[must_use]
    pub fn complaints(&self) -> Vec<&Value> {
        let said = |event: &&Value| {
            let parameters = &event["params"];
            let of = |value: &Value| matches!(value.as_str(), Some("error" | "warning" | "assert"));
            match event["method"].as_str() {
                Some("Runtime.exceptionThrown") => true,
                Some("Runtime.consoleAPICalled") => of(&parameters["type"]),
                Some("Log.entryAdded") => of(&parameters["entry"]["level"]),
                _ => false,
            }
        };
        self.events.iter().filter(said).collect()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.process);
        // It may have ended by itself.
        kill_process_group(group, Signal::KILL).ok();
        drop(self.process.wait());
        // Its helpers write into its directory until they end.
        for _ in 0..1_000 {
            if test_kill_process_group(group).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whether it runs: on some systems such a program only prints how to install it.
fn is_installed(name: &&str) -> bool {
    let asked = Command::new(name).arg("--version").output();
    asked.is_ok_and(|answer| answer.status.success())
}

/// Reads what comes out of the pipe, as it comes.
fn messages(pipe: ChildStdout) -> mpsc::UnboundedReceiver<Value> {
    let (to, from) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        let parts = BufReader::new(pipe).split(0).map_while(Result::ok);
        for message in parts.filter_map(|part| serde_json::from_slice(&part).ok()) {
            if to.send(message).is_err() {
                return;
            }
        }
    });
    from
}
