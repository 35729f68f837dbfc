//! What `doctor` says of the cluster.

use skillhost_api::types::Check;

use super::Cluster;

impl Cluster {
    pub(super) fn checks(&self) -> Vec<Check> {
        vec![self.lease_check(), self.hosts_check()]
    }

    fn lease_check(&self) -> Check {
        let info = self.nats.client.server_info();
        let servers = format!("NATS {} at {}:{}", info.version, info.host, info.port);
        match self.lease.term() {
            Some(_) => Check {
                name: "cluster".into(),
                ok: true,
                detail: format!("this host, {}, is one of the cluster ({servers})", self.membership.name()),
                remedy: None,
            },
            None => Check {
                name: "cluster".into(),
                ok: false,
                detail: format!(
                    "this host is cut off: {}; it answers for no session",
                    self.membership.problem().unwrap_or_else(|| "the servers do not answer".into())
                ),
                remedy: Some(
                    "see whether the NATS servers run and can be reached from here; the host comes back by itself"
                        .into(),
                ),
            },
        }
    }

    fn hosts_check(&self) -> Check {
        let hosts = self.directory.hosts();
        let mut versions: Vec<_> = hosts.iter().map(|(_, host)| host.version.as_str()).collect();
        versions.sort_unstable();
        versions.dedup();
        let names = hosts.iter().map(|(_, host)| host.name.as_str()).collect::<Vec<_>>().join(", ");
        Check {
            name: "hosts".into(),
            ok: versions.len() <= 1,
            detail: match versions.as_slice() {
                [] | [_] => format!("{} of them: {names}", hosts.len()),
                several => format!("they have several versions of skillhost: {}", several.join(", ")),
            },
            remedy: (versions.len() > 1)
                .then(|| "give all hosts the same version; a call from one version to another is refused".into()),
        }
    }
}
