//! Secrets are read from their places, and shown nowhere.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use secrecy::ExposeSecret as _;

use super::{Files, GOOD, said, shown};
use crate::redacted::Redacted;
use crate::secrets::Secrets;
use crate::types::Route;

const SECRETIVE: &str = r#"[rabbitmq]
urls = ["amqp://user:hunter2@h:5672/%2f?heartbeat=5&auth=hunter2"]
management = "http://user:hunter2@h:15672"
[redis]
url = "redis://:hunter2@h:6379/0"
[limits.provider]
rate = "400/1s"
[routes.sms]
queue = "sms"
limits = ["provider"]
[routes.sms.downstream]
kind = "http"
url = "https://h/send?key=hunter2"
body = "{\"pin\":\"hunter2\"}"
headers = { x-key = "hunter2" }
auth = { kind = "bearer", token = "hunter2" }
"#;
/// In place of its last line.
const SIGNED: &str = r#"auth = { kind = "hmac", secret = "hunter2", signed = "hunter2 {{ timestamp }}", headers = { x-sig = "hunter2 {{ signature_hex }}" } }"#;

#[test]
fn no_secret_is_shown_by_debug_or_print() {
    let loaded = Files::new(&[SECRETIVE]).load(&[]).expect("it loads");
    let debug = format!("{loaded:#?}");
    assert!(!debug.contains("hunter2"), "{debug}");
    for value in loaded.origins.all() {
        assert!(!value.to_string().contains("hunter2"), "{value}");
    }
    let shown = shown(&loaded);
    let urls = shown.iter().find(|line| line.starts_with("rabbitmq.urls"));
    assert!(
        urls.is_some_and(|l| l.contains("[\"amqp://user:***@h:5672/%2f?heartbeat=5&auth=***\"]")),
        "{urls:?}"
    );
}

#[test]
fn no_secret_of_a_signature_is_shown() {
    let bearer = SECRETIVE.lines().last().expect("it has lines");
    let signed = SECRETIVE.replace(bearer, SIGNED);
    let loaded = Files::new(&[&signed]).load(&[]).expect("it loads");
    let debug = format!("{loaded:#?}");
    assert!(!debug.contains("hunter2"), "{debug}");
    for value in loaded.origins.all() {
        assert!(!value.to_string().contains("hunter2"), "{value}");
    }
    for words in loaded.settings.routes.values().map(Route::in_words) {
        let words = words.join("\n");
        assert!(words.contains("HMAC with SHA-256: in x-sig"), "{words}");
        assert!(!words.contains("hunter2"), "{words}");
    }
    for (from, to) in [
        ("secret =", "scret ="),
        ("secret = \"hunter2\"", "secret = [\"hunter2\"]"),
        ("\"hmac\"", "\"hmc\""),
        ("signed = \"hunter2", "signed = \"{{ x }}hunter2"),
        ("signed = \"hunter2 {{", "signed = \"hunter2 {%"),
        ("x-sig = \"hunter2", "x-sig = \"{{ x }}hunter2"),
        ("x-sig = \"hunter2", "x-sig = \"\\nhunter2"),
        ("x-sig =", "\"x sig\" ="),
    ] {
        assert!(signed.contains(from), "{from}");
        let said = said(&[&signed.replacen(from, to, 1)], &[]);
        assert!(
            !said.is_empty() && !said.contains("hunter2"),
            "{to}: {said}"
        );
    }
}

/// A line with a secret may be broken in any way: the secret is not repeated.
#[test]
fn no_fault_shows_a_secret() {
    for (from, to) in [
        ("amqp://", "amp://"),
        ("amqp://user", "amqp//user"),
        ("@h:5672", "@"),
        ("urls = [", "urls = "),
        ("urls", "url"),
        ("urls = [\"", "urls = [\""),
        ("5672/%2f?heartbeat=5&auth=hunter2\"]", "5672"),
        ("redis://", "http://"),
        ("url = \"redis", "uri = \"redis"),
        (
            "\"redis://:hunter2@h:6379/0\"",
            "\"redis://:hunter2@h:6379/0",
        ),
        ("\"redis://:hunter2@h:6379/0\"", "redis://:hunter2@h:6379/0"),
        ("https://h", "ftp://h"),
        ("https://h", "https://me:hunter2@h"),
        ("\\\"pin", "{{ hunter2 \\\"pin"),
        ("\"{\\\"pin", "\"{% if \\\"pin"),
        ("x-key", "\"x key\""),
        ("x-key = \"hunter2\"", "x-key = [\"hunter2\"]"),
        ("x-key = \"hunter2\"", "x-key = \"hunter2\\n\""),
        ("token =", "tokn ="),
        ("token =", "token_file ="),
        ("\"bearer\", token", "\"basic\", token"),
        ("\"bearer\", token", "\"baerer\", token"),
        ("token = \"hunter2\" }", "token = \"hunter2\""),
        ("token = \"hunter2\" }", "token = \"hunter2 }"),
        ("token = \"hunter2\" }", "token = hunter2 }"),
        (
            "kind = \"bearer\", token = \"hunter2\"",
            "kind = \"bearer\", token = [\"hunter2\"]",
        ),
        ("auth = {", "auth = \"hunter2\" #"),
    ] {
        assert!(SECRETIVE.contains(from), "{from}");
        let text = SECRETIVE.replacen(from, to, 1);
        let said = said(&[&text], &[]);
        // The name of a variable is no secret.
        let variable = to.contains("{{ hunter2");
        assert!(variable || !said.contains("hunter2"), "{to}: {said}");
    }
    let said = said(
        &[GOOD],
        &[
            ("SLUICED__REDIS__URL", "hunter2"),
            ("SLUICED__REDIS__PASSWD", "hunter2"),
        ],
    );
    assert!(
        said.contains("SLUICED__REDIS__URL") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn urls_are_redacted_even_if_they_are_none() {
    for (url, shown) in [
        ("amqp://a:b@h/%2f", "amqp://a:***@h/%2f"),
        ("amqp://a:b/c@d@h", "amqp://a:***@h"),
        ("amqp://a:b?c@h", "amqp://a:***@h"),
        ("redis://token@h", "redis://***@h"),
        ("redis://h:6379/0", "redis://h:6379/0"),
        ("redis://user:secret", "redis://***"),
        ("secret", "***"),
        ("http://h/x?key=s&y", "http://h/x?key=***&***"),
        ("http://{{ body.host }}/x", "http://{{ body.host }}/x"),
    ] {
        assert_eq!(Redacted(url).to_string(), shown);
    }
}

#[test]
fn files_replace_passwords() {
    let files = Files::new(&[SECRETIVE]);
    let rabbit = files.write("rabbit", "p@ss/word\n");
    let loaded = files
        .load(&[
            ("SLUICED__RABBITMQ__PASSWORD_FILE", &rabbit),
            ("SLUICED__REDIS__PASSWORD_FILE", "credential:rabbit"),
            ("CREDENTIALS_DIRECTORY", rabbit.trim_end_matches("/rabbit")),
        ])
        .map_err(|faults| faults.to_string())
        .expect("it loads");
    let settings = &loaded.settings;
    for file in [
        &settings.rabbitmq.password_file,
        &settings.redis.password_file,
    ] {
        let password = loaded.secrets.optional(file.as_deref());
        let password = password.expect("a readable file").expect("a password");
        assert_eq!(password.expose_secret(), "p@ss/word");
    }
    assert!(loaded.secrets.optional(None).expect("no file").is_none());
}

#[test]
fn credentials_are_names_in_their_directory() {
    let none = Secrets::default();
    let error = none
        .read(Path::new("credential:x"))
        .expect_err("no directory");
    assert!(
        error
            .to_string()
            .contains("$CREDENTIALS_DIRECTORY is not set"),
        "{error}"
    );
    let some = Secrets::new(Some(PathBuf::from("/run/credentials")));
    for name in ["credential:", "credential:../x", "credential:.."] {
        let error = some.read(Path::new(name)).expect_err(name);
        assert!(
            error.to_string().contains("no name of a credential"),
            "{error}"
        );
    }
    let files = Files::new(&[]);
    let empty = files.write("empty", "\n");
    assert!(none.read(Path::new(&empty)).is_err());
    let two = files.write("two", "a\r\n");
    assert_eq!(
        none.read(Path::new(&two))
            .expect("a secret")
            .expose_secret(),
        "a"
    );
}

#[test]
fn a_secret_that_everybody_can_read_is_a_warning() {
    let files = Files::new(&[GOOD]);
    let path = files.write("redis", "x");
    let warnings = |mode| {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("our own file");
        let loaded = files.load(&[("SLUICED__REDIS__PASSWORD_FILE", &path)]);
        let loaded = loaded.expect("it loads");
        files.short(&loaded.warnings.to_string())
    };
    assert_eq!(
        warnings(0o644),
        "SLUICED__REDIS__PASSWORD_FILE: warning: redis.password_file: every user of this machine can read this secret; run `chmod 600 redis`"
    );
    assert_eq!(warnings(0o640), "");
}

/// A configuration with a secret in a file and this line of a downstream.
fn naming(line: &str) -> String {
    format!("{GOOD}{line}\n[secrets]\napi_key = \"credential:api\"\n")
}

#[test]
fn templates_of_a_call_name_secrets_and_those_of_nothing_else_do() {
    let files = Files::new(&[&naming(
        "headers = { x-key = \"App {{ secret.api_key }}\" }",
    )]);
    let api = files.write("api", "hunter2\n");
    let env = [("CREDENTIALS_DIRECTORY", api.trim_end_matches("/api"))];
    let loaded = files.load(&env).map_err(|faults| faults.to_string());
    let loaded = loaded.expect("it loads");
    assert_eq!(loaded.secrets.named().len(), 1);
    for value in loaded.origins.all() {
        assert!(!value.to_string().contains("secret.api_key"), "{value}");
    }
    for (line, fault) in [
        (
            "headers = { x-key = \"{{ secret.api_kye }}\" }",
            "headers.x-key: [secrets] has no `api_kye`; did you mean \"api_key\"?",
        ),
        (
            "headers = { x-key = \"{{ secret['api_key'] }}\" }",
            "`secret` stands without a name; write {{ secret.NAME }}",
        ),
        (
            "headers = { x-key = \"{{ secret | tojson }}\" }",
            "`secret` stands without a name",
        ),
        (
            "outcome = \"{{ secret.api_key }}\"",
            "templates know no `secret`",
        ),
        (
            "headers = { x-key = \"credential:api\" }",
            "headers.x-key: this is the name of a file with a secret, and a text is meant here",
        ),
        (
            "proxy = \"credential:proxy\"",
            "this is the name of a file with a secret",
        ),
    ] {
        let text = naming(line);
        let files = Files::new(&[&text]);
        let api = files.write("api", "hunter2\n");
        let env = [("CREDENTIALS_DIRECTORY", api.trim_end_matches("/api"))];
        let faults = files.load(&env).expect_err(line).to_string();
        assert!(faults.contains(fault), "{line}: {faults}");
    }
    for (from, to, fault) in [
        (
            "api_key = ",
            "api-key = ",
            "templates cannot name this secret",
        ),
        ("credential:api", "/nowhere/api", "cannot be read"),
        ("\"credential:api\"", "\"hunter2\"", "no such file"),
    ] {
        let said = said(&[&naming("").replace(from, to)], &[]);
        assert!(said.contains(fault) && !said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_file_that_everybody_can_read_and_that_holds_a_secret_is_a_warning() {
    let warnings = |text: &str, mode| {
        let files = Files::new(&[text]);
        fs::set_permissions(&files.paths[0], fs::Permissions::from_mode(mode)).expect("our file");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(files.dir.path(), open).expect("our directory");
        let loaded = files.load(&[]).expect("it loads");
        files.short(&loaded.warnings.to_string())
    };
    let said = warnings(SECRETIVE, 0o644);
    let expected = "rabbitmq.urls[0]: every user of this machine can read this file, and a secret stands in it here; write it into a file of its own, and that file's name as password_file";
    assert_eq!(said.matches("every user").count(), 1, "{said}");
    assert!(said.contains(expected), "{said}");
    assert_eq!(warnings(SECRETIVE, 0o640), "");
    // What RabbitMQ begins with is no secret.
    let guests = SECRETIVE.replace("hunter2", "guest");
    let said = warnings(&guests, 0o644);
    assert!(said.contains("downstream.auth.token: every user"), "{said}");
    assert_eq!(warnings(GOOD, 0o644), "");
}
