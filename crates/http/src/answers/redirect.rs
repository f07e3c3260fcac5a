//! Where a redirect leads, for a person: it is not followed, and the URL of the configuration is to be changed.
//!
//! A `Location` may repeat what is secret or belongs to the message: credentials, the query, a token or a phone number
//! in the path. So only scheme, host and path are shown, long parts of the path are left out, and where the URL is made
//! from the message, the whole path.

use http::header::LOCATION;
use http::{HeaderMap, StatusCode, Uri};
use url::Url;

/// A part of a path that is longer may be a token.
const LONGEST_PART: usize = 20;
/// What is left of one that is shown.
const MOST_SHOWN: usize = 200;

/// ` to https://host/path`, if an answer is a redirect that says where to. `from` is what was called;
/// `is_fixed`: the same for every message.
pub(super) fn leads_to(
    status: StatusCode,
    headers: &HeaderMap,
    from: &Uri,
    is_fixed: bool,
) -> Option<String> {
    let location = headers.get(LOCATION).filter(|_| status.is_redirection())?;
    let base = Url::parse(&from.to_string()).ok()?;
    let to = base.join(location.to_str().ok()?.trim()).ok()?;
    let host = to.host_str()?;
    let port = to.port().map(|port| format!(":{port}")).unwrap_or_default();
    let path = if is_fixed {
        shown(to.path())
    } else {
        "/…".to_owned()
    };
    let text = format!(" to {}://{host}{port}{path}", to.scheme());
    Some(text.chars().take(MOST_SHOWN).collect())
}

fn shown(path: &str) -> String {
    let part = |part: &str| match part.len() {
        ..=LONGEST_PART => part.to_owned(),
        _ => "…".to_owned(),
    };
    let parts: Vec<_> = path.split('/').map(part).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(location: &str, from: &str, is_fixed: bool) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(LOCATION, location.parse().expect("a header"));
        let from = from.parse().expect("a URL");
        leads_to(StatusCode::PERMANENT_REDIRECT, &headers, &from, is_fixed)
    }

    #[test]
    fn it_says_where_to_without_what_is_secret() {
        let from = "http://api.example/send?api_key=k";
        for (location, shown) in [
            (
                "https://api.example/send?api_key=k",
                " to https://api.example/send",
            ),
            (
                "https://user:pass@other.example:8443/v2/send#x",
                " to https://other.example:8443/v2/send",
            ),
            ("/v2/send", " to http://api.example/v2/send"),
            ("v2", " to http://api.example/v2"),
            ("//other.example", " to http://other.example/"),
            (
                "/bot123456:ABC-DEF1234ghIkl-zyx57W2v1u123ew11/sendMessage",
                " to http://api.example/…/sendMessage",
            ),
        ] {
            assert_eq!(
                to(location, from, true).as_deref(),
                Some(shown),
                "{location}"
            );
        }
        let made = to(
            "https://new.example/to/%2B49170",
            "http://h/to/%2B49170",
            false,
        );
        assert_eq!(made.as_deref(), Some(" to https://new.example/…"));
    }

    #[test]
    fn what_says_nothing_shows_nothing() {
        let from = "http://api.example/send";
        for location in ["http://", "mailto:a@b.example", "http://[::1"] {
            assert_eq!(to(location, from, true), None, "{location}");
        }
        let mut headers = HeaderMap::new();
        let from = from.parse().expect("a URL");
        assert_eq!(leads_to(StatusCode::FOUND, &headers, &from, true), None);
        headers.insert(LOCATION, "/made/1".parse().expect("a header"));
        assert_eq!(leads_to(StatusCode::CREATED, &headers, &from, true), None);
    }
}
