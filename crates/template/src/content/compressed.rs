//! Compressed bytes, undone within a bound.

use std::io::Read;

use flate2::{Decompress, FlushDecompress, Status};

/// What a decoder of brotli reads at once, in bytes.
const CHUNK: usize = 4096;

/// How undoing ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeEnd {
    /// At the end of the data.
    Whole,
    /// At the bound: the data would make more bytes than `most`.
    Bound,
    /// The data is cut or damaged.
    Broken,
}

/// Undoes gzip (RFC 1952; several members are one text). Makes at most `most` bytes. Each member ends with a checksum,
/// so what follows the last one says nothing about the text: some servers fill up with zeros there.
#[must_use]
pub fn gunzip(data: &[u8], most: usize) -> (Vec<u8>, DecodeEnd) {
    let (mut made, mut rest) = (Vec::new(), data);
    let end = loop {
        let mut member = flate2::bufread::GzDecoder::new(rest);
        let read = read_bounded(&mut member, most, &mut made);
        rest = member.into_inner();
        if read != DecodeEnd::Whole || !is_gzip(rest) {
            break read;
        }
    };
    made.truncate(most);
    (made, end)
}

/// Undoes brotli (RFC 7932). Makes at most `most` bytes.
#[must_use]
pub fn unbrotli(data: &[u8], most: usize) -> (Vec<u8>, DecodeEnd) {
    let mut made = Vec::new();
    let decoder = brotli_decompressor::Decompressor::new(data, CHUNK);
    let end = read_bounded(decoder, most, &mut made);
    made.truncate(most);
    (made, end)
}

/// Adds what a decoder makes, until there are more than `most` bytes.
fn read_bounded(decoder: impl Read, most: usize, made: &mut Vec<u8>) -> DecodeEnd {
    let room = (most.saturating_sub(made.len()) as u64).saturating_add(1);
    let read = decoder.take(room).read_to_end(made);
    match read {
        _ if made.len() > most => DecodeEnd::Bound,
        Ok(_) => DecodeEnd::Whole,
        Err(_) => DecodeEnd::Broken,
    }
}

/// Undoes zlib (RFC 1950), or deflate (RFC 1951) where the header of zlib is missing. Makes at most `most` bytes.
#[must_use]
pub fn inflate(data: &[u8], most: usize) -> (Vec<u8>, DecodeEnd) {
    let has_header = matches!(data, [first, second, ..]
        if first & 0x0f == 8 && u16::from_be_bytes([*first, *second]) % 31 == 0);
    deflated(data, most, has_header)
}

/// The reader of the library does not notice that the data is cut.
fn deflated(data: &[u8], most: usize, has_header: bool) -> (Vec<u8>, DecodeEnd) {
    /// The first room for what is made, in bytes; it grows with that.
    const FIRST: usize = 16 * 1024;
    let mut decoder = Decompress::new(has_header);
    let mut made: Vec<u8> = Vec::new();
    let end = loop {
        if made.len() == made.capacity() {
            let added_room = made.len().clamp(FIRST, most.saturating_add(1).max(FIRST));
            made.reserve_exact(added_room);
        }
        let before = (decoder.total_in(), made.len());
        let read = usize::try_from(before.0).unwrap_or(usize::MAX);
        let rest = data.get(read..).unwrap_or_default();
        match decoder.decompress_vec(rest, &mut made, FlushDecompress::None) {
            _ if made.len() > most => break DecodeEnd::Bound,
            Ok(Status::StreamEnd) => break DecodeEnd::Whole,
            Ok(_) if (decoder.total_in(), made.len()) != before => {}
            Ok(_) | Err(_) => break DecodeEnd::Broken,
        }
    };
    made.truncate(most);
    (made, end)
}

/// The first file of an archive (APPNOTE.TXT of PKWARE, section 4.3.7), as Spring's `ZipPostProcessor` writes one.
#[must_use]
pub(super) fn unzip(data: &[u8], most: usize) -> (Vec<u8>, DecodeEnd) {
    let short = |at: usize| match data.get(at..at + 2) {
        Some(&[low, high]) => Some(usize::from(u16::from_le_bytes([low, high]))),
        _ => None,
    };
    let first_file = || {
        let (method, name, extra) = (short(8)?, short(26)?, short(28)?);
        let deflate = 8;
        let file = data.get(30 + name + extra..)?;
        (method == deflate).then_some(file)
    };
    match first_file() {
        Some(file) => deflated(file, most, false),
        None => (Vec::new(), DecodeEnd::Broken),
    }
}

pub(super) fn is_gzip(data: &[u8]) -> bool {
    data.starts_with(b"\x1f\x8b\x08")
}

/// Whether it begins with the header of zlib that all encoders write, for the largest window. No JSON begins with an
/// `x`.
pub(super) fn is_zlib(data: &[u8]) -> bool {
    matches!(data, [0x78, second, ..] if u16::from_be_bytes([0x78, *second]).is_multiple_of(31))
}

pub(super) fn is_zip(data: &[u8]) -> bool {
    data.starts_with(b"PK\x03\x04")
}
