//! What `sluiced dead` cannot do: it says what would be right, and never shows a password.

use std::path::Path;

use super::{Said, dead, dead_at};
use crate::support::daemon::{Config, Route, file};
use crate::support::rabbit::Rabbit;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_said_with_what_would_be_right() {
    assert_what_is_wrong_is_said_without_a_configuration();
    let dir = tempfile::tempdir().unwrap();
    let downstream = ([127, 0, 0, 1], 1).into();
    let routes = vec![
        Route::new("dead-errors", downstream),
        Route::new("dead-others", downstream),
    ];
    let config = Config::shared("dead-errors", "100/1s", routes);
    assert_a_wrong_route_and_a_wrong_key_are_named(dir.path(), &config);
    assert_only_the_secret_of_rabbitmq_is_asked_for(dir.path(), &config);
    assert_an_embedded_queue_names_its_file(dir.path(), config);
}

fn assert_what_is_wrong_is_said_without_a_configuration() {
    let rabbit = Rabbit::shared().url();
    let none = dead_at("dead-nowhere", "list", &[]).good();
    assert!(
        none.contains("dead-nowhere.dead: no dead letters, for there is no such queue"),
        "{none}"
    );
    let live = dead("list --queue sms --rabbitmq", &[&rabbit]).bad(2);
    assert!(
        live.contains("`sms` is no queue of dead letters; did you mean `sms.dead`?"),
        "{live}"
    );
    let alone = dead("list", &[]).bad(2);
    assert!(alone.contains("--config"), "{alone}");
    let away = dead(
        "list --queue sms.dead --rabbitmq amqp://me:hunter2@127.0.0.1:1",
        &["--json"],
    )
    .bad(1);
    assert!(
        away.contains("cannot be reached") && !away.contains("hunter2"),
        "{away}"
    );
    let template = dead_at("dead-nowhere", "replay --where", &["bodi.to == 1"]).bad(2);
    assert!(template.contains("templates know no `bodi`"), "{template}");
    let to = dead_at("dead-nowhere", "replay --to sms.dead", &[]).bad(2);
    assert!(to.contains("name a work queue"), "{to}");
}

/// `sluiced dead` with the words of a line, and a file of this text as its configuration.
fn dead_with(line: &str, dir: &Path, name: &str, text: &str) -> Said {
    let config = file(dir, name, text).display().to_string();
    dead(line, &["--config", &config])
}

fn assert_a_wrong_route_and_a_wrong_key_are_named(dir: &Path, config: &Config) {
    let text = config.text();
    let typo = dead_with("list --route dead-eror", dir, "good.toml", &text).bad(2);
    assert!(
        typo.contains("there is no route `dead-eror`; did you mean `dead-errors`?"),
        "{typo}"
    );
    let which = dead_with("show 1", dir, "good.toml", &text).bad(2);
    assert!(which.contains("name the route with --route"), "{which}");
    let text = text.replace("limits = [", "limit = [");
    let wrong = dead_with("list", dir, "wrong.toml", &text).bad(78);
    assert!(wrong.contains("wrong.toml:"), "{wrong}");
}

fn assert_only_the_secret_of_rabbitmq_is_asked_for(dir: &Path, config: &Config) {
    let text = config
        .text()
        .replace("[redis]\n", "[redis]\npassword_file = \"/nowhere/redis\"\n");
    dead_with("list", dir, "apart.toml", &text).good();
    let text = config.text().replace(
        "[rabbitmq]\n",
        "[rabbitmq]\npassword_file = \"/nowhere/rabbit\"\n",
    );
    let asked = dead_with("list", dir, "apart.toml", &text).bad(78);
    assert!(asked.contains("/nowhere/rabbit"), "{asked}");
}

fn assert_an_embedded_queue_names_its_file(dir: &Path, mut config: Config) {
    config.rabbit = None;
    config.routes.truncate(1);
    config.tables = "[embedded]\nleftover = \"rest.ndjson\"\n".to_owned();
    let embedded = dead_with("list", dir, "embedded.toml", &config.text()).bad(1);
    assert!(
        embedded.contains("what was not delivered is in `rest.ndjson`"),
        "{embedded}"
    );
}

/// However the URL is written, and whatever becomes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_never_shown() {
    let port = Rabbit::shared().port();
    for url in [
        format!("amqp://guest:s3cret@127.0.0.1:{port}/%2f"),
        format!("guest:s3cret@127.0.0.1:{port}"),
        "amqp://guest:s3cret@127.0.0.1:1/%2f".to_owned(),
        "amqp://guest:s3cret@[2001:db8::5:5672".to_owned(),
        "amqp://guest:s3cret@no such host/".to_owned(),
        "amqp://guest:s3cret@127.0.0.1:port/".to_owned(),
    ] {
        let said = dead("list --queue sms.dead --rabbitmq", &[&url]);
        assert_ne!(said.code, 0, "{url}");
        assert!(!said.err.is_empty(), "{url}");
        let all = said.out + &said.err;
        assert!(!all.contains("s3cret"), "{url}: {all}");
    }
    let url = "amqp://guest:s3cret@127.0.0.1:1/%2f";
    let said = dead("list --rabbitmq", &[url]);
    assert_eq!(said.code, 2, "no queue is named");
    assert!(!said.err.contains("s3cret"), "{}", said.err);
}
