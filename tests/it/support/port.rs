//! Ports for private servers that no other process takes.
//!
//! If the system picks a port, it takes it from the range that it also uses for the client side of
//! connections. Between the choice and the server's start, or while a killed server is away, a
//! connection of another test can take the port, and the server does not start. So these ports lie
//! outside of that range, and locks on files record which of them the tests of this machine use,
//! until the test process ends in whatever way.

use std::fs::{File, create_dir_all};
use std::net::TcpListener;
use std::ops::Range;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// The system's range of ports for clients; a missing file means another system than Linux.
const CLIENTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Below are the ports of well-known services.
const LEAST: u16 = 10_000;
/// How many ports a machine needs to have for this.
const ENOUGH: u16 = 500;

/// A process that was killed ends within this, on a busy machine too.
pub const RELEASED: Duration = Duration::from_secs(30);

/// The locks on the ports given out, for the life of this process.
static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// A port on which nothing listens, and that no other caller of this function gets.
#[must_use]
pub fn free_port() -> u16 {
    // Each user has a directory: none can write into another's.
    let user = rustix::process::getuid().as_raw();
    let dir = std::env::temp_dir().join(format!("sluiced-test-ports-{user}"));
    create_dir_all(&dir).expect("a directory for the locks on ports");
    let mut taken = TAKEN.lock().unwrap();
    let ports = ports();
    // Test processes begin at different places, so that a port is not used again at once.
    let count = u32::from(ports.end - ports.start);
    let first = u16::try_from(std::process::id() * 37 % count).unwrap();
    let turned = (ports.start + first..ports.end).chain(ports.start..ports.start + first);
    for port in turned {
        let lock = File::create(dir.join(port.to_string())).expect("the lock on a port");
        if lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            taken.push(lock);
            return port;
        }
    }
    panic!("no port of {ports:?} is free");
}

/// Waits until nothing listens on a port any more: a server that was killed may end a moment after the
/// shell that killed it.
pub fn released(port: u16) {
    let end = SystemTime::now() + RELEASED;
    while TcpListener::bind(("127.0.0.1", port)).is_err() {
        assert!(
            SystemTime::now() < end,
            "another server listens on port {port}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The ports below the range of the clients if there are enough, else those above.
fn ports() -> Range<u16> {
    let text = std::fs::read_to_string(CLIENTS).unwrap_or_else(|_| "49152 65535".to_owned());
    let mut ends = text
        .split_whitespace()
        .map(|word| word.parse::<u16>().unwrap());
    let (Some(first), Some(last)) = (ends.next(), ends.next()) else {
        panic!("{CLIENTS} has no range: {text}");
    };
    if first >= LEAST + ENOUGH {
        LEAST..first
    } else if u16::MAX - last > ENOUGH {
        last + 1..u16::MAX
    } else {
        // All ports are in the clients' range: then any may be used.
        LEAST..u16::MAX
    }
}
