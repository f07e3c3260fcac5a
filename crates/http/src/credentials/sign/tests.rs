//! What is signed, when, with which key; and that no secret shows.

use std::collections::BTreeMap;
use std::time::Duration;

use secrecy::SecretString;

use super::*;
use sluiced_ports::message::Properties;
use sluiced_settings::types::{Downstream, Route};

const FACTS: Facts<'_> = Facts {
    route: "hooks",
    attempt: 1,
    may_repeat: false,
    max_body: 1 << 20,
};

fn http() -> Http {
    let Downstream::Http(http) = Route::example().downstream else {
        panic!("another kind");
    };
    *http
}

/// Settings with the text that Standard Webhooks signs.
fn hmac(signed: &str, headers: &[(&str, &str)]) -> Hmac {
    let owned = |(name, text): &(&str, &str)| ((*name).to_owned(), (*text).to_owned());
    Hmac {
        secret: None,
        secret_file: None,
        secret_encoding: SecretEncoding::Text,
        algorithm: HashFunction::Sha256,
        signed: signed.to_owned(),
        headers: headers.iter().map(owned).collect::<BTreeMap<_, _>>(),
    }
}

fn signer(hmac: &Hmac, secret: &str) -> Result<Arc<Signer>, Misconfigured> {
    let secret = Secret::from(SecretString::from(secret));
    Signer::new(hmac, secret, &http()).map(Arc::new)
}

fn message() -> Message {
    Message {
        body: Bytes::from_static(b"{\"account\":\"acme\"}"),
        properties: Properties {
            message_id: Some("m1".to_owned()),
            ..Properties::default()
        },
        ..Message::default()
    }
}

fn request(body: &'static [u8]) -> Request<Bytes> {
    let request = Request::post("http://h/send?a=1");
    request.body(Bytes::from_static(body)).unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn header<'a>(request: &'a Request<Bytes>, name: &str) -> &'a str {
    request.headers()[name].to_str().unwrap()
}

/// RFC 4231, test case 2, and the same with the other functions (RFC 2202, test case 2).
#[test]
fn the_functions_are_those_of_the_standards() {
    for (algorithm, wanted) in [
        (
            HashFunction::Sha1,
            "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79",
        ),
        (
            HashFunction::Sha256,
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
        ),
        (
            HashFunction::Sha512,
            "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea2505549758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737",
        ),
    ] {
        let hmac = Hmac {
            algorithm,
            ..hmac(
                "{{ request_body }}",
                &[("x-sig", "sha={{ signature_hex }}")],
            )
        };
        let signing = signer(&hmac, "Jefe").unwrap();
        let signing = signing.signing(&message(), FACTS, None).unwrap();
        let mut request = request(b"what do ya want for nothing?");
        signing.sign(&mut request, at(1)).unwrap();
        assert_eq!(header(&request, "x-sig"), format!("sha={wanted}"));
    }
}

/// The message and the request can be signed, and the time is that of the last signature.
#[test]
fn a_request_that_waited_is_signed_anew() {
    let signed = "{{ message_id }}.{{ timestamp }}.{{ request_method }} {{ request_path }} {{ request_body }} {{ body.account }}";
    let headers = [
        ("x-sig", "v1,{{ signature_base64 }}"),
        ("x-time", "{{ timestamp }}"),
    ];
    let signing = signer(&hmac(signed, &headers), "k").unwrap();
    let signing = signing.signing(&message(), FACTS, None).unwrap();
    let mut request = request(b"hi");
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"k");
    for time in [1_700_000_000, 1_700_000_600] {
        signing.sign(&mut request, at(time)).unwrap();
        assert_eq!(header(&request, "x-time"), time.to_string());
        let wanted = format!("m1.{time}.POST /send?a=1 hi acme");
        let wanted = BASE64.encode(hmac::sign(&key, wanted.as_bytes()));
        assert_eq!(header(&request, "x-sig"), format!("v1,{wanted}"));
    }
    assert_eq!(request.headers().len(), 2);
}

/// Also where slots are further apart than a signature is fresh.
#[tokio::test]
async fn a_large_body_is_signed_again_once_its_signature_is_old() {
    const LARGE: &[u8] = &[b'x'; QUICK + 1];
    let hmac = hmac("{{ timestamp }}", &[("X-Time", "{{ timestamp }}")]);
    let signer = signer(&hmac, "k").unwrap();
    for (age, version, is_renewed) in [(0, 0, false), (120, 0, true), (0, 1, true)] {
        let made = SystemTime::now() - Duration::from_secs(age);
        let signing = signer.signing(&message(), FACTS, None).unwrap();
        let signed = RequestSignature::new(made, 0, AnySigning::Hmac(signing));
        let renewed = signed.renew(request(LARGE), version, None).await.unwrap();
        assert_eq!(renewed.headers().contains_key("x-time"), is_renewed);
    }
}

#[test]
fn a_secret_may_be_encoded_and_replaced() {
    let with = |encoding, secret: &str| {
        let hmac = Hmac {
            secret_encoding: encoding,
            ..hmac("x", &[("x-sig", "{{ signature_hex }}")])
        };
        let signer = signer(&hmac, secret)?;
        let mut request = request(b"");
        let signing = signer.signing(&message(), FACTS, None).unwrap();
        signing.sign(&mut request, at(1)).unwrap();
        Ok::<_, Misconfigured>(header(&request, "x-sig").to_owned())
    };
    let wanted = with(SecretEncoding::Text, "hunter2").unwrap();
    for (encoding, secret) in [
        (SecretEncoding::Hex, "68756E74657232"),
        (SecretEncoding::Base64, "aHVudGVyMg=="),
        (SecretEncoding::Base64, "aHVudGVyMg"),
        (SecretEncoding::Base64, "whsec_aHVudGVyMg=="),
    ] {
        assert_eq!(with(encoding, secret).unwrap(), wanted, "{secret}");
    }
    for (encoding, secret) in [
        (SecretEncoding::Hex, "hunter2"),
        (SecretEncoding::Hex, "687"),
        (SecretEncoding::Hex, "é0"),
        (SecretEncoding::Base64, "whsec_hunter-2"),
        (SecretEncoding::Base64, "whsec_"),
        (SecretEncoding::Text, ""),
    ] {
        let error = with(encoding, secret).unwrap_err();
        assert_eq!(error.key, "auth");
        assert!(!error.why.contains("hunter"), "{error}");
    }
}

#[test]
fn what_cannot_be_signed_is_said_before_it_is_sent() {
    let signer = signer(
        &hmac(
            "{{ request_body }}{{ body.missing }}",
            &[("x-sig", "{{ signature_hex }}")],
        ),
        "k",
    );
    let signing = signer.unwrap().signing(&message(), FACTS, None).unwrap();
    for (body, what) in [(b"\xff".as_slice(), "request_body"), (b"x", "body.missing")] {
        let mut request = request(body);
        let error = signing.sign(&mut request, at(1)).unwrap_err();
        assert_eq!(error.what, "auth.signed");
        assert!(error.why.contains(what), "{error}");
        assert!(request.headers().is_empty());
    }
}

#[test]
fn what_can_never_be_signed_is_refused() {
    for (signed, name, text, key) in [
        ("{{ tmestamp }}", "x", "y", "auth.signed"),
        ("x", "a b", "y", "auth.headers.a b"),
        ("x", "content-length", "y", "auth.headers.content-length"),
        ("x", "x", "{{ signature }}", "auth.headers.x"),
    ] {
        let error = signer(&hmac(signed, &[(name, text)]), "hunter2").unwrap_err();
        assert_eq!(error.key, key);
        assert!(!error.why.contains("hunter2"), "{error}");
    }
    let twice = Http {
        headers: BTreeMap::from([("X-Sig".to_owned(), "1".to_owned())]),
        ..http()
    };
    let secret = Secret::from(SecretString::from("k"));
    let error = Signer::new(&hmac("x", &[("x-sig", "y")]), secret, &twice).unwrap_err();
    assert_eq!(error.key, "auth.headers.x-sig");
}

#[test]
fn no_secret_and_no_signature_shows() {
    let hmac = Hmac {
        secret: Some(SecretString::from("hunter2")),
        ..hmac(
            "hunter2 {{ timestamp }}",
            &[("x-sig", "hunter2 {{ signature_hex }}")],
        )
    };
    let signer = signer(&hmac, "hunter2").unwrap();
    let mut request = request(b"");
    let signing = signer.signing(&message(), FACTS, None).unwrap();
    signing.sign(&mut request, at(1)).unwrap();
    let value = &request.headers()["x-sig"];
    for shown in [
        format!("{hmac:?}"),
        format!("{signer:?}"),
        format!("{value:?}"),
    ] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
