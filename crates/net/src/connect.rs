//! Connecting to a server: the addresses of its host (`resolver`), the stream to it (`stream`), TLS (`tls`), secrets
//! (`secret`), and what caused an error (`causes`).

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::timeout;

pub(crate) use self::causes::causes;
pub use self::causes::find;
pub use self::resolver::Resolver;
pub use self::secret::Secret;
pub use self::stream::{Duplex, ServerStream, secured};
pub use self::tls::{ClientCertificate, Tls, TlsError, client_config};

mod causes;
mod resolver;
mod secret;
mod stream;
mod tls;

/// For this long an address may say nothing before the next one is tried beside it (RFC 8305, section 5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The stream to the first of these addresses that answers. One that says nothing does not keep the others waiting. Has
/// no bound in time.
///
/// # Errors
/// When all of them refuse, or there is none.
pub async fn first_stream(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let (mut untried, mut in_flight) = (addresses.iter(), FuturesUnordered::new());
    let mut failure = io::Error::other("its name has no address");
    loop {
        let begun = untried.next().map(TcpStream::connect);
        let wait = begun.as_ref().map_or(Duration::MAX, |_| NEXT_ADDRESS);
        in_flight.extend(begun);
        // The next one begins at once if one of these fails.
        match timeout(wait, in_flight.next()).await {
            Ok(Some(Ok(stream))) => return Ok(stream),
            Ok(Some(Err(error))) => failure = error,
            Ok(None) => return Err(failure),
            Err(_) => {}
        }
    }
}

/// Why a connection could not be opened, for a person. `None`: the error's own text says it as well.
#[must_use]
pub fn why(error: &io::Error) -> Option<String> {
    tls::words::why(error).or_else(|| {
        let reason = match error.kind() {
            io::ErrorKind::ConnectionRefused => "connection refused",
            io::ErrorKind::ConnectionReset => "connection reset while it was opened",
            io::ErrorKind::UnexpectedEof => "connection closed while it was opened",
            _ => return None,
        };
        Some(reason.to_owned())
    })
}

#[cfg(test)]
mod tests;
