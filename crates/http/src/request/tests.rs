//! The request that a message becomes, and that a message can inject nothing into it.

use http::uri::Authority;
use secrecy::SecretString;

use super::*;
use sluiced_ports::message::{self, Properties};
use sluiced_settings::types::Downstream;
use sluiced_settings::{Extra, Needs, load_with};

const FACTS: Facts<'_> = Facts {
    route: "sms",
    attempt: 2,
    may_repeat: true,
    max_body: 1 << 20,
};

/// The settings of a downstream with this URL and these headers.
fn options(url: &str, headers: &[(&str, &str)]) -> Http {
    let text = r#"
        limits.account.rate = "1/1s"
        [routes.sms]
        queue = "sms"
        limits = ["account"]
        downstream = { kind = "http", url = "http://h/" }
    "#;
    let (name, text) = ("test".to_owned(), text.to_owned());
    let loaded = load_with(
        Needs::All,
        &[],
        Some(Extra { name, text }),
        std::iter::empty(),
    );
    let Downstream::Http(http) = &loaded.expect("it loads").settings.routes["sms"].downstream
    else {
        panic!("another kind");
    };
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Http {
        url: url.to_owned(),
        headers: headers.iter().map(owned).collect(),
        ..(**http).clone()
    }
}

fn message(body: &str) -> Message {
    Message {
        body: body.to_owned().into(),
        ..Message::default()
    }
}

fn with_properties(body: &str, properties: Properties) -> Message {
    Message {
        properties,
        ..message(body)
    }
}

fn make(options: &Http, message: &Message) -> Result<Request<Bytes>, UnfitReason> {
    RequestTemplate::new(options, None)
        .unwrap()
        .request(message, FACTS, None)
}

fn body_of(request: Request<Bytes>) -> Bytes {
    request.into_body()
}

fn wrong(options: &Http) -> Misconfigured {
    RequestTemplate::new(options, None).unwrap_err()
}

#[test]
fn a_body_passes_untouched_and_without_a_copy() {
    let message = with_properties(
        r#"{"n": 123456789012345678901234567890, "a":  1.10}"#,
        Properties {
            message_id: Some("m-1".to_owned()),
            ..Properties::default()
        },
    );
    let request = make(&options("http://api.example:8080/send", &[]), &message).unwrap();
    assert_eq!(request.method(), Method::POST);
    assert_eq!(request.uri(), "http://api.example:8080/send");
    let headers = request.headers();
    assert_eq!(headers["host"], "api.example:8080");
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["x-message-id"], "m-1");
    assert_eq!(headers["x-attempt"], "2");
    assert!(
        headers["user-agent"]
            .to_str()
            .unwrap()
            .starts_with("sluiced/")
    );
    assert!(!headers.contains_key("idempotency-key"));
    let body = body_of(request);
    assert_eq!(body.as_ptr(), message.body.as_ptr());
    assert_eq!(body, message.body);
}

#[test]
fn what_is_not_json_passes_where_no_template_reads_it() {
    let binary = Message {
        body: Bytes::from_static(&[0xff, 0xfe, 0]),
        properties: Properties {
            content_type: Some("application/octet-stream".to_owned()),
            content_encoding: Some("GZIP".to_owned()),
            ..Properties::default()
        },
        ..Message::default()
    };
    let request = make(&options("http://h/", &[("X-Key", "{{ route }}")]), &binary).unwrap();
    assert_eq!(
        request.headers()["content-type"],
        "application/octet-stream"
    );
    assert_eq!(request.headers()["content-encoding"], "gzip");
    assert_eq!(body_of(request), binary.body);

    let mut templated = options("http://h/", &[]);
    templated.body = Some("{{ body.to | tojson }}".to_owned());
    let error = make(&templated, &binary).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "body: is no gzip, as its publisher says");
}

/// What makes the body readable goes with it, by the name that HTTP has for it.
#[test]
fn a_body_that_passes_carries_its_coding() {
    let zlib = include_bytes!("../../../template/src/content/celery.zlib");
    let of = |body: &'static [u8], encoding: Option<&str>, compression: Option<&str>| {
        let mut message = Message {
            body: Bytes::from_static(body),
            ..Message::default()
        };
        message.properties.content_encoding = encoding.map(str::to_owned);
        if let Some(compression) = compression {
            let value = message::HeaderValue::Text(compression.to_owned());
            message.headers.insert("compression".to_owned(), value);
        }
        let request = make(&options("http://h/", &[]), &message).unwrap();
        let coding = request.headers().get("content-encoding");
        let coding = coding.map(|coding| coding.to_str().unwrap().to_owned());
        assert_eq!(request.headers()["content-type"], "application/json");
        assert_eq!(body_of(request), body);
        coding
    };
    let gzip = b"\x1f\x8b\x08\0";
    assert_eq!(of(gzip, Some("x-gzip"), None).as_deref(), Some("gzip"));
    // Spring AMQP: the character set behind the coding.
    assert_eq!(of(gzip, Some("gzip:UTF-8"), None).as_deref(), Some("gzip"));
    // Celery: its gzip is zlib, which HTTP calls deflate.
    let celery = of(zlib, Some("utf-8"), Some("application/x-gzip"));
    assert_eq!(celery.as_deref(), Some("deflate"));
    assert_eq!(
        of(b"\x28\xb5\x2f\xfd", Some("zstd"), None).as_deref(),
        Some("zstd")
    );
    // HTTP has no name for it; it was undone before; it says nothing of a coding.
    assert_eq!(of(b"BZh9", None, Some("application/x-bz2")), None);
    assert_eq!(of(b"{}", Some("gzip"), None), None);
    assert_eq!(of(b"{}", Some("utf-8"), None), None);
}

/// No receiver of HTTP knows sections of AMQP 1.0.
#[test]
fn the_sections_of_amqp_are_taken_off() {
    let mut message = Message {
        body: Bytes::from_static(b"\0\x53\x77\xa1\x0e{\"to\": \"+491\"}"),
        ..Message::default()
    };
    message.properties.kind = Some("amqp-1.0".to_owned());
    let request = make(&options("http://h/", &[]), &message).unwrap();
    assert_eq!(body_of(request), r#"{"to": "+491"}"#);
}

#[test]
fn a_configured_body_is_json_unless_the_configuration_says_otherwise() {
    let message = with_properties(
        r#"{"to": "+49170"}"#,
        Properties {
            content_type: Some("text/plain".to_owned()),
            content_encoding: Some("utf-8".to_owned()),
            ..Properties::default()
        },
    );
    let mut options = options("http://h/", &[]);
    let untouched = make(&options, &message).unwrap();
    assert_eq!(untouched.headers()["content-type"], "text/plain");
    assert!(!untouched.headers().contains_key("content-encoding"));
    options.body = Some(r#"{"phone": {{ body.to | tojson }}}"#.to_owned());
    let request = make(&options, &message).unwrap();
    assert_eq!(request.headers()["content-type"], "application/json");
    assert_eq!(body_of(request), r#"{"phone": "+49170"}"#);
    options
        .headers
        .insert("Content-Type".to_owned(), "application/xml".to_owned());
    let request = make(&options, &message).unwrap();
    assert_eq!(request.headers()["content-type"], "application/xml");
}

#[test]
fn headers_of_the_configuration_replace_and_remove_defaults() {
    let options = options(
        "http://h/",
        &[
            ("X-Attempt", ""),
            ("user-agent", "me"),
            ("X-Message-Id", "{{ message_id | default('none') }}"),
            ("Idempotency-Key", "{{ properties.message_id or '' }}"),
        ],
    );
    let request = make(&options, &message("{}")).unwrap();
    let headers = request.headers();
    assert!(!headers.contains_key("x-attempt"));
    assert_eq!(headers["user-agent"], "me");
    assert_eq!(headers["x-message-id"], "none");
    assert!(!headers.contains_key("idempotency-key"));
}

#[test]
fn get_carries_no_body() {
    let mut options = options("http://h/{{ body.id | urlencode }}", &[]);
    options.method = "GET".to_owned();
    let request = make(&options, &message(r#"{"id": 7}"#)).unwrap();
    assert_eq!(request.uri(), "http://h/7");
    assert!(!request.headers().contains_key("content-type"));
    assert!(body_of(request).is_empty());
}

#[test]
fn nothing_can_be_injected_into_a_header() {
    let options = options("http://h/", &[("X-To", "{{ body.to }}")]);
    for to in ["a\\r\\nX-Evil: 1", "a\\u0000", "a\\nb", "\\u007f"] {
        let error = make(&options, &message(&format!(r#"{{"to": "{to}"}}"#)))
            .map(drop)
            .unwrap_err();
        assert_eq!(error.to_string(), "header x-to: has a control character");
    }
    let request = make(&options, &message(r#"{"to": "Grüße: ok"}"#)).unwrap();
    assert_eq!(request.headers()["x-to"].as_bytes(), "Grüße: ok".as_bytes());
    for properties in [
        Properties {
            message_id: Some("a\r\nb".to_owned()),
            ..Properties::default()
        },
        Properties {
            content_type: Some("a\r\nb".to_owned()),
            ..Properties::default()
        },
    ] {
        let message = with_properties("{}", properties);
        let error = make(&options, &message).map(drop).unwrap_err();
        assert!(error.why.contains("control character"), "{error}");
    }
}

#[test]
fn nothing_can_be_injected_into_a_url() {
    let encoded = options("http://h/send/{{ body.id | urlencode }}?a=1", &[]);
    let raw = options("http://h/send/{{ body.id }}", &[]);
    let body = |id: &str| message(&serde_json::json!({ "id": id }).to_string());
    let request = make(&encoded, &body("x/..y?a=2&b#c\r\n ü")).unwrap();
    assert_eq!(
        request.uri(),
        "http://h/send/x%2F..y%3Fa%3D2%26b%23c%0D%0A%20%C3%BC?a=1"
    );
    // Some servers and proxies decode a slash, once or twice, before they resolve the path.
    for id in [
        "..",
        ".",
        "../admin",
        "x/../y",
        "..\\x",
        "%2e%2e/x",
        "..;x=1/y",
        "%2e%2e;/y",
    ] {
        let error = make(&encoded, &body(id)).map(drop).unwrap_err();
        assert_eq!(error.what, "url");
    }
    for id in [
        "../admin",
        "a/%2E%2e/b",
        "..%2Fadmin",
        "..%252fadmin",
        "%25252e./x",
        "a b",
        "a\r\nHost: evil",
        "ü",
        "..\\x",
    ] {
        let error = make(&raw, &body(id)).map(drop).unwrap_err();
        assert_eq!(error.what, "url", "{id}");
        assert!(!error.why.contains(id), "{error}");
    }
    assert_eq!(
        make(&raw, &body("//evil.example/")).unwrap().uri().host(),
        Some("h")
    );
}

#[test]
fn the_host_is_known_only_if_no_template_can_change_it() {
    for (url, origin) in [
        ("http://h/x", Some("http://h/x")),
        ("https://h:8443/{{ route }}", Some("https://h:8443/")),
        ("https://h?x={{ route }}", Some("https://h/")),
        ("http://h{{ route }}/", None),
        ("http://{{ route }}.h/", None),
        ("{{ body.url }}", None),
    ] {
        let mut options = options(url, &[]);
        options.allowed_hosts = vec!["*".to_owned()];
        let template = RequestTemplate::new(&options, None).unwrap();
        assert_eq!(
            template.origin().map(ToString::to_string).as_deref(),
            origin,
            "{url}"
        );
    }
    let mut anywhere = options("{{ body.url }}", &[]);
    anywhere.allowed_hosts = vec!["*".to_owned()];
    for url in ["ftp://h/", "/x", "h", "http://u:p@h/", "http:///x", ""] {
        let body = serde_json::json!({ "url": url }).to_string();
        assert!(make(&anywhere, &message(&body)).is_err(), "{url}");
    }
}

#[test]
fn wrong_configurations_name_their_key() {
    for (url, why) in [
        ("example.com/send", "https://"),
        ("ftp://h/", "http"),
        ("http://user:pass@h/", "credentials"),
        ("http://user:pass@h/{{ route }}", "credentials"),
        ("http://h/{{ rout }}", "rout"),
        ("http://h/a b", ""),
    ] {
        let error = wrong(&options(url, &[]));
        assert_eq!(error.key, "url", "{url}");
        assert!(error.why.contains(why), "{error}");
    }
    for (name, value) in [
        ("Content-Length", "3"),
        ("transfer-encoding", "chunked"),
        ("a b", "c"),
        ("X-A", "a\nb"),
        ("X-A", "{{ a }}"),
    ] {
        let error = wrong(&options("http://h/", &[(name, value)]));
        assert_eq!(error.key, format!("headers.{name}"));
    }
    for method in ["", "CONNECT", "post", "PO ST"] {
        let mut options = options("http://h/", &[]);
        options.method = method.to_owned();
        assert_eq!(wrong(&options).key, "method", "{method}");
    }
    let twice = options("http://h/", &[("Authorization", "x")]);
    let auth = auth("kind = \"bearer\"");
    let secret = SecretString::from("t").into();
    let error = RequestTemplate::new(&twice, Some((&auth, &secret))).unwrap_err();
    assert_eq!(error.key, "auth");
}

fn auth(text: &str) -> Auth {
    toml::from_str(text).unwrap()
}

#[test]
fn secrets_are_sent_and_never_shown() {
    let options = options("http://h/?key=hunter2", &[("X-Api-Key", "hunter2")]);
    let basic = auth("kind = \"basic\"\nuser = \"aladdin\"\npassword = \"hunter2\"");
    let bearer = auth("kind = \"bearer\"\ntoken = \"hunter2\"");
    let secret: Secret = SecretString::from("hunter2").into();
    for (auth, wanted) in [
        (&basic, "Basic YWxhZGRpbjpodW50ZXIy"),
        (&bearer, "Bearer hunter2"),
    ] {
        let template = RequestTemplate::new(&options, Some((auth, &secret))).unwrap();
        let request = template.request(&message("{}"), FACTS, None).unwrap();
        let value = &request.headers()[AUTHORIZATION];
        assert_eq!(value, wanted);
        for shown in [
            format!("{template:?}"),
            format!("{options:?}"),
            format!("{auth:?}"),
            format!("{secret:?}"),
            format!("{value:?}"),
        ] {
            assert!(!shown.contains("hunter2"), "{shown}");
            assert!(
                !shown.contains("aHVudGVy") && !shown.contains("b3VudGVy"),
                "{shown}"
            );
            assert!(!shown.contains("YWxhZGRpbj"), "{shown}");
        }
    }
    let secret = SecretString::from("hunter2\n").into();
    let error = RequestTemplate::new(&options, Some((&bearer, &secret))).unwrap_err();
    assert_eq!(error.key, "auth");
    assert!(!error.to_string().contains("hunter2"));
}

proptest::proptest! {
    /// With any message, the host and the number of segments are those of the template; a
    /// message that would change them is refused.
    #[test]
    fn a_value_is_never_more_than_its_place(id in "\\PC{0,12}|[./%\\\\a-z2eE?#@:&\r\n\0]{0,12}") {
        let body = message(&serde_json::json!({ "id": id }).to_string());
        let encoded = options("http://h/send/{{ body.id | urlencode }}/x?a=1", &[]);
        if let Ok(request) = make(&encoded, &body) {
            let uri = request.uri();
            proptest::prop_assert_eq!(uri.authority().map(Authority::as_str), Some("h"));
            proptest::prop_assert_eq!(uri.path().split('/').count(), 4);
            proptest::prop_assert_eq!(uri.query(), Some("a=1"));
        }
        let raw = options("http://h/send/{{ body.id }}", &[("X-Id", "{{ body.id }}")]);
        if let Ok(request) = make(&raw, &body) {
            proptest::prop_assert_eq!(request.uri().authority().map(Authority::as_str), Some("h"));
            proptest::prop_assert!(request.uri().path().starts_with("/send/"));
            let value = request.headers().get("x-id").map_or(b"".as_slice(), HeaderValue::as_bytes);
            proptest::prop_assert!(!value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
        }
    }
}
