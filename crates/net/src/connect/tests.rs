//! An address that does not answer delays no connection to the others.

use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

use super::*;

/// An address that answers no new connection: packets to it are lost.
async fn silent() -> (SocketAddr, impl Sized) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(connected) = timeout(NEXT_ADDRESS, TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    (address, (listener, waiting))
}

#[tokio::test]
async fn an_address_that_says_nothing_does_not_keep_the_others_waiting() {
    let (silent, _held) = silent().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let answers = listener.local_addr().unwrap();
    let bound = Duration::from_secs(30);
    let refuses = {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
        gone.local_addr().unwrap()
    };
    for addresses in [
        vec![silent, answers],
        vec![silent, refuses, silent, answers],
        vec![refuses, answers],
    ] {
        let stream = timeout(bound, first_stream(&addresses)).await.unwrap();
        assert_eq!(stream.unwrap().peer_addr().unwrap(), answers);
    }
    let why = first_stream(&[refuses, refuses]).await.unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::ConnectionRefused);
    assert!(first_stream(&[]).await.is_err());
}
