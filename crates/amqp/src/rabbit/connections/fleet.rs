//! What a fleet is called if no name is written: after its broker.

use std::net::IpAddr;

use sluiced_ports::store::FleetNames;

/// What a fleet of this virtual host is called: after the cluster, and after each address.
///
/// RabbitMQ's clusters have a name of their own only if an operator set it; otherwise each node says its own name. Then
/// the replicas of a fleet have the addresses in common. A single address of this machine says nothing: other machines
/// have brokers there, too. So it counts only where the broker has no name (not every broker has).
pub(super) fn fleet_names<'a>(
    cluster: Option<&'a str>,
    hosts: impl ExactSizeIterator<Item = &'a str>,
    vhost: &str,
) -> FleetNames {
    let several = hosts.len() > 1;
    let counts = |host: &&str| several || cluster.is_none() || !is_of_this_machine(host);
    cluster
        .into_iter()
        .chain(hosts.filter(counts))
        .map(|name| format!("{name}:{vhost}").replace(char::is_control, "?"))
        .collect()
}

/// Whether `host:port` leads to this machine wherever it is used.
fn is_of_this_machine(host: &str) -> bool {
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, _)| name)
        .trim_matches(['[', ']']);
    name == "localhost" || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_is_named_after_the_cluster_and_its_addresses() {
        let names = |cluster, hosts: &[&str], vhost| {
            fleet_names(cluster, hosts.iter().copied(), vhost).join(" ")
        };
        let named = Some("rabbit@a");
        for (cluster, hosts, said) in [
            (named, &["127.0.0.1:5672"][..], "rabbit@a:/"),
            (named, &["localhost:5672"], "rabbit@a:/"),
            (named, &["[::1]:5672"], "rabbit@a:/"),
            (named, &["mq:5672"], "rabbit@a:/ mq:5672:/"),
            (
                named,
                &["127.0.0.1:1", "127.0.0.1:2"],
                "rabbit@a:/ 127.0.0.1:1:/ 127.0.0.1:2:/",
            ),
            (None, &["127.0.0.1:5672"], "127.0.0.1:5672:/"),
        ] {
            assert_eq!(names(cluster, hosts, "/"), said);
        }
        assert_eq!(names(Some("a\nb"), &["127.0.0.1:5672"], "x"), "a?b:x");
    }
}
