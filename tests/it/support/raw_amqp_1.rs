//! A publisher of AMQP 1.0, byte by byte: no library of this workspace speaks it. Parts and sections are those of the
//! specification (OASIS, 2012).

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Codes of what is said on a link (part 2, section 2.7), and on the way to one (part 5, section 5.3.3).
const OPEN: u8 = 0x10;
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const FLOW: u8 = 0x13;
const TRANSFER: u8 = 0x14;
const DISPOSITION: u8 = 0x15;
const SASL_INIT: u8 = 0x41;
const SASL_OUTCOME: u8 = 0x44;

const NULL: &[u8] = &[0x40];
const FALSE: &[u8] = &[0x42];

/// A link to one queue of RabbitMQ.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    received: Vec<u8>,
    published: u8,
}

/// A text, symbol or bytes of at most 255 bytes, by its code.
#[must_use]
pub fn short(code: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("a short one");
    [&[code, length], bytes].concat()
}

/// A list or a map of at most 255 bytes, by its code.
#[must_use]
pub fn compound(code: u8, items: &[&[u8]]) -> Vec<u8> {
    let items = [&[u8::try_from(items.len()).unwrap()][..], &items.concat()].concat();
    short(code, &items)
}

/// A section of a message, by its code.
#[must_use]
pub fn section(code: u8, value: &[u8]) -> Vec<u8> {
    [&[0, 0x53, code], value].concat()
}

fn number(number: u8) -> [u8; 2] {
    [0x52, number]
}

impl Link {
    /// To a queue of the server at this port.
    #[must_use]
    pub fn to(port: u16, queue: &str) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut link = Self {
            stream,
            received: Vec::new(),
            published: 0,
        };
        link.greet(3);
        let login = [&short(0xa3, b"PLAIN")[..], &short(0xa0, b"\0guest\0guest")];
        link.say(1, SASL_INIT, &login, b"");
        link.until(SASL_OUTCOME);
        link.greet(0);
        link.say(0, OPEN, &[&short(0xa1, b"sluiced-test")], b"");
        link.until(OPEN);
        let window = [NULL, &number(0), &number(100), &number(100)];
        link.say(0, BEGIN, &window, b"");
        link.until(BEGIN);
        let address = short(0xa1, format!("/amq/queue/{queue}").as_bytes());
        let target = section(0x29, &compound(0xc0, &[&address]));
        let source = section(0x28, &[0x45]);
        let (name, none) = (short(0xa1, b"link"), NULL);
        let attach = [
            &name[..],
            &number(0),
            FALSE,
            none,
            none,
            &source,
            &target,
            none,
            none,
            &number(0),
        ];
        link.say(0, ATTACH, &attach, b"");
        link.until(FLOW);
        link
    }

    /// Publishes sections, and waits until the server has them.
    pub fn publish(&mut self, sections: &[u8]) {
        let number = number(self.published);
        let tag = short(0xa0, &[self.published]);
        let transfer = [&[0x43][..], &number, &tag, &[0x43], FALSE];
        self.say(0, TRANSFER, &transfer, sections);
        self.until(DISPOSITION);
        self.published += 1;
    }

    fn greet(&mut self, protocol: u8) {
        let header = [b'A', b'M', b'Q', b'P', protocol, 1, 0, 0];
        self.stream.write_all(&header).unwrap();
        assert_eq!(self.octets(8), header);
    }

    /// Writes a frame.
    fn say(&mut self, of: u8, code: u8, fields: &[&[u8]], payload: &[u8]) {
        let body = [&section(code, &compound(0xc0, fields))[..], payload].concat();
        let length = u32::try_from(8 + body.len()).unwrap();
        let frame = [&length.to_be_bytes()[..], &[2, of, 0, 0], &body].concat();
        self.stream.write_all(&frame).unwrap();
    }

    /// Reads frames until one of this kind comes.
    fn until(&mut self, code: u8) {
        loop {
            let head = self.octets(4);
            let length = u32::from_be_bytes(head.try_into().unwrap());
            let rest = self.octets(length as usize - 4);
            // Behind the offset, the kind and the channel; an empty frame says that the server is there.
            let said = rest.get(4..).unwrap_or_default();
            match said {
                [0, 0x53, found, ..] if *found == code => return,
                [0, 0x53, 0x16..=0x18, ..] => panic!("refused: {}", String::from_utf8_lossy(said)),
                _ => {}
            }
        }
    }

    fn octets(&mut self, count: usize) -> Vec<u8> {
        let mut chunk = [0; 4096];
        while self.received.len() < count {
            let read = self.stream.read(&mut chunk).unwrap();
            assert_ne!(read, 0, "the server closed the connection");
            self.received.extend_from_slice(&chunk[..read]);
        }
        self.received.drain(..count).collect()
    }
}
