//! TLS by a private authority, certificates of clients, and users with just the rights they need.

use std::fs;

use secrecy::SecretString;
use sluiced_net::connect::{ClientCertificate, Tls};
use sluiced_store::redis::{RedisOptions, probe};

use super::{connect, down, lease, limit, options};
use crate::support::authority::Authority;
use crate::support::port::free_port;
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;

/// A server with TLS beside its plain port, and the URL for TLS.
pub(crate) fn server(authority: &Authority, clients: &str) -> (RedisServer, String) {
    authority.server();
    let port = free_port();
    let file = |name| authority.file(name).display().to_string();
    let arguments = format!(
        "--tls-port {port} --tls-cert-file {} --tls-key-file {} --tls-ca-cert-file {} \
         --tls-auth-clients {clients}",
        file("server.pem"),
        file("server.key"),
        file("ca.pem"),
    );
    let server = RedisServer::start_with(&arguments, None);
    (server, format!("rediss://127.0.0.1:{port}/0"))
}

fn trusted(authority: &Authority) -> Tls {
    Tls {
        ca: Some(authority.pem().into_bytes()),
        certificate: None,
    }
}

fn client(authority: &Authority) -> ClientCertificate {
    let signed = authority.client();
    ClientCertificate {
        certificate: SecretString::from(signed.certificate).into(),
        key: SecretString::from(signed.key).into(),
    }
}

/// The provider that the daemon installs at its start.
pub(crate) fn provider() {
    drop(rustls::crypto::ring::default_provider().install_default());
}

fn single(url: &str) -> RedisOptions {
    options(super::single(url))
}

/// The rule of `config/default.toml`, word for word, with another password.
pub(crate) fn documented() -> Vec<String> {
    let text = fs::read_to_string("config/default.toml").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("#   ACL SETUSER "))
        .expect("the rule stands in the defaults");
    let words = line.split(' ');
    words
        .map(|word| word.replace(">PASSWORD", ">right-secret"))
        .collect()
}

pub(crate) fn allow(server: &RedisServer, rule: &[String]) {
    () = redis::cmd("ACL")
        .arg("SETUSER")
        .arg(rule)
        .query(&mut server.connection())
        .unwrap();
}

fn as_user(mut options: RedisOptions, password: &str) -> RedisOptions {
    options.settings.user = Some("sluiced".to_owned());
    options.password = Some(SecretString::from(password).into());
    options
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_authority_and_a_client_certificate() {
    provider();
    let authority = Authority::new();
    let (server, url) = server(&authority, "yes");
    allow(&server, &documented());
    let mut right = as_user(single(&url), "right-secret");
    right.tls = trusted(&authority);
    right.tls.certificate = Some(client(&authority));
    let store = connect(&right).await;
    lease(&store, &limit("tls")).await;
    probe(&right).await.unwrap();
    let shown = format!("{right:?} {store:?}");
    assert!(
        !shown.contains("-secret") && !shown.contains("PRIVATE"),
        "{shown}"
    );

    let mut anonymous = right.clone();
    anonymous.tls.certificate = None;
    let said = down(&anonymous).await;
    assert!(said.contains("wants a certificate of the client"), "{said}");
    let mut mistrusted = right.clone();
    mistrusted.tls = trusted(&Authority::new());
    let said = down(&mistrusted).await;
    assert!(
        said.contains("an authority that is not trusted here"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rule_suffices_and_all_of_it_is_needed() {
    let server = RedisServer::start();
    let mut rule = documented();
    rule.retain(|word| word != "+cluster|slots");
    let options = as_user(single(&server.url()), "right-secret");
    // Each right is taken away in turn; the error names it and the rule.
    for (word, named) in [
        ("~sluiced:*", "keys ~sluiced:*"),
        ("+@hash", "HGET, HGETALL, HMGET, HDEL, HSET"),
        ("+evalsha", "'evalsha'"),
        ("+info", "'info'"),
        ("+time", "TIME"),
        ("+@connection", "'ping'"),
        ("+@keyspace", "DEL, EXISTS, PEXPIRE"),
        ("+@sortedset", "ZADD, ZPOPMIN"),
        ("+@string", "GET, SET"),
        ("+script|load", "'script|load'"),
    ] {
        let mut less = vec!["sluiced".to_owned(), "reset".to_owned()];
        less.extend(rule[1..].iter().filter(|kept| *kept != word).cloned());
        assert_eq!(less.len(), rule.len(), "{word} stands in the rule");
        allow(&server, &less);
        () = redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query(&mut server.connection())
            .unwrap();
        let said = down(&options).await;
        let right = rule[3..].join(" ");
        assert!(said.contains(named), "{word}: {said}");
        assert!(
            said.ends_with(&format!("ACL SETUSER NAME {right}")),
            "{said}"
        );
        assert_eq!(probe(&options).await.unwrap_err().to_string(), said);
    }
    // Limits hold without channels, but notices come late: the check reports that.
    for word in ["&sluiced:*", "+@pubsub"] {
        let mut less = vec!["sluiced".to_owned(), "reset".to_owned()];
        less.extend(rule[1..].iter().filter(|kept| *kept != word).cloned());
        allow(&server, &less);
        let store = connect(&options).await;
        lease(&store, &limit("channels")).await;
        let said = probe(&options).await.unwrap().warnings.join("\n");
        assert!(said.contains("news late"), "{said}");
        assert!(
            said.contains("channels &sluiced:*") || said.contains("PUBLISH, SUBSCRIBE"),
            "{said}"
        );
    }
    allow(&server, &rule);
    let store = connect(&options).await;
    lease(&store, &limit("enough")).await;
    // CONFIG is not allowed: nothing is known about disks, and nothing is reported.
    let mut keyed = options.clone();
    keyed.keyed = true;
    assert_eq!(probe(&keyed).await.unwrap().warnings, Vec::<String>::new());
    allow(&server, &["sluiced".to_owned(), "+config|get".to_owned()]);
    let said = probe(&keyed).await.unwrap().warnings.join("");
    assert!(said.contains("nothing is kept on disk"), "{said}");
    let said = down(&as_user(options, "wrong-secret")).await;
    assert!(
        said.contains("user or the password is wrong") && !said.contains("-secret"),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_rule_suffices_in_a_cluster() {
    let cluster = RedisCluster::start(0);
    let servers = super::cluster_of(cluster.urls());
    let options = as_user(options(servers), "right-secret");
    let mut less = documented();
    less.retain(|word| word != "+cluster|slots");
    for node in &cluster.nodes {
        allow(node, &less);
    }
    let said = down(&options).await;
    assert!(
        said.contains("'cluster|slots'") && said.ends_with("+cluster|slots"),
        "{said}"
    );
    for node in &cluster.nodes {
        allow(node, &documented());
    }
    let store = connect(&options).await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        lease(&store, &limit(name)).await;
    }
    probe(&options).await.unwrap();
}
