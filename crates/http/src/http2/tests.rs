//! What a request over HTTP/2 contains, and which failed calls were certainly not looked at.

use super::*;

fn written(url: &str, host: Option<&str>, body: &'static str) -> Option<Http2Request> {
    let mut request = Request::post(url);
    if let Some(host) = host {
        request = request.header(HOST, host);
    }
    Http2Request::of(request.body(Bytes::from_static(body.as_bytes())).unwrap())
}

#[test]
fn the_host_is_the_authority() {
    for (host, authority) in [
        (None, "api.example:8443"),
        (Some("push.example"), "push.example"),
        (Some("push.example:443"), "push.example:443"),
        (Some("[::1]:8443"), "[::1]:8443"),
    ] {
        let written = written("https://api.example:8443/3/device?x=1", host, "{}").unwrap();
        let uri = written.head.uri();
        assert_eq!(uri.authority().unwrap(), authority);
        assert_eq!(uri.path_and_query().unwrap(), "/3/device?x=1");
        assert!(!written.head.headers().contains_key(HOST));
        assert_eq!(written.head.headers()[CONTENT_LENGTH], "2");
    }
    assert!(written("https://api.example/", Some("a b"), "").is_none());
}

#[test]
fn what_the_downstream_did_not_look_at_is_refused_and_the_rest_is_unsure() {
    // Errors of a peer cannot be made here: `tests/it/downstream/http2` has them.
    for (error, detail) in [
        (
            h2::Error::from(Reason::REFUSED_STREAM),
            "the answer is not HTTP/2 (REFUSED_STREAM)",
        ),
        (
            h2::Error::from(Reason::PROTOCOL_ERROR),
            "the answer is not HTTP/2 (PROTOCOL_ERROR)",
        ),
    ] {
        let NoAnswer::Silent(Silence::Connection, failure) = unheard(&error) else {
            panic!("{error}");
        };
        assert_eq!(failure, CallFailure::maybe_delivered(detail));
    }
}
