//! A name server of the tests: every name is one address of this machine, or queries are read and never answered.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tempfile::TempDir;

/// The header of a message: its id, flags, and four counts.
const HEAD: usize = 12;
/// The type of a query for an IPv4 address.
const A: [u8; 2] = [0, 1];

/// Answers until the test process ends.
#[derive(Debug)]
pub struct NameServer {
    directory: TempDir,
    questions: Arc<AtomicUsize>,
    silent: Arc<AtomicBool>,
    address: Arc<AtomicU32>,
}

impl NameServer {
    /// At that address. Programs that are started by its launcher ask it, with these options of
    /// resolv.conf(5). `None`: this test may not listen there, or may not change what a program sees.
    #[must_use]
    pub fn start(address: &str, options: &str) -> Option<Self> {
        let may_mount = Command::new("unshare").args(["--mount", "true"]).output();
        may_mount.ok().filter(|output| output.status.success())?;
        let socket = UdpSocket::bind((address, 53)).ok()?;
        let server = Self {
            directory: tempfile::tempdir().ok()?,
            questions: Arc::default(),
            silent: Arc::default(),
            address: Arc::new(AtomicU32::new(Ipv4Addr::LOCALHOST.to_bits())),
        };
        let told = format!("nameserver {address}\noptions {options}\n");
        std::fs::write(server.directory.path().join("resolv.conf"), told).ok()?;
        let (count, silent) = (Arc::clone(&server.questions), Arc::clone(&server.silent));
        let address = Arc::clone(&server.address);
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((size, from)) = socket.recv_from(&mut question) {
                count.fetch_add(1, Ordering::Relaxed);
                let address = Ipv4Addr::from_bits(address.load(Ordering::Relaxed));
                let answer = answer(&question[..size], address);
                if let Some(answer) = answer.filter(|_| !silent.load(Ordering::Relaxed)) {
                    drop(socket.send_to(&answer, from));
                }
            }
        });
        Some(server)
    }

    /// From now on queries are not answered, or are answered again.
    pub fn set_silent(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// From now on every name is that address.
    pub fn moves_to(&self, address: Ipv4Addr) {
        self.address.store(address.to_bits(), Ordering::Relaxed);
    }

    /// How many queries it read.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.questions.load(Ordering::Relaxed)
    }

    /// What starts a program that asks this server.
    #[must_use]
    pub fn launcher(&self) -> [String; 6] {
        let file = self.directory.path().join("resolv.conf");
        let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
        let file = file.display().to_string();
        ["unshare", "--mount", "sh", "-c", script, &file].map(str::to_owned)
    }
}

/// The query again, with one address if it asks for IPv4, and with none otherwise.
fn answer(question: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let name = question.get(HEAD..)?.iter().position(|byte| *byte == 0)?;
    let kind = question.get(HEAD + name + 1..HEAD + name + 3)?;
    let end = HEAD + name + 5;
    let addresses = u8::from(kind == A);
    let mut answer = question[..2].to_vec();
    // An answer, without an error: one question, this many addresses, nothing else.
    answer.extend([0x81, 0x80, 0, 1, 0, addresses, 0, 0, 0, 0]);
    answer.extend(question.get(HEAD..end)?);
    if addresses > 0 {
        // The name of the question, type A, class IN, to be kept for no time, four bytes.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
