//! SMPP against centres that a test writes: what is written, the outcome of answers and of no answer, and how
//! binds are kept.

mod calls;
mod library;
mod sessions;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sluiced_net::connect::Secret;
use sluiced_net::dial::Credentials;
use sluiced_pdu::{Command, CommandStatus, Message as Sms, frame, plain, response};
use sluiced_ports::clock;
use sluiced_ports::downstream::{Downstream as _, Facts, Judgement, LeaveBy, NotSent};
use sluiced_ports::message::Message;
use sluiced_settings::types::{Downstream, Smpp};
use sluiced_settings::{Extra, Needs, load_with};
use sluiced_smpp::SmppDownstream;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::BOUND;
use crate::support::machine;

const FACTS: Facts<'_> = Facts {
    route: "sms",
    attempt: 1,
    may_repeat: false,
    max_body: 1 << 20,
};

/// A listener that a test answers for.
struct Centre(TcpListener);

impl Centre {
    async fn new() -> Self {
        machine::share();
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    /// The next connection, bound.
    async fn bound(&self) -> Session<TcpStream> {
        let mut session = self.accepted().await;
        session.bind(CommandStatus::OK).await;
        session
    }

    async fn accepted(&self) -> Session<TcpStream> {
        let (stream, _) = timeout(BOUND, self.0.accept()).await.unwrap().unwrap();
        Session {
            stream,
            received: Vec::new(),
        }
    }
}

struct Session<T> {
    stream: T,
    received: Vec<u8>,
}

/// A PDU that came.
#[derive(Debug)]
struct Got {
    command: Command,
    status: CommandStatus,
    sequence: u32,
    body: Vec<u8>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Session<T> {
    /// The next PDU; `None`: the connection has ended.
    async fn next(&mut self) -> Option<Got> {
        loop {
            if let Some(pdu) = frame(&self.received).unwrap() {
                let got = Got {
                    command: pdu.command,
                    status: pdu.status,
                    sequence: pdu.sequence,
                    body: pdu.body.to_vec(),
                };
                self.received.drain(..16 + got.body.len());
                return Some(got);
            }
            let read = timeout(BOUND, self.stream.read_buf(&mut self.received));
            match read.await.expect("a PDU in time") {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn write(&mut self, pdu: &[u8]) {
        self.stream.write_all(pdu).await.unwrap();
    }

    async fn bind(&mut self, status: CommandStatus) {
        let got = self.next().await.expect("a bind");
        self.write(&response(got.command, status, got.sequence, "centre"))
            .await;
    }

    /// Sends a request without a body, and returns what comes next.
    async fn request(&mut self, command: Command, sequence: u32) -> Got {
        self.write(&plain(command, CommandStatus::OK, sequence))
            .await;
        self.next().await.expect("an answer")
    }

    /// A `submit_sm`, which is not answered yet.
    async fn submitted(&mut self) -> (u32, Sms) {
        let got = self.next().await.expect("a submit_sm");
        assert_eq!(got.command, Command::SUBMIT_SM, "{got:?}");
        (got.sequence, Sms::read(&got.body).unwrap())
    }

    async fn answer(&mut self, sequence: u32, status: CommandStatus, id: &str) {
        self.write(&response(Command::SUBMIT_SM, status, sequence, id))
            .await;
    }

    /// Nothing came, and nothing comes for a moment.
    async fn is_quiet(&mut self) -> bool {
        self.received.is_empty()
            && timeout(Duration::from_millis(100), self.next())
                .await
                .is_err()
    }
}

fn smpp(address: SocketAddr, keys: &str) -> Smpp {
    let scheme = if keys.contains("ca_file") {
        "smpps"
    } else {
        "smpp"
    };
    let text = format!(
        "limits.account.rate = \"1/1s\"\nservice.grace = \"1m\"\n[routes.sms]\nqueue = \"sms\"\nlimits = [\"account\"]\n\
         [routes.sms.downstream]\nkind = \"smpp\"\nurl = \"{scheme}://{address}\"\nsystem_id = \"account\"\n\
         password = \"secret\"\nsource = \"Test\"\ndestination = \"+4915112345678\"\ntext = \"{{{{ body.text }}}}\"\n\
         connect_timeout = \"10s\"\n{keys}\n"
    );
    let extra = Extra {
        name: "a test".to_owned(),
        text,
    };
    let loaded = load_with(Needs::All, &[], Some(extra), std::iter::empty());
    let mut routes = loaded
        .unwrap_or_else(|faults| panic!("{faults}"))
        .settings
        .routes;
    match routes.remove("sms").unwrap().downstream {
        Downstream::Smpp(smpp) => *smpp,
        Downstream::Http(_) => panic!("another kind"),
    }
}

fn downstream(centre: &Centre, keys: &str) -> Arc<SmppDownstream> {
    let smpp = smpp(centre.address(), keys);
    let password = smpp.password.clone().unwrap();
    let credentials = Credentials {
        secret: Some(Secret::from(password)),
        ..Credentials::default()
    };
    Arc::new(SmppDownstream::new(&smpp, &credentials, true, None, None).unwrap())
}

fn message(text: &str) -> Message {
    Message {
        body: serde_json::json!({ "text": text }).to_string().into(),
        made_id: Some("m-1".to_owned()),
        ..Message::default()
    }
}

/// A call that may leave for this long.
fn call_within(
    downstream: &Arc<SmppDownstream>,
    text: &str,
    open: Duration,
) -> JoinHandle<Result<Judgement, NotSent>> {
    let call = downstream.prepare(&message(text), FACTS).unwrap();
    let leave_by = LeaveBy::new(clock::now() + open);
    tokio::spawn(async move {
        timeout(BOUND * 2, call.send(leave_by))
            .await
            .expect("it ends")
    })
}

/// A call with all the time that it needs.
fn call(downstream: &Arc<SmppDownstream>, text: &str) -> JoinHandle<Result<Judgement, NotSent>> {
    call_within(downstream, text, BOUND)
}

async fn judged(called: JoinHandle<Result<Judgement, NotSent>>) -> Judgement {
    called.await.unwrap().expect("it left in time")
}

/// A downstream with these keys that is bound to a centre.
async fn ready(keys: &str) -> (Centre, Arc<SmppDownstream>, Session<TcpStream>) {
    let centre = Centre::new().await;
    let downstream = downstream(&centre, keys);
    let (warm, session) = tokio::join!(downstream.warm(BOUND), centre.bound());
    warm.unwrap();
    (centre, downstream, session)
}
