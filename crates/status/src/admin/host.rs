//! Which names of a host the admin listener answers to.
//!
//! Problem: a web page in the browser of an operator may ask any address that its own name leads to, and that
//! name may lead to loopback a moment later (DNS rebinding). To the browser the answer belongs to that page,
//! which could so read the state of the fleet. The request has the page's name in `Host`, so only names that
//! such a page cannot have are answered: addresses, names of loopback, that of `admin.listen` and those of
//! `admin.hosts`. A request without a name is not from a browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::HOST;
use http::uri::Authority;

/// Shown to a client that used another name.
const REFUSED: &str = "this name is not answered, because any web page could have it (DNS rebinding): use the address, or write the name in `admin.hosts`\n";

/// The names that are answered, in lower case.
#[derive(Clone, Debug, Default)]
pub(super) struct HostNames(Arc<[Box<str>]>);

impl HostNames {
    /// The host of `listen` (`host:port`), and the names of `admin.hosts`.
    pub(super) fn new(listen: &str, more: &[String]) -> Self {
        let own_host = listen.rsplit_once(':').map(|(host, _)| host);
        let all = own_host.into_iter().chain(more.iter().map(String::as_str));
        Self(all.map(|name| plain(name).into()).collect())
    }

    /// Whether a request to `host`, without a port, is answered.
    fn answers(&self, host: &str) -> bool {
        let host = plain(host);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        address.parse::<IpAddr>().is_ok()
            || host == "localhost"
            || host.ends_with(".localhost")
            || self.0.iter().any(|allowed| **allowed == *host)
    }

    /// Whether each name in a request is answered. Text that is no name is none that is known.
    fn answers_all(&self, request: &Request) -> bool {
        let in_line = request.uri().authority().map(Authority::host);
        let is_known = |value: &http::HeaderValue| {
            let authority = value.to_str().ok()?.parse::<Authority>().ok()?;
            Some(self.answers(authority.host()))
        };
        let mut headers = request.headers().get_all(HOST).iter();
        in_line.is_none_or(|host| self.answers(host))
            && headers.all(|value| value.is_empty() || is_known(value).unwrap_or(false))
    }
}

/// A name in its one form: names are not case-sensitive, and may end with a dot.
fn plain(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Answers only requests to a known name.
pub(super) async fn only_known(
    State(hosts): State<HostNames>,
    request: Request,
    next: Next,
) -> Response {
    if hosts.answers_all(&request) {
        next.run(request).await
    } else {
        (StatusCode::MISDIRECTED_REQUEST, REFUSED).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_loopback_and_written_names_are_answered_and_no_others() {
        let hosts = HostNames::new("admin.internal:9464", &["Sluiced.example.com.".to_owned()]);
        for known in [
            "127.0.0.1",
            "10.1.2.3",
            "[::1]",
            "[fd00::1]",
            "localhost",
            "LOCALHOST.",
            "a.localhost",
            "admin.internal",
            "sluiced.example.com",
            "sluiced.EXAMPLE.com.",
        ] {
            assert!(hosts.answers(known), "{known}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "notlocalhost",
            "example.com",
            "[::1].evil.example",
        ] {
            assert!(!hosts.answers(other), "{other}");
        }
    }

    #[test]
    fn every_name_in_a_request_counts() {
        let hosts = HostNames::new("127.0.0.1:9464", &[]);
        let request = |uri: &str, names: &[&str]| {
            let mut request = http::Request::get(uri);
            for name in names {
                request = request.header(HOST, *name);
            }
            request.body(axum::body::Body::empty()).expect("a request")
        };
        for (uri, names, answered) in [
            ("/", &[][..], true),
            ("/", &["127.0.0.1:9464"], true),
            ("/", &["evil.example:9464"], false),
            ("/", &["localhost", "evil.example"], false),
            ("http://evil.example/", &["localhost"], false),
            ("http://localhost/", &["localhost"], true),
            ("/", &["no name"], false),
        ] {
            let said = hosts.answers_all(&request(uri, names));
            assert_eq!(said, answered, "{uri} {names:?}");
        }
    }
}
