//! Answers as AWS documents them: "Retrieve security credentials from instance metadata" (EC2 User Guide), "Amazon ECS
//! task IAM role" (ECS Developer Guide), "Container credential provider" (AWS SDKs and Tools Reference Guide).

use super::*;

const OF_INSTANCE: &str = r#"{
  "Code" : "Success",
  "LastUpdated" : "2012-04-26T16:39:16Z",
  "Type" : "AWS-HMAC",
  "AccessKeyId" : "ASIAIOSFODNN7EXAMPLE",
  "SecretAccessKey" : "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
  "Token" : "token",
  "Expiration" : "2017-05-17T15:09:54Z"
}"#;
const OF_CONTAINER: &str = r#"{
    "AccessKeyId": "ASIAIOSFODNN7EXAMPLE",
    "Expiration": "2017-05-17T15:09:54Z",
    "RoleArn": "arn:aws:iam::123456789012:role/task",
    "SecretAccessKey": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "Token": "token"
}"#;
/// A minute before these credentials end.
const NOW: &str = "2017-05-17T15:08:54Z";

fn read(json: &str, now: &str) -> Result<IssuedToken, String> {
    let now: Timestamp = now.parse().expect("a time");
    read_credentials(json.as_bytes(), now.into())
}

#[test]
fn both_answers_give_credentials_up_to_their_end() {
    for json in [OF_INSTANCE, OF_CONTAINER] {
        let lasting = read(json, NOW).expect("credentials");
        assert_eq!(lasting.life, Some(Duration::from_secs(60)));
        assert!(matches!(lasting.gives, TokenValue::Aws(_)));
    }
    let endless = OF_CONTAINER.replace("\"Expiration\": \"2017-05-17T15:09:54Z\",", "");
    assert_eq!(read(&endless, NOW).expect("credentials").life, None);
}

#[test]
fn what_gives_no_credentials_is_named_without_a_secret() {
    let ended = OF_INSTANCE.replace("Success", "AssumeRoleUnauthorizedAccess");
    for (json, now, why) in [
        (&*ended, NOW, "no credentials: AssumeRoleUnauthorizedAccess"),
        (
            OF_INSTANCE,
            "2017-05-17T15:10:00Z",
            "ended at 2017-05-17T15:09:54Z",
        ),
        (&OF_INSTANCE.replace("2017-05", "May"), NOW, "no time"),
        (
            &OF_INSTANCE.replace("AccessKeyId", "Id"),
            NOW,
            "no credentials",
        ),
        (&OF_INSTANCE.replace("token", "a\\nb"), NOW, "session token"),
        ("<html>", NOW, "no credentials"),
        ("{\"AccessKeyId\": 1}", NOW, "no credentials"),
    ] {
        let said = read(json, now).err().expect(why);
        assert!(said.contains(why) && !said.contains("wJalr"), "{said}");
    }
}

fn place(set: &[(&str, &str)]) -> Result<String, String> {
    let set = set.iter();
    let set = set.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    container(&set.collect())
}

#[test]
fn a_container_is_asked_where_aws_allows_it() {
    let (relative, full) = (AwsVariables::RELATIVE_URI, AwsVariables::FULL_URI);
    let ecs = "http://169.254.170.2/v2/credentials/1";
    assert_eq!(
        place(&[(relative, "/v2/credentials/1")]),
        Ok(ecs.to_owned())
    );
    let both = [
        (relative, "/v2/credentials/1"),
        (full, "https://example.com/"),
    ];
    assert_eq!(place(&both), Ok(ecs.to_owned()));
    for url in [
        "http://169.254.170.23/v1/credentials",
        "http://[fd00:ec2::23]/v1/credentials",
        "http://127.0.0.1:8080/a?b=c",
        "http://localhost/",
        "http://[::1]:80/a",
        "https://example.com/a",
    ] {
        let place = place(&[(full, url)]).expect(url);
        assert_eq!(place.parse::<Url>(), url.parse(), "{url}");
    }
}

#[test]
fn a_container_is_not_asked_elsewhere() {
    let (relative, full) = (AwsVariables::RELATIVE_URI, AwsVariables::FULL_URI);
    for (name, value) in [
        (relative, "@example.com/"),
        (relative, ""),
        (full, "/v1/credentials"),
        (full, "http://example.com/"),
        (full, "http://169.254.169.254/"),
        (full, "http://169.254.170.2@example.com/"),
        (full, "http://localhost.example.com/"),
        (full, "ftp://localhost/"),
    ] {
        let why = place(&[(name, value)]).expect_err(value);
        assert!(why.contains(name), "{why}");
    }
}

/// The name of a role becomes a part of a URL.
#[test]
fn the_name_of_a_role_is_one_of_iam() {
    assert_eq!(role(b"s3access"), Ok("s3access"));
    assert_eq!(role(b"a_+=,.@-1\nother\n"), Ok("a_+=,.@-1"));
    for wrong in ["", "\n", "a b", "a/../b", "a?b", "<html>", &"a".repeat(65)] {
        assert!(role(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

/// A refusal of another kind is about the call, and says nothing of the credentials.
#[test]
fn credentials_have_ended_if_the_service_says_it() {
    let none = HeaderMap::new();
    let xml = b"<Error><Code>ExpiredToken</Code></Error>".as_slice();
    let json = br#"{"__type":"com.amazon.coral.service#ExpiredTokenException"}"#.as_slice();
    let denied = b"<Error><Code>AccessDenied</Code></Error>".as_slice();
    for (status, body, have) in [
        (403, xml, true),
        (403, json, true),
        (401, xml, true),
        (403, denied, false),
        (200, xml, false),
        (403, b"", false),
    ] {
        let status = StatusCode::from_u16(status).expect("a status");
        assert_eq!(Metadata::have_ended(status, &none, body), have, "{status}");
    }
    let expired = HeaderValue::from_static("ExpiredTokenException:http://internal.amazon.com/");
    let headers = HeaderMap::from_iter([(ERROR_TYPE, expired)]);
    let body = br#"{"message":"The security token included in the request is expired"}"#;
    assert!(Metadata::have_ended(StatusCode::FORBIDDEN, &headers, body));
}
