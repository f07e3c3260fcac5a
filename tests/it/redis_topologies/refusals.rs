//! Servers of another kind than configured: errors that name the remedy.

use sluiced_settings::types::Redis;
use sluiced_store::redis::probe;

use super::{cluster_of, down, options, sentinels, single};
use crate::support::port::free_port;
use crate::support::redis::RedisServer;
use crate::support::redis_cluster::RedisCluster;
use crate::support::redis_sentinel::SentinelGroup;

/// What the daemon logs, and `check --connect` reports too.
async fn says(servers: Redis) -> String {
    let options = options(servers);
    let said = down(&options).await;
    let probed = probe(&options).await.unwrap_err();
    assert_eq!(probed.to_string(), said);
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_of_a_cluster_is_no_single_server() {
    let cluster = RedisCluster::shared();
    let url = &cluster.urls()[0];
    let port = cluster.nodes[0].port();
    assert_eq!(
        says(single(url)).await,
        format!(
            "Redis refused: 127.0.0.1:{port}: this is a node of a cluster: set redis.mode to \"cluster\""
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_server_is_no_cluster_and_no_sentinel() {
    let server = RedisServer::shared();
    let (url, port) = (server.url().replace("/0", ""), server.port());
    assert_eq!(
        says(cluster_of(vec![url.clone()])).await,
        format!(
            "Redis refused: 127.0.0.1:{port} is no node of a cluster: set redis.mode to \"single\""
        )
    );
    assert_eq!(
        says(sentinels(vec![url])).await,
        format!("Redis refused: the Sentinel at 127.0.0.1:{port}: this is no Sentinel")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinel_is_no_server_and_knows_its_own_groups_only() {
    let group = SentinelGroup::shared();
    let url = &group.urls()[0];
    let at = url.trim_start_matches("redis://");
    assert_eq!(
        says(single(url)).await,
        format!(
            "Redis refused: {at}: this is a Sentinel and keeps no limits: set redis.mode to \"sentinel\", with the Sentinels as redis.urls"
        )
    );
    let other = Redis {
        sentinel_service: Some("other".to_owned()),
        ..sentinels(vec![url.clone()])
    };
    assert_eq!(
        says(other).await,
        format!(
            "Redis refused: the Sentinel at {at}: it knows no `other`: see `sentinel monitor` in its file"
        )
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_absent_server_is_reported_for_each_kind() {
    let nowhere = || vec![format!("redis://127.0.0.1:{}", free_port())];
    for servers in [cluster_of(nowhere()), sentinels(nowhere())] {
        let said = down(&options(servers)).await;
        assert!(said.contains("onnection refused"), "{said}");
    }
}
