//! Servers that speak the protocol of Redis and are none: a front that answers for a real Redis as another product is
//! documented to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::redis::RedisServer;

/// How it differs from the Redis behind it.
#[derive(Default)]
pub struct Differs {
    /// Lines of `INFO` that it does not have, by their names …
    pub without: Vec<&'static str>,
    /// … and others.
    pub with: Vec<String>,
    /// The error for a command, by the beginning of the words in it.
    pub refuses: Vec<(&'static str, &'static str)>,
    /// The error for a script without keys.
    pub keyless: Option<&'static str>,
    /// What answers of scripts hold in place of something else.
    pub replies: Vec<(&'static str, &'static str)>,
}

/// Runs until the test ends.
pub struct LookAlike {
    address: SocketAddr,
    differs: Arc<Mutex<Differs>>,
}

impl LookAlike {
    /// In front of that server, which must have no password.
    #[must_use]
    pub fn of(redis: &RedisServer, differs: Differs) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let differs = Arc::new(Mutex::new(differs));
        let (shared, port) = (Arc::clone(&differs), redis.port());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let differs = Arc::clone(&shared);
                thread::spawn(move || drop(serve(client, port, &differs)));
            }
        });
        Self { address, differs }
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    /// From now on it differs like this, on connections that are open too.
    pub fn set(&self, differs: Differs) {
        *self.differs.lock().unwrap() = differs;
    }
}

/// One command at a time: each is answered before the next one is read.
fn serve(client: TcpStream, port: u16, differs: &Mutex<Differs>) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", port))?;
    let (mut to_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let (mut from_client, mut from_server) = (BufReader::new(client), BufReader::new(server));
    while let Some((raw, words)) = command(&mut from_client)? {
        let name = words.first().map(|word| word.to_uppercase());
        if name.as_deref() == Some("SUBSCRIBE") {
            to_server.write_all(&raw)?;
            return subscribed(from_client, from_server, to_client, to_server);
        }
        if let Some(error) = refusal(&differs.lock().unwrap(), &words) {
            to_client.write_all(format!("-{error}\r\n").as_bytes())?;
            continue;
        }
        to_server.write_all(&raw)?;
        let mut answer = Vec::new();
        reply(&mut from_server, &mut answer)?;
        let differs = differs.lock().unwrap();
        let answer = match name.as_deref() {
            Some("INFO") => info(&answer, &differs),
            Some("EVALSHA") => replaced(answer, &differs.replies),
            _ => answer,
        };
        to_client.write_all(&answer)?;
    }
    Ok(())
}

/// Passes everything on in both directions.
fn subscribed(
    mut from_client: BufReader<TcpStream>,
    mut from_server: BufReader<TcpStream>,
    mut to_client: TcpStream,
    mut to_server: TcpStream,
) -> std::io::Result<()> {
    let back = thread::spawn(move || {
        drop(std::io::copy(&mut from_server, &mut to_client));
        drop(to_client.shutdown(Shutdown::Both));
    });
    std::io::copy(&mut from_client, &mut to_server)?;
    to_server.shutdown(Shutdown::Both)?;
    drop(back.join());
    Ok(())
}

/// A command as bytes and as words: an array of bulk strings.
fn command(from: &mut impl BufRead) -> std::io::Result<Option<(Vec<u8>, Vec<String>)>> {
    let mut raw = Vec::new();
    if from.read_until(b'\n', &mut raw)? == 0 {
        return Ok(None);
    }
    let mut words = Vec::new();
    for _ in 0..number(&raw) {
        let mut word = Vec::new();
        bulk(from, &mut raw, &mut word)?;
        words.push(String::from_utf8_lossy(&word).into_owned());
    }
    Ok(Some((raw, words)))
}

fn bulk(from: &mut impl BufRead, raw: &mut Vec<u8>, text: &mut Vec<u8>) -> std::io::Result<()> {
    let mut head = Vec::new();
    from.read_until(b'\n', &mut head)?;
    let length = usize::try_from(number(&head)).unwrap();
    *text = vec![0; length + 2];
    from.read_exact(text)?;
    raw.extend_from_slice(&head);
    raw.extend_from_slice(text);
    text.truncate(length);
    Ok(())
}

/// The number behind the first byte of a line.
fn number(line: &[u8]) -> i64 {
    let text = String::from_utf8_lossy(&line[1..]);
    text.trim().parse().unwrap()
}

/// One whole reply, of any type of RESP2.
fn reply(from: &mut impl BufRead, raw: &mut Vec<u8>) -> std::io::Result<()> {
    let mut head = Vec::new();
    from.read_until(b'\n', &mut head)?;
    raw.extend_from_slice(&head);
    match head.first() {
        Some(b'$') if number(&head) >= 0 => {
            let mut rest = vec![0; usize::try_from(number(&head)).unwrap() + 2];
            from.read_exact(&mut rest)?;
            raw.extend_from_slice(&rest);
        }
        Some(b'*') => {
            for _ in 0..number(&head) {
                reply(from, raw)?;
            }
        }
        _ => {}
    }
    Ok(())
}

fn refusal(differs: &Differs, words: &[String]) -> Option<&'static str> {
    let said = words.join(" ").to_uppercase();
    let refused = differs.refuses.iter();
    let mut refused = refused.filter(|(begins, _)| said.starts_with(begins));
    let is_script = said.starts_with("EVAL");
    let keyless = differs
        .keyless
        .filter(|_| is_script && words.get(2).is_some_and(|keys| keys == "0"));
    refused.next().map(|(_, error)| *error).or(keyless)
}

/// An answer to `INFO`, with other lines.
fn info(answer: &[u8], differs: &Differs) -> Vec<u8> {
    if answer.first() != Some(&b'$') {
        return answer.to_vec();
    }
    let text = String::from_utf8_lossy(answer);
    let (_, body) = text.split_once("\r\n").unwrap();
    let is_without = |line: &&str| {
        let name = line.split(':').next().unwrap_or_default();
        !differs.without.contains(&name)
    };
    let kept = body.lines().filter(is_without).map(str::to_owned);
    let body = kept.chain(differs.with.iter().cloned());
    let body = body.collect::<Vec<_>>().join("\r\n") + "\r\n";
    format!("${}\r\n{body}\r\n", body.len()).into_bytes()
}

fn replaced(answer: Vec<u8>, replies: &[(&str, &str)]) -> Vec<u8> {
    // Answers with keys of signatures and the like are bytes.
    let Ok(text) = String::from_utf8(answer.clone()) else {
        return answer;
    };
    let replaced = |text: String, (from, to): &(&str, &str)| text.replace(from, to);
    replies.iter().fold(text, replaced).into_bytes()
}
