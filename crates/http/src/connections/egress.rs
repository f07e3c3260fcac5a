//! Connections of TCP to a downstream, directly or through a proxy.
//!
//! Problem: many networks let nothing out but through an HTTP proxy, and a proxy that forwarded requests would decide
//! when they leave.
//!
//! So the proxy is asked for a connection (CONNECT, RFC 9110, section 9.3.6) and carries bytes from then on: TLS, warm
//! connections and checks work as without it. The environment (`HTTPS_PROXY`) is not read, because what stands in no
//! configuration would change where calls go. The proxy's password is read again for each connection.

mod tunnel;

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{error, fmt, io};

use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use secrecy::ExposeSecret as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_service::Service;
use url::Url;

use self::tunnel::TunnelError;
use super::connect::place;
use crate::fields::basic;
use crate::hosts::AllowedHosts;
use sluiced_net::connect::{Resolver, Secret};
use sluiced_net::dial::{Misconfigured, connect_detail};
use sluiced_settings::types::Http;

/// Why no connection was opened.
pub(super) type ConnectError = Box<dyn error::Error + Send + Sync>;

/// Opens connections of TCP.
#[derive(Clone, Debug)]
pub(crate) struct Egress {
    tcp: HttpConnector<Dns>,
    proxy: Option<Proxy>,
    /// How long a proxy may take.
    timeout: Duration,
}

/// Name resolution in the form that the HTTP client needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Dns {
    resolver: Resolver,
    /// Where hosts are from messages: which addresses may be used.
    allowed: Option<AllowedHosts>,
}

impl Dns {
    pub(super) fn new(allowed: Option<AllowedHosts>) -> Self {
        Self {
            resolver: Resolver::default(),
            allowed,
        }
    }
}

/// The proxy of a downstream.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    /// Which hosts are called through it.
    matcher: Arc<Matcher>,
    user: String,
    password: Option<Secret>,
}

/// The way to a host through a proxy.
#[derive(Debug)]
pub(crate) struct ProxyWay {
    pub(crate) place: Uri,
    /// The user and the password of this moment.
    authorization: Option<HeaderValue>,
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
    pub(crate) fn new(
        http: &Http,
        password: Option<&Secret>,
    ) -> Result<Option<Self>, Misconfigured> {
        http.proxy
            .as_ref()
            .map(|text| Self::at(text, &http.no_proxy, password))
            .transpose()
    }

    fn at(
        text: &str,
        not_for: &[String],
        password: Option<&Secret>,
    ) -> Result<Self, Misconfigured> {
        let wrong = |why: &dyn fmt::Display| Misconfigured::new("proxy", why);
        let url = Url::parse(text).map_err(|why| wrong(&why))?;
        let user = percent_decode_str(url.username()).decode_utf8_lossy();
        let mut place = url.clone();
        let has_none = place.set_username("").is_ok();
        if !has_none || place.as_str().parse::<Uri>().is_err() {
            return Err(wrong(&"this is no address of a proxy"));
        }
        let matcher = Matcher::builder().all(place.as_str());
        Ok(Self {
            matcher: Arc::new(matcher.no(not_for.join(",")).build()),
            user: user.into_owned(),
            password: password.cloned(),
        })
    }

    /// The way to a host. `None`: it is called directly.
    pub(crate) fn way_to(&self, to: &Uri) -> Option<ProxyWay> {
        let found = self.matcher.intercept(to)?;
        let password = self.password.as_ref();
        Some(ProxyWay {
            place: found.uri().clone(),
            authorization: password
                .map(|password| basic(&self.user, password.get().expose_secret())),
        })
    }
}

impl ProxyWay {
    /// The request for a connection.
    pub(crate) fn request(&self, host: &str, port: u16) -> Vec<u8> {
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
        let authorization = self.authorization.as_ref();
        if let Some(value) = authorization.and_then(|value| value.to_str().ok()) {
            request += &format!("Proxy-Authorization: {value}\r\n");
        }
        request += "\r\n";
        request.into_bytes()
    }

    fn failed(&self, why: String) -> ProxyError {
        let place = self.place.authority().map(ToString::to_string);
        ProxyError {
            place: place.unwrap_or_default(),
            why,
        }
    }
}

impl Egress {
    pub(super) const fn new(
        tcp: HttpConnector<Dns>,
        proxy: Option<Proxy>,
        timeout: Duration,
    ) -> Self {
        Self {
            tcp,
            proxy,
            timeout,
        }
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
        let Some(through) = self.proxy.as_ref().and_then(|proxy| proxy.way_to(&to)) else {
            let connecting = self.tcp.call(to);
            return Box::pin(async move { Ok(connecting.await?) });
        };
        let connecting = self.tcp.call(through.place.clone());
        let bound = self.timeout;
        Box::pin(async move {
            let opening = async {
                let mut stream = connecting.await.map_err(|error| connect_detail(&error))?;
                let (host, port) = place(&to).ok_or("the URL has no host")?;
                let request = through.request(host, port);
                let opened = tunnel::open(stream.inner_mut(), &request).await;
                opened.map_err(|error: TunnelError| error.to_string())?;
                Ok(stream)
            };
            let late = |_| Err(format!("it does not answer within {bound:?}"));
            let opened = timeout(bound, opening).await.unwrap_or_else(late);
            opened.map_err(|why| through.failed(why).into())
        })
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
        let Self { resolver, allowed } = self.clone();
        Box::pin(async move {
            let mut addresses = resolver.addresses(name.as_str()).await?;
            if let Some(allowed) = allowed {
                addresses.retain(|address| allowed.may_connect(name.as_str(), *address));
                if addresses.is_empty() {
                    let why = "the host's name leads to an address that is not public, and allowed_hosts does not name the host itself";
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
                }
            }
            // The client sets the port.
            let places: Vec<_> = addresses
                .into_iter()
                .map(|ip| SocketAddr::new(ip, 0))
                .collect();
            Ok(places.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;

    fn proxy(url: &str, password: Option<&str>, not_for: &[&str]) -> Proxy {
        let secret = password.map(|text| Secret::from(SecretString::from(text.to_owned())));
        let not_for: Vec<_> = not_for.iter().map(|text| (*text).to_owned()).collect();
        Proxy::at(url, &not_for, secret.as_ref()).expect("it is good")
    }

    #[test]
    fn hosts_that_are_excepted_are_called_directly() {
        let proxy = proxy(
            "http://proxy:3128",
            None,
            &["internal.example", "10.0.0.0/8"],
        );
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
            let found = proxy.way_to(&to).map(|found| found.place.to_string());
            assert_eq!(found, through.then(|| "http://proxy:3128/".to_owned()));
        }
    }

    /// A proxy with a wrong address must not lead to calls without a proxy.
    #[test]
    fn a_proxy_that_cannot_be_asked_is_an_error() {
        let wrong = Proxy::at("http://{proxy}:3128", &[], None).expect_err("no host");
        assert_eq!(wrong.key, "proxy");
    }

    #[test]
    fn the_password_is_sent_as_it_is() {
        let to = "https://api.example".parse().expect("a URI");
        let proxy = proxy("http://app%40corp@proxy:3128", Some("p:/@%41"), &[]);
        let found = proxy.way_to(&to).expect("a proxy");
        // app@corp:p:/@%41
        let sent = String::from_utf8(found.request("h", 443)).expect("text");
        assert!(sent.contains("\r\nProxy-Authorization: Basic YXBwQGNvcnA6cDovQCU0MQ==\r\n"));
        assert!(!format!("{found:?} {proxy:?}").contains("p:/@"));
    }
}
