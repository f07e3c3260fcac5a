//! Header fields and templates of a request, as the configuration and messages have them: checked, with their place in
//! each error.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method};

use sluiced_net::dial::Misconfigured;
use sluiced_ports::downstream::UnfitReason;
use sluiced_settings::types::FRAMING;
use sluiced_template::{Template, Templates};

/// The name of a header that may be set, configured as `key`.
pub(crate) fn header_name(key: &str, name: &str) -> Result<HeaderName, Misconfigured> {
    let header = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| Misconfigured::new(key, "is no name of a header"))?;
    if FRAMING.contains(&header.as_str()) {
        let why = "belongs to the connection and cannot be set";
        return Err(Misconfigured::new(key, why));
    }
    Ok(header)
}

/// The value of a header that was made from a message.
pub(crate) fn header_value(name: &HeaderName, text: String) -> Result<HeaderValue, UnfitReason> {
    HeaderValue::from_maybe_shared(Bytes::from(text)).map_err(|_| UnfitReason {
        what: format!("header {name}"),
        why: "has a control character".to_owned(),
    })
}

/// Compiles the template configured as `key`; errors about a message name it `what`.
pub(crate) fn compile(
    templates: &mut Templates,
    what: &str,
    key: &str,
    text: &str,
) -> Result<Template, Misconfigured> {
    let compiled = templates.add(what, text);
    compiled.map_err(|wrong| Misconfigured::new(key, wrong))
}

/// The header of HTTP's basic authentication (RFC 7617). It is never shown.
pub(crate) fn basic(user: &str, password: &str) -> HeaderValue {
    let pair = BASE64_STANDARD.encode(format!("{user}:{password}"));
    let mut value =
        HeaderValue::try_from(format!("Basic {pair}")).expect("base64 is visible ASCII");
    value.set_sensitive(true);
    value
}

/// Whether a request of this method says how long its body is, also if it is empty (RFC 9110, section 8.6). Without
/// that some servers answer 411.
pub(crate) fn says_length(method: &Method) -> bool {
    matches!(*method, Method::POST | Method::PUT | Method::PATCH)
}
