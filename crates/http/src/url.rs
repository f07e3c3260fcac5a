//! Where a call goes: a fixed URL, or one made from the message within bounds.
//!
//! If scheme and host are complete before the first template, no message can change them, and
//! connections can be opened ahead of time.

use http::uri::{Authority, Scheme};
use http::{HeaderValue, Uri};
use percent_encoding::percent_decode_str;

use super::fields::compile;
use super::hosts::{AllowedHosts, usual_port};
use sluiced_net::dial::Misconfigured;
use sluiced_ports::downstream::UnfitReason;
use sluiced_template::{Template, Templates, first_tag};

/// A configured URL.
pub(super) enum Url {
    Fixed(Uri),
    Made {
        template: Template,
        /// Scheme and host, if both stand before the first template.
        origin: Option<Uri>,
        /// Where it may lead to otherwise.
        allowed: AllowedHosts,
    },
}

impl Url {
    /// Reads a URL or compiles its template.
    pub(super) fn new(
        text: &str,
        allowed: &[String],
        templates: &mut Templates,
    ) -> Result<Self, Misconfigured> {
        let wrong = |why: &str| Misconfigured::new("url", why);
        let Some(tag) = first_tag(text) else {
            let uri: Uri = text
                .parse()
                .map_err(|_| wrong("is no URL; write one such as https://api.example.com/send"))?;
            check_target(&uri).map_err(wrong)?;
            return Ok(Self::Fixed(uri));
        };
        let template = compile(templates, "url", "url", text)?;
        let origin = origin_before(text, tag);
        if let Some(uri) = &origin {
            check_target(uri).map_err(wrong)?;
        }
        if origin.is_none() && allowed.is_empty() {
            return Err(wrong("has a host from a message; write allowed_hosts"));
        }
        let allowed = AllowedHosts::new(allowed);
        Ok(Self::Made {
            template,
            origin,
            allowed,
        })
    }
}

/// Scheme and host, if both are complete before the first template at `tag`.
fn origin_before(text: &str, tag: usize) -> Option<Uri> {
    let (scheme, behind_scheme) = text.get(..tag)?.split_once("://")?;
    // Without a delimiter after it the host could go on in the template.
    let end = behind_scheme.find(['/', '?', '#'])?;
    Uri::builder()
        .scheme(scheme.parse::<Scheme>().ok()?)
        .authority(behind_scheme.get(..end)?.parse::<Authority>().ok()?)
        .path_and_query("/")
        .build()
        .ok()
}

/// Checks that a call can be made to a URL.
fn check_target(uri: &Uri) -> Result<(), &'static str> {
    if uri.scheme() != Some(&Scheme::HTTP) && uri.scheme() != Some(&Scheme::HTTPS) {
        return Err("must start with http:// or https://");
    }
    let Some(authority) = uri.authority() else {
        return Err("has no host");
    };
    if authority.host().is_empty() {
        return Err("has no host");
    }
    if authority.as_str().contains('@') {
        return Err("has credentials; they belong into `auth`");
    }
    Ok(())
}

/// A URL made from a message. `.` and `..` in its path are refused, also if encoded: servers
/// resolve them, and a message must not choose a resource that the template does not allow.
pub(super) fn checked_url(text: &str) -> Result<Uri, UnfitReason> {
    let undecodable = |why: &str| UnfitReason {
        what: "url".to_owned(),
        why: why.to_owned(),
    };
    if !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(undecodable(
            "has a character that must be encoded; use `| urlencode`",
        ));
    }
    let uri: Uri = text.parse().map_err(|_| undecodable("is no URL"))?;
    check_target(&uri).map_err(undecodable)?;
    let mut path = uri.path().to_owned();
    for _ in 0..DECODED {
        if path
            .split(['/', '\\'])
            // Java's servers cut parameters off a segment before they resolve it: `..;a=b` is `..` to them.
            .any(|segment| matches!(segment.split(';').next(), Some("." | "..")))
        {
            return Err(undecodable("has `.` or `..` as a segment of its path"));
        }
        // Bytes that are no UTF-8 then are no dots either.
        path = percent_decode_str(&path).decode_utf8_lossy().into_owned();
    }
    Ok(uri)
}

/// How many levels of encoding are decoded: one for the server, one for a proxy before it, two to spare.
const DECODED: usize = 4;

/// `host`, with the port unless it is the scheme's own.
pub(super) fn host_header(uri: &Uri) -> Option<HeaderValue> {
    let host = uri.host()?;
    match uri.port_u16() {
        Some(port) if port != usual_port(uri) => {
            HeaderValue::try_from(format!("{host}:{port}")).ok()
        }
        _ => HeaderValue::from_str(host).ok(),
    }
}
