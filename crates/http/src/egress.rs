//! Connections of TCP to a downstream, directly or through a proxy.
//!
//! Problem: many networks let nothing out but through an HTTP proxy, and a proxy that forwarded requests would decide
//! when they leave.
//!
//! So the proxy is asked for a connection (CONNECT, RFC 9110, section 9.3.6) and carries bytes from then on: TLS, warm
//! connections and gates work as without it. The environment (`HTTPS_PROXY`) is not read, because what stands in no
//! configuration would change where calls go. The proxy's password is read again for each connection.

use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::{error, io};

use futures::future::BoxFuture;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use secrecy::ExposeSecret as _;
use tokio::net::TcpStream;
use tower_service::Service;
use url::Url;

use sluiced_ports::connect::{Resolver, Secret};
use sluiced_ports::dial::{Misconfigured, connect_detail, find};
use sluiced_settings::types::Http;

type ConnectError = Box<dyn error::Error + Send + Sync>;

/// Opens connections of TCP.
#[derive(Clone, Debug)]
pub(super) struct Egress {
    tcp: HttpConnector<Dns>,
    proxy: Option<Proxy>,
}

/// Name resolution in the form that the HTTP client needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Dns(Resolver);

/// The proxy of a downstream.
#[derive(Clone, Debug)]
pub(super) struct Proxy {
    url: Url,
    password: Option<Secret>,
    /// Hosts that are called without it.
    not_for: String,
}

/// Why a proxy opened no connection. Nothing was sent to the downstream.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the proxy {place}: {why}")]
struct ProxyError {
    place: String,
    why: String,
}

impl Proxy {
    /// The proxy that settings name, if they name one.
    ///
    /// # Errors
    /// When it cannot be used.
    pub(super) fn new(
        http: &Http,
        password: Option<&Secret>,
    ) -> Result<Option<Self>, Misconfigured> {
        let Some(url) = &http.proxy else {
            return Ok(None);
        };
        Ok(Some(Self {
            url: Url::parse(url).map_err(|why| Misconfigured::new("proxy", why))?,
            password: password.cloned(),
            not_for: http.no_proxy.join(","),
        }))
    }

    /// The proxy for calls to `to`, with its password of this moment. `None`: they go directly.
    pub(super) fn of(&self, to: &Uri) -> Option<Intercept> {
        let mut url = self.url.clone();
        if let Some(password) = &self.password {
            // All other signs are encoded where they must be.
            let password = password.get().expose_secret().replace('%', "%25");
            url.set_password(Some(&password)).ok()?;
        }
        let matcher = Matcher::builder().all(url.as_str());
        matcher.no(self.not_for.as_str()).build().intercept(to)
    }
}

impl Egress {
    pub(super) const fn new(tcp: HttpConnector<Dns>, proxy: Option<Proxy>) -> Self {
        Self { tcp, proxy }
    }
}

impl Service<Uri> for Egress {
    type Response = TokioIo<TcpStream>;
    type Error = ConnectError;
    type Future = BoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.as_ref().and_then(|proxy| proxy.of(&to)) else {
            let connecting = self.tcp.call(to);
            return Box::pin(async move { Ok(connecting.await?) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.tcp.clone());
        if let Some(value) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(value.clone());
        }
        let connecting = tunnel.call(with_port(to));
        Box::pin(async move {
            let opened = connecting.await;
            opened.map_err(|error| refused(proxy.uri(), &error).into())
        })
    }
}

/// The request for a tunnel to `host`, as the client makes it.
pub(super) fn request(host: &str, port: u16, proxy: &Intercept) -> Vec<u8> {
    let host = if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    };
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(value) = proxy.basic_auth().and_then(|value| value.to_str().ok()) {
        request += &format!("Proxy-Authorization: {value}\r\n");
    }
    request += "\r\n";
    request.into_bytes()
}

/// With a port in any case: without one a tunnel would lead to that of TLS.
fn with_port(to: Uri) -> Uri {
    let (host, scheme) = (to.host().unwrap_or_default(), to.scheme_str());
    if to.port().is_some() || scheme != Some("http") {
        return to;
    }
    let authority = format!("{host}:80");
    let path = to.path_and_query().map_or("/", PathAndQuery::as_str);
    let with = Uri::builder().scheme("http").authority(authority);
    with.path_and_query(path).build().unwrap_or(to)
}

fn refused(proxy: &Uri, error: &(dyn error::Error + 'static)) -> ProxyError {
    let place = proxy.authority().map(ToString::to_string);
    // The client's own type is private: its text is all that tells these apart.
    let text = error.to_string();
    let why = if text.ends_with("proxy authorization required") {
        "it asks for another user and password (407)".to_owned()
    } else if text.ends_with("unsuccessful") {
        // Some proxies refuse a wrong password with 401 or 403.
        "it refuses the connection: the host, the port, or the user and password".to_owned()
    } else if find::<io::Error>(error).is_some() {
        connect_detail(error)
    } else {
        text
    };
    ProxyError {
        place: place.unwrap_or_default(),
        why,
    }
}

impl Service<Name> for Dns {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = self.0.clone();
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            // The client sets the port.
            let found: Vec<_> = found.into_iter().map(|ip| SocketAddr::new(ip, 0)).collect();
            Ok(found.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    fn proxy(url: &str, password: Option<&str>, not_for: &str) -> Proxy {
        let secret = password.map(|text| Secret::from(SecretString::from(text.to_owned())));
        Proxy {
            url: url.parse().expect("a URL"),
            password: secret,
            not_for: not_for.to_owned(),
        }
    }

    #[test]
    fn hosts_that_are_excepted_are_called_directly() {
        let proxy = proxy("http://proxy:3128", None, "internal.example,10.0.0.0/8");
        for (to, through) in [
            ("https://api.example/v1", true),
            ("http://api.example", true),
            ("https://internal.example", false),
            ("https://sms.internal.example:8443", false),
            ("https://notinternal.example", true),
            ("http://10.1.2.3:8080", false),
            ("http://11.1.2.3:8080", true),
        ] {
            let to = to.parse().expect("a URI");
            let found = proxy.of(&to).map(|found| found.uri().to_string());
            assert_eq!(found, through.then(|| "http://proxy:3128/".to_owned()));
        }
    }

    #[test]
    fn the_password_is_sent_as_it_is() {
        let to = "https://api.example".parse().expect("a URI");
        let proxy = proxy("http://app%40corp@proxy:3128", Some("p:/@%41"), "");
        let found = proxy.of(&to).expect("a proxy");
        // app@corp:p:/@%41
        let sent = found.basic_auth().expect("credentials");
        assert_eq!(sent, "Basic YXBwQGNvcnA6cDovQCU0MQ==");
        assert!(!format!("{found:?} {proxy:?}").contains("p:/@"));
    }

    #[test]
    fn a_tunnel_leads_to_the_port_of_the_scheme() {
        for (to, with) in [
            ("http://api.example/send", "http://api.example:80/send"),
            ("http://[::1]", "http://[::1]:80/"),
            (
                "http://api.example:8080/send",
                "http://api.example:8080/send",
            ),
            ("https://api.example/send", "https://api.example/send"),
        ] {
            let to = with_port(to.parse().expect("a URI"));
            assert_eq!(to.to_string(), with);
        }
    }
}
