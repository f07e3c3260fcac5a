//! The body of an answer as it was meant: without its `Content-Encoding`.
//!
//! Problem: some servers compress answers although nothing asked for that, and a text of a refusal is not found in
//! compressed bytes. So each coding is undone before the body is judged, kept or shown. A few bytes can become
//! gigabytes: no more than the usual bound of an answer is made of them.
//!
//! A character set or `none` in this header is a mistake that occurs, and no coding.
//!
//! RFC 9110, section 8.4: `gzip` and `x-gzip`, `deflate` (with the header of zlib, and as some servers send it,
//! without), and `br`; several are undone from the last to the first.

use http::HeaderMap;
use http::header::CONTENT_ENCODING;

use super::body::AnswerRead;
use sluiced_ports::downstream::MAX_ANSWER;
use sluiced_template::content::{DecodeEnd, gunzip, inflate, unbrotli};

/// No server applies more.
const MOST_CODINGS: usize = 4;
/// Words that some servers write there and that are no coding of HTTP: the body is as it is. Character sets, encodings
/// of mail, and what storage services keep of an upload.
const NONE: [&str; 12] = [
    "identity",
    "none",
    "utf-8",
    "utf8",
    "us-ascii",
    "ascii",
    "iso-8859-1",
    "latin1",
    "binary",
    "7bit",
    "8bit",
    "aws-chunked",
];

/// A body after its codings were undone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DecodedBody {
    /// What could be decoded.
    pub(super) body: Vec<u8>,
    pub(super) read: AnswerRead,
    /// Why it cannot be read, if `read` says that. Nothing of its content.
    pub(super) why: Option<String>,
}

/// Undoes the codings of a body of which `read` was received.
pub(super) fn decode(headers: &HeaderMap, body: Vec<u8>, read: AnswerRead) -> DecodedBody {
    let mut decoded = DecodedBody {
        body,
        read,
        why: None,
    };
    if decoded.body.is_empty() {
        return decoded;
    }
    let codings = codings(headers);
    if codings.len() > MOST_CODINGS {
        return unreadable(Vec::new(), "it has too many codings".to_owned());
    }
    for coding in codings.iter().rev() {
        let (body, end) = match coding.as_str() {
            "gzip" | "x-gzip" => gunzip(&decoded.body, MAX_ANSWER),
            "deflate" => inflate(&decoded.body, MAX_ANSWER),
            "br" => unbrotli(&decoded.body, MAX_ANSWER),
            other => {
                return unreadable(
                    Vec::new(),
                    format!("its coding `{}` is unknown", name(other)),
                );
            }
        };
        decoded.body = body;
        decoded.read = match (end, decoded.read) {
            (DecodeEnd::Whole, read) => read,
            (DecodeEnd::Bound, _) => AnswerRead::Enough,
            // The data that was received ends before that of the answer.
            (DecodeEnd::Broken, cut @ AnswerRead::Cut(_)) => cut,
            (DecodeEnd::Broken, AnswerRead::Enough) if !decoded.body.is_empty() => {
                AnswerRead::Enough
            }
            (DecodeEnd::Broken, _) => {
                return unreadable(decoded.body, format!("its {coding} is cut or damaged"));
            }
        };
    }
    decoded
}

fn unreadable(body: Vec<u8>, why: String) -> DecodedBody {
    DecodedBody {
        body,
        read: AnswerRead::Unreadable,
        why: Some(why),
    }
}

/// In the order in which they were applied, without those that change nothing.
fn codings(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    // A value that is no text is no known coding either.
    let texts = values.map(|value| value.to_str().unwrap_or("?"));
    let names = texts.flat_map(|text| text.split(','));
    names
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty() && !NONE.contains(&name.as_str()))
        .collect()
}

/// As much of a foreign name as belongs in a log.
fn name(text: &str) -> String {
    let is_plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().filter(is_plain).take(20).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};

    use super::*;
    use sluiced_core::judge::Silence;

    const TEXT: &[u8] = br#"{"status": "refused", "parts": ["refused", "refused", "refused", "refused", "refused", "refused"]}"#;
    /// [`TEXT`], compressed by the encoder of the reference implementation of brotli.
    const BROTLI: &[u8] = &[
        0x1b, 0x61, 0x00, 0x20, 0x1c, 0x07, 0x6e, 0xac, 0xcc, 0x4e, 0xd0, 0x70, 0xbb, 0x11, 0x2a,
        0xbd, 0x45, 0xb6, 0xf6, 0xfa, 0x26, 0x8b, 0x4e, 0x57, 0x80, 0x80, 0x43, 0x0e, 0xd8, 0x0f,
        0xd8, 0x02, 0x6a, 0x8b, 0xb4, 0x55, 0x15, 0x4d, 0x0f, 0x0a, 0x13, 0x11, 0x4f, 0x54, 0x66,
        0x16, 0x94, 0xf0, 0xe7, 0x1e, 0x7d,
    ];

    fn gzip(body: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(body).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn zlib(body: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(body).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn deflate(body: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(body).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn of(coding: &str, body: Vec<u8>, read: AnswerRead) -> DecodedBody {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_ENCODING, coding.parse().expect("a header"));
        decode(&headers, body, read)
    }

    fn whole(body: &[u8]) -> DecodedBody {
        DecodedBody {
            body: body.to_vec(),
            read: AnswerRead::Whole,
            why: None,
        }
    }

    #[test]
    fn every_coding_in_use_is_undone() {
        for (coding, body) in [
            ("gzip", gzip(TEXT)),
            ("x-gzip", gzip(TEXT)),
            ("GZip", gzip(TEXT)),
            ("deflate", zlib(TEXT)),
            ("deflate", deflate(TEXT)),
            ("br", BROTLI.to_vec()),
            ("identity", TEXT.to_vec()),
            ("UTF-8", TEXT.to_vec()),
            ("deflate, gzip", gzip(&zlib(TEXT))),
            ("identity, gzip,", gzip(TEXT)),
        ] {
            assert_eq!(of(coding, body, AnswerRead::Whole), whole(TEXT), "{coding}");
        }
        assert_eq!(
            decode(&HeaderMap::new(), TEXT.to_vec(), AnswerRead::Whole),
            whole(TEXT)
        );
        // An answer to HEAD.
        assert_eq!(of("gzip", Vec::new(), AnswerRead::Whole), whole(b""));
    }

    #[test]
    fn a_few_bytes_never_become_more_than_the_bound() {
        let long = vec![b'a'; 50_000_000];
        for (coding, body) in [
            ("gzip", gzip(&long)),
            ("deflate", zlib(&long)),
            ("deflate", deflate(&long)),
        ] {
            let decoded = of(coding, body, AnswerRead::Whole);
            assert_eq!(
                (decoded.body.len(), decoded.read),
                (MAX_ANSWER, AnswerRead::Enough),
                "{coding}"
            );
            assert!(decoded.body.capacity() < 4 * MAX_ANSWER, "{coding}");
        }
        let twice = of("gzip, gzip", gzip(&gzip(&long)), AnswerRead::Whole);
        assert_eq!(twice.read, AnswerRead::Enough);
    }

    #[test]
    fn what_is_cut_damaged_or_unknown_cannot_be_read() {
        for (coding, body) in [
            ("gzip", gzip(TEXT)),
            ("deflate", zlib(TEXT)),
            ("deflate", deflate(TEXT)),
            ("br", BROTLI.to_vec()),
        ] {
            for length in 1..body.len() {
                let decoded = of(coding, body[..length].to_vec(), AnswerRead::Whole);
                assert_eq!(decoded.read, AnswerRead::Unreadable, "{coding} {length}");
                assert!(TEXT.starts_with(&decoded.body), "{coding} {length}");
            }
            let cut = AnswerRead::Cut(Silence::Connection);
            let decoded = of(coding, body[..body.len() / 2].to_vec(), cut);
            assert_eq!((decoded.read, decoded.why), (cut, None), "{coding}");
        }
        let damaged = of("gzip", TEXT.to_vec(), AnswerRead::Whole);
        assert_eq!(damaged.why.as_deref(), Some("its gzip is cut or damaged"));
        for (coding, why) in [
            ("zstd", "its coding `zstd` is unknown"),
            ("gzip\u{e4}", "its coding `` is unknown"),
            ("gzip, gzip, gzip, gzip, gzip", "it has too many codings"),
        ] {
            let decoded = of(coding, TEXT.to_vec(), AnswerRead::Whole);
            assert_eq!(
                (decoded.read, decoded.why.as_deref()),
                (AnswerRead::Unreadable, Some(why))
            );
        }
    }

    #[test]
    fn the_beginning_of_a_long_answer_is_decoded_as_far_as_it_came() {
        let mut noise = 1_u32;
        let mut next = || {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (noise >> 24) as u8
        };
        let long: Vec<u8> = (0..100_000).map(|_| next()).collect();
        let mut body = gzip(&long);
        body.truncate(30_000);
        let decoded = of("gzip", body, AnswerRead::Enough);
        assert_eq!(decoded.read, AnswerRead::Enough);
        assert!(decoded.body.len() > 20_000 && long.starts_with(&decoded.body));
    }
}
