//! A proxy is asked for a connection, and its refusal is reported.

use std::net::Ipv4Addr;

use tokio::net::TcpListener;

use super::*;

const REQUEST: &[u8] = b"CONNECT api.example:443 HTTP/1.1\r\nHost: api.example:443\r\n\r\n";

/// A proxy that was asked, and a proxy's end of the connection that has sent these bytes and no more.
async fn asked(parts: &[&[u8]]) -> (Result<(), TunnelError>, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let proxy = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; REQUEST.len()];
        stream.read_exact(&mut request).await.unwrap();
        assert_eq!(request, REQUEST);
        stream.set_nodelay(true).unwrap();
        for part in parts {
            stream.write_all(part).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    let client = async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        (open(&mut stream, REQUEST).await, stream)
    };
    tokio::join!(client, proxy).0
}

async fn left(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// A server of HTTP/2 without TLS says its settings at once.
#[tokio::test]
async fn what_a_server_says_first_is_not_taken() {
    let whole: &[u8] =
        b"HTTP/1.0 200 Connection established\r\nVia: 1.1 proxy\r\n\r\n\0\0\x12\x04settings";
    for cut in 1..whole.len() {
        let (first, rest) = whole.split_at(cut);
        let (opened, stream) = asked(&[first, rest]).await;
        opened.unwrap();
        assert_eq!(left(stream).await, b"\0\0\x12\x04settings");
    }
    let (opened, stream) = asked(&[whole]).await;
    opened.unwrap();
    assert_eq!(left(stream).await, b"\0\0\x12\x04settings");
}

/// Squid's and tinyproxy's words, among others.
#[tokio::test]
async fn a_refusal_is_said_with_its_status() {
    let long = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &[b'x'; MAX_ANSWER]].concat();
    for (answer, said) in [
        (
            b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n".as_slice(),
            "it asks for another user and password (407 Proxy Authentication Required)",
        ),
        (
            b"HTTP/1.1 403 Filtered\r\nServer: tinyproxy/1.11.1\r\n\r\n<html>",
            "it refuses this host or port (403 Forbidden)",
        ),
        (
            b"HTTP/1.1 503 Service Unavailable\r\nX-Squid-Error: ERR_CONNECT_FAIL 111\r\n\r\n",
            "it does not reach the server (503 Service Unavailable)",
        ),
        (
            b"HTTP/1.1 404 \r\n\r\n",
            "it opens no connection (404 Not Found)",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "its answer is no HTTP"),
        (
            b"HTTP/1.1 200 OK\r\n",
            "connection closed while it was opened",
        ),
        (b"", "connection closed while it was opened"),
        (&long, "its answer is no HTTP"),
    ] {
        let (opened, _) = asked(&[answer]).await;
        assert_eq!(opened.unwrap_err().to_string(), said);
    }
}
