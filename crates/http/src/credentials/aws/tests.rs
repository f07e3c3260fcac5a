//! The signatures of AWS's own test suite for Version 4 (awslabs/aws-c-auth, tests/aws-signing-test-suite/v4), by the
//! names of its cases. Paths and queries are written as they are sent.

use std::time::{Duration, UNIX_EPOCH};

use http::Method;
use secrecy::SecretString;
use sluiced_settings::types::AwsVariables;

use super::*;

const FILE: &str = "# of a test\n[other]\naws_access_key_id = WRONG\naws_secret_access_key = wrong\n\n[default]\n\
    aws_access_key_id=AKIDEXAMPLE\naws_secret_access_key = wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY\n";
const TOKEN: &str = "6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267";

fn signer(file: &str, profile: &str) -> Result<AwsSigner, Misconfigured> {
    let settings = AwsSigv4 {
        region: "us-east-1".to_owned(),
        service: "service".to_owned(),
        credentials: AwsCredentials::File,
        credentials_file: Some("credential:aws".into()),
        profile: profile.to_owned(),
        metadata_url: String::new(),
        variables: AwsVariables::default(),
    };
    AwsSigner::new(&settings, Secret::from(SecretString::from(file)))
}

fn authorization(file: &str, mut request: Request<Bytes>) -> String {
    let signer = signer(file, "default").expect("credentials");
    // 2015-08-30T12:36:00Z
    let now = UNIX_EPOCH + Duration::from_secs(1_440_938_160);
    let own = lock(&signer.own).clone().expect("its own credentials");
    let signed = signer.sign_with(&mut request, now, &own, |_| true);
    signed.expect("it can be signed");
    let value = request.headers()[AUTHORIZATION].to_str();
    value.expect("a text").to_owned()
}

fn request(method: Method, target: &str) -> Request<Bytes> {
    let mut request = Request::new(Bytes::new());
    *request.method_mut() = method;
    *request.uri_mut() = format!("https://example.amazonaws.com{target}")
        .parse()
        .expect("a URL");
    request
}

#[test]
fn the_cases_of_the_suite_have_their_signatures() {
    for (case, method, target, signature) in [
        (
            "get-vanilla",
            Method::GET,
            "/",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "post-vanilla",
            Method::POST,
            "/",
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        ),
        (
            "get-vanilla-query-order-encoded",
            Method::GET,
            "/?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
            "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
        ),
        (
            "get-vanilla-query-order-key-case",
            Method::GET,
            "/?Param2=value2&Param1=value1",
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        ),
        (
            "get-vanilla-utf8-query",
            Method::GET,
            "/?%E1%88%B4=bar",
            "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04",
        ),
        (
            "get-slashes-normalized",
            Method::GET,
            "//example//",
            "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84",
        ),
        (
            "get-relative-normalized",
            Method::GET,
            "/example/..",
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        ),
        (
            "get-unreserved",
            Method::GET,
            "/-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
            "07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f",
        ),
    ] {
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, Signature={signature}"
        );
        let made = authorization(FILE, request(method, target));
        assert_eq!(made, expected, "{case}");
    }
}

#[test]
fn headers_and_bodies_are_signed() {
    let mut trimmed = request(Method::GET, "/");
    let headers = trimmed.headers_mut();
    headers.insert("my-header1", HeaderValue::from_static(" value1"));
    headers.insert("my-header2", HeaderValue::from_static(" \"a   b   c\""));
    let made = authorization(FILE, trimmed);
    let signature = "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736";
    assert!(made.ends_with(signature), "get-header-value-trim: {made}");

    let mut form = request(Method::POST, "/");
    *form.body_mut() = Bytes::from_static(b"Param1=value1");
    let digest = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";
    for (name, value) in [
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-length", "13"),
        ("x-amz-content-sha256", digest),
    ] {
        let value = HeaderValue::from_static(value);
        form.headers_mut().insert(name, value);
    }
    let made = authorization(FILE, form);
    let signature = "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b";
    assert!(
        made.ends_with(signature),
        "post-x-www-form-urlencoded: {made}"
    );
}

#[test]
fn a_session_token_is_signed_and_replaces_an_earlier_one() {
    let file = format!("{FILE}aws_session_token = {TOKEN}\n");
    let mut once = request(Method::GET, "/");
    let earlier = HeaderValue::from_static("an-earlier-one");
    once.headers_mut().insert(X_AMZ_SECURITY_TOKEN, earlier);
    let made = authorization(&file, once);
    let signature = "07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8";
    assert!(
        made.ends_with(signature),
        "get-vanilla-with-session-token: {made}"
    );
}

/// What is sent may be encoded less or more than AWS does it.
#[test]
fn names_and_values_of_a_query_are_encoded_in_one_way() {
    let query = "TopicArn=arn:aws:sns:eu-central-1:1:a/b&Text=%7Ea%20b";
    assert_eq!(
        canonical_query(query),
        "Text=~a%20b&TopicArn=arn%3Aaws%3Asns%3Aeu-central-1%3A1%3Aa%2Fb"
    );
}

/// IAM User Guide: each part of a path is encoded twice, but for S3.
#[test]
fn what_is_encoded_in_a_path_is_encoded_once_more() {
    assert_eq!(
        canonical_path("/a%20b/%E1%88%B4/"),
        "/a%2520b/%25E1%2588%25B4/"
    );
}

#[test]
fn a_file_without_credentials_is_refused_without_its_text() {
    for (file, profile, lacks) in [
        (FILE, "prod", "aws_access_key_id in [prod]"),
        (
            "[default]\naws_access_key_id = A\n",
            "default",
            "aws_secret_access_key",
        ),
        ("AKIDEXAMPLE:wJalr", "default", "aws_access_key_id"),
    ] {
        let why = signer(file, profile).expect_err(lacks).to_string();
        assert!(why.contains(lacks) && !why.contains("wJalr"), "{why}");
    }
    let shown = format!("{:?}", signer(FILE, "default").expect("credentials"));
    assert!(!shown.contains("wJalr"), "{shown}");
}
