//! Secrets that are changed while it runs: at the server and in the file. Open connections stay
//! open; new ones must use the new secret.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use lapin::BasicProperties;

use super::config;
use crate::support::broker::Broker;
use crate::support::daemon::{Config, Daemon, LONG, NEW_SCHEDULE, Route};
use crate::support::messages::body;
use crate::support::rabbit::Rabbit;
use crate::support::recorder::{Recorder, Reply};
use crate::support::redis::RedisServer;
use crate::support::wait::eventually;

/// Replaces a file as a whole, as a rotation of secrets does.
fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(new, path).unwrap();
}

async fn publish(broker: &Broker, queue: &str, first: u64, last: u64) {
    let messages = (first..=last).map(|n| (body(n), BasicProperties::default()));
    broker.publish(queue, messages).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_password_of_rabbitmq_is_read_for_each_connection() {
    let rabbit = Rabbit::shared();
    let url = rabbit.add_user("turning", "before");
    let broker = Broker::connect(&rabbit.url()).await;
    broker.declare("turning", "classic").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    replace(&file, "before\n");
    let downstream = Recorder::accepting().await;
    let config = Config {
        rabbit: Some(url.replace("turning:before", "turning:none")),
        ..config("turning", vec![Route::new("turning", downstream.address)])
    };
    let key = format!("[rabbitmq]\npassword_file = {file:?}\n");
    let text = config.text().replace("[rabbitmq]\n", &key);
    let daemon = Daemon::start_with(&text, |_| {});
    publish(&broker, "turning", 1, 3).await;
    eventually(LONG, "the first three", || downstream.count() == 3).await;
    rabbit.change_password("turning", "after");
    replace(&file, "after\n");
    rabbit.close_connections_of("turning");
    publish(&broker, "turning", 4, 6).await;
    eventually(LONG, "the others", || downstream.count() >= 6).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "no connection to RabbitMQ",
            "the queue cannot be consumed",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_password_of_redis_is_read_for_each_connection() {
    let redis = RedisServer::start_with("", Some("before"));
    let name = "turning-redis";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "classic").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    replace(&file, "before");
    let downstream = Recorder::accepting().await;
    let config = Config {
        redis: Some(redis.url_with("none")),
        ..config(name, vec![Route::new(name, downstream.address)])
    };
    let key = format!("[redis]\npassword_file = {file:?}\n");
    let text = config.text().replace("[redis]\n", &key);
    let daemon = Daemon::start_with(&text, |_| {});
    publish(&broker, name, 1, 3).await;
    eventually(LONG, "the first three", || downstream.count() == 3).await;
    let mut operator = redis.connection();
    let mut set = redis::cmd("CONFIG");
    set.arg("SET").arg("requirepass").arg("after");
    set.query::<()>(&mut operator).unwrap();
    replace(&file, "after");
    let mut cut = redis::cmd("CLIENT");
    cut.arg("KILL")
        .arg("TYPE")
        .arg("normal")
        .arg("SKIPME")
        .arg("yes");
    cut.query::<u64>(&mut operator).unwrap();
    daemon.says("lost Redis").await;
    publish(&broker, name, 4, 6).await;
    eventually(LONG, "the others", || downstream.count() >= 6).await;
    daemon
        .stop(&[
            NEW_SCHEDULE,
            "lost Redis",
            "cannot connect to Redis",
            "out of reach",
        ])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_is_refused_is_read_again() {
    let name = "turning-token";
    let broker = Broker::connect(&Rabbit::shared().url()).await;
    broker.declare(name, "classic").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    replace(&file, "before");
    let wanted = Arc::new(Mutex::new("Bearer before"));
    let downstream = Recorder::start({
        let wanted = Arc::clone(&wanted);
        move |call| {
            let good = call.authorization == *wanted.lock().unwrap();
            Reply::status(if good { 202 } else { 401 })
        }
    })
    .await;
    let mut route = Route::new(name, downstream.address);
    route.keys = "retry = { base = \"100ms\", max = \"100ms\" }\nmax_attempts = 50\n".to_owned();
    route.downstream = format!(
        "auth = {{ kind = \"bearer\", token_file = {file:?} }}\n\
         outcomes = {{ transient = [\"401\"] }}\n"
    );
    let daemon = Daemon::start(&config(name, vec![route]));
    let accepted = || {
        let good = *wanted.lock().unwrap();
        downstream.count_of(|call| call.authorization == good)
    };
    publish(&broker, name, 1, 3).await;
    eventually(LONG, "the first three", || accepted() == 3).await;
    *wanted.lock().unwrap() = "Bearer after";
    replace(&file, "after");
    publish(&broker, name, 4, 6).await;
    eventually(LONG, "the others, with the new token", || accepted() == 3).await;
    // Without the file, the last token stays in use.
    std::fs::remove_file(&file).unwrap();
    publish(&broker, name, 7, 9).await;
    eventually(LONG, "still", || accepted() == 6).await;
    daemon.stop(&[NEW_SCHEDULE, "the downstream is away"]).await;
}
