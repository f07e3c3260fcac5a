use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use tokio::net::{TcpListener, TcpSocket};
use tokio::time::timeout;

use super::*;

static ASKED: AtomicUsize = AtomicUsize::new(0);
static GATE: Mutex<()> = Mutex::new(());

/// Hangs until the gate is open.
fn hangs(_host: &str) -> io::Result<Vec<IpAddr>> {
    ASKED.fetch_add(1, Ordering::SeqCst);
    drop(GATE.lock().unwrap());
    Ok(vec![IpAddr::from([10, 0, 0, 1])])
}

#[tokio::test]
#[allow(clippy::await_holding_lock, reason = "the lookup is to hang meanwhile")]
async fn a_lookup_that_hangs_takes_one_thread_however_often_it_is_asked() {
    let resolver = Resolver::with(hangs);
    let shut = GATE.lock().unwrap();
    for _ in 0..3 {
        let asking = (0..100).map(|_| resolver.addresses("hung.example"));
        let asked = timeout(Duration::from_millis(20), join_all(asking)).await;
        assert!(asked.is_err());
    }
    assert_eq!(lock(&resolver.under_way).len(), 1);
    for n in 1..MOST {
        let name = format!("{n}.example");
        assert!(resolver.ask(&name).await.is_ok());
    }
    let one_more = resolver.ask("one.more.example");
    let waits = timeout(Duration::from_millis(20), one_more).await;
    assert!(waits.is_err(), "it waits for its place");
    assert_eq!(lock(&resolver.under_way).len(), MOST, "bounded");
    let own = resolver.addresses("192.0.2.7").await.unwrap();
    assert_eq!(own, [IpAddr::from([192, 0, 2, 7])], "no lookup");
    drop(shut);
    let found = resolver.addresses("hung.example").await.unwrap();
    assert_eq!(found, [IpAddr::from([10, 0, 0, 1])]);
    let found = resolver.addresses("one.more.example").await.unwrap();
    assert_eq!(found, [IpAddr::from([10, 0, 0, 1])], "and gets it");
    assert!(ASKED.load(Ordering::SeqCst) <= MOST + 2);
}

#[tokio::test]
async fn a_name_that_is_not_known_is_an_error() {
    let resolver = Resolver::with(|_| Err(io::Error::other("no such name")));
    let error = resolver.addresses("nowhere.example").await.unwrap_err();
    assert!(error.to_string().contains("no such name"));
}

mod secret {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn it_is_read_each_time_and_the_last_good_one_stays() {
        let file = Arc::new(Mutex::new(Ok("new")));
        let read = {
            let file = Arc::clone(&file);
            move || {
                let read = *file.lock().unwrap();
                read.map(SecretString::from).map_err(str::to_owned)
            }
        };
        let secret = Secret::rotating(SecretString::from("old"), read);
        assert_eq!(secret.last().expose_secret(), "old");
        assert_eq!(secret.get().expose_secret(), "new");
        *file.lock().unwrap() = Err("gone");
        assert_eq!(secret.get().expose_secret(), "new");
        *file.lock().unwrap() = Ok("newer");
        assert_eq!(secret.get().expose_secret(), "newer");
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }
}

/// It takes connections and answers none: packets to it are lost.
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
