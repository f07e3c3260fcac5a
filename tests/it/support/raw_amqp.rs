//! A publisher that writes what no client library would: properties byte by byte.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const METHOD: u8 = 1;
const END: u8 = 0xCE;

/// A connection with a confirm channel.
#[derive(Debug)]
pub struct RawPublisher {
    stream: TcpStream,
    open: BTreeSet<u64>,
    published: u64,
}

/// What is published.
#[derive(Clone, Debug, Default)]
pub struct RawMessage {
    pub exchange: String,
    pub routing_key: Vec<u8>,
    /// Flags and values, as on the wire.
    pub properties: Vec<u8>,
    pub body: Vec<u8>,
}

impl RawPublisher {
    /// Logs in at a URL such as [`super::rabbit::Rabbit::url`].
    #[must_use]
    pub fn connect(url: &str) -> Self {
        let uri: lapin::uri::AMQPUri = url.parse().unwrap();
        let address = (uri.authority.host.as_str(), uri.authority.port);
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut raw = Self {
            stream,
            open: BTreeSet::new(),
            published: 0,
        };
        raw.stream.write_all(b"AMQP\x00\x00\x09\x01").unwrap();
        raw.expect([0, 10, 0, 10]);
        let login = [
            &[0, 0, 0, 0][..],
            &short(b"PLAIN"),
            &long(b"\0guest\0guest"),
            &short(b"en_US"),
        ];
        raw.method(0, [0, 10, 0, 11], &login.concat());
        // Channels and frame size as the server offers them, no heartbeat.
        let tune = raw.expect([0, 10, 0, 30]);
        raw.method(0, [0, 10, 0, 31], &[&tune[..6], &[0, 0]].concat());
        raw.method(0, [0, 10, 0, 40], &[&short(b"/")[..], &[0, 0]].concat());
        raw.expect([0, 10, 0, 41]);
        raw.method(1, [0, 20, 0, 10], &[0]);
        raw.expect([0, 20, 0, 11]);
        raw.method(1, [0, 85, 0, 10], &[0]);
        raw.expect([0, 85, 0, 11]);
        raw
    }

    /// Writes a message without waiting for its confirm.
    pub fn publish(&mut self, message: &RawMessage) {
        let to = [
            &[0, 0][..],
            &short(message.exchange.as_bytes()),
            &short(&message.routing_key),
            &[0],
        ];
        self.method(1, [0, 60, 0, 40], &to.concat());
        let size = (message.body.len() as u64).to_be_bytes();
        let header = [&[0, 60, 0, 0][..], &size, &message.properties].concat();
        self.frame(2, 1, &header);
        self.frame(3, 1, &message.body);
        self.published += 1;
        self.open.insert(self.published);
    }

    /// Waits for every confirm.
    pub fn confirmed(&mut self) {
        while !self.open.is_empty() {
            let ack = self.expect([0, 60, 0, 80]);
            let tag = u64::from_be_bytes(ack[..8].try_into().unwrap());
            match ack[8] {
                0 => assert!(self.open.remove(&tag)),
                _ => self.open = self.open.split_off(&(tag + 1)),
            }
        }
    }

    fn method(&mut self, channel: u16, name: [u8; 4], arguments: &[u8]) {
        self.frame(METHOD, channel, &[&name, arguments].concat());
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&[kind][..], &channel.to_be_bytes(), &size, payload, &[END]].concat();
        self.stream.write_all(&frame).unwrap();
    }

    /// The arguments of the next method, which must be the given one.
    fn expect(&mut self, name: [u8; 4]) -> Vec<u8> {
        let mut prefix = [0; 7];
        self.stream.read_exact(&mut prefix).unwrap();
        let size = u32::from_be_bytes(prefix[3..].try_into().unwrap());
        let mut payload = vec![0; size as usize + 1];
        self.stream.read_exact(&mut payload).unwrap();
        payload.pop();
        assert_eq!(prefix[0], METHOD);
        let arguments = payload.split_off(4);
        assert_eq!(payload, name, "{}", String::from_utf8_lossy(&arguments));
        arguments
    }
}

/// A short string, which need not be text.
#[must_use]
pub fn short(bytes: &[u8]) -> Vec<u8> {
    [&[u8::try_from(bytes.len()).unwrap()], bytes].concat()
}

/// Bytes behind their length: a long string, or a table.
#[must_use]
pub fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
}
