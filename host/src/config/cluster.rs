//! `[cluster]`: the other hosts that this one works with, over NATS.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use skillhost_api::error::{Error, Result};

use crate::digest::sha256;

/// The most servers that are named.
const MAX_SERVERS: usize = 64;

/// What an address may begin with, and whether that is TLS.
const SCHEMES: [(&str, bool); 2] = [("nats://", false), ("tls://", true)];

/// `[cluster]`: hosts that work as one. Whoever can speak for a host over these servers can do what the owner of each can.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ClusterConfig {
    /// The NATS servers, version 2.11 or later with JetStream: `nats://HOST:PORT` or `tls://HOST:PORT`, one or a list. Those that are
    /// not on this machine take TLS and credentials.
    pub nats: Servers,
    /// The cluster's name, of which several can use the same servers: letters, digits, `-` and `_` (default: `skillhost`).
    #[serde(default = "usual_name")]
    pub name: String,
    /// This host's name in listings: letters, digits, `-` and `_` (default: the machine's).
    #[serde(default)]
    pub host: Option<String>,
    /// The file with this host's credentials, as `nsc` writes it, relative to this one (default: none).
    #[serde(default)]
    pub credentials: Option<PathBuf>,
    /// The user that this host is to the servers, when they know users by passwords (default: none).
    #[serde(default)]
    pub user: Option<String>,
    /// The file with that user's password, relative to this one, and nothing else in it (default: none).
    #[serde(default)]
    pub password_file: Option<PathBuf>,
    /// Certificates in PEM that the servers' are checked by, relative to this file (default: the system's).
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
    /// This host's own certificate in PEM, relative to this file (default: none).
    #[serde(default)]
    pub cert_file: Option<PathBuf>,
    /// The key of that certificate.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// On how many servers what hosts share is kept (1, 3 or 5; default: 3 where that many are known, else 1).
    #[serde(default)]
    pub replicas: Option<usize>,
    /// Whether new sessions may have their home here (default: true). Without it the host is a door to the others.
    #[serde(default = "usual_accepts")]
    pub accepts_sessions: bool,
    /// Whether what is written to blackboards is kept by the servers as well before it is acknowledged, so that a session whose home was
    /// lost has its values at the next (default: false). All hosts of a cluster say the same.
    #[serde(default)]
    pub blackboard_log: bool,
    /// A digest of what the file says in each table that is to be the same at all hosts.
    #[serde(skip)]
    pub(crate) settings: BTreeMap<String, String>,
}

/// What is each machine's own.
const OWN: [&str; 7] = ["backend", "cluster", "engine", "host", "kubernetes", "local", "pool"];
/// How much of a digest is compared: it finds what differs by mistake.
const DIGITS: usize = 8;

fn usual_name() -> String {
    "skillhost".into()
}

fn usual_accepts() -> bool {
    true
}

/// One address or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Servers {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl ClusterConfig {
    /// The servers' addresses.
    pub(crate) fn servers(&self) -> &[String] {
        match &self.nats {
            Servers::One(one) => std::slice::from_ref(one),
            Servers::Several(several) => several,
        }
    }

    /// Whether a connection is to be encrypted.
    pub(crate) fn tls(&self) -> bool {
        self.servers().iter().any(|server| split(server).is_ok_and(|(tls, _)| tls))
    }

    /// Refuses what cannot be meant, and what would let strangers speak for hosts.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid_argument(what));
        let servers = self.servers();
        if servers.is_empty() || servers.len() > MAX_SERVERS {
            return wrong(format!("nats: there are {} servers; 1 to {MAX_SERVERS} can be", servers.len()));
        }
        for (what, name) in [("name", Some(&self.name)), ("host", self.host.as_ref())] {
            if let Some(name) = name.filter(|name| !is_name(name)) {
                return wrong(format!("{what}: {name:?} is not usable: 1 to 32 letters, digits, `-` and `_`"));
            }
        }
        if self.cert_file.is_some() != self.key_file.is_some() {
            return wrong("cert-file and key-file go together".into());
        }
        if self.user.is_some() != self.password_file.is_some() {
            return wrong("user and password-file go together".into());
        }
        if self.replicas.is_some_and(|replicas| ![1, 3, 5].contains(&replicas)) {
            return wrong("replicas: 1, 3 or 5".into());
        }
        let known = self.credentials.is_some() || self.user.is_some() || self.cert_file.is_some();
        for server in servers {
            let (tls, host) = split(server)?;
            let here = ["localhost", "127.0.0.1", "[::1]"].contains(&host);
            let safe = here || (tls && known);
            if !safe {
                return wrong(format!(
                    "nats: {server} is not on this machine, so it takes TLS (`tls://`) and credentials (`credentials`, `user` or \
                     `cert-file`): whoever can speak there can do what the owner of each host can"
                ));
            }
        }
        Ok(())
    }

    /// Takes the digests of the settings in the file's text, and of the roles' file that it names.
    pub(super) fn digest(&mut self, text: &str, roles: Option<&Path>) {
        let tables: toml::Table = text.parse().unwrap_or_default();
        let shared = tables.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        let digest = |content: &[u8]| sha256(content).chars().take(DIGITS).collect();
        self.settings = shared.map(|(name, value)| (name.clone(), digest(value.to_string().as_bytes()))).collect();
        if let Some(content) = roles.and_then(|path| std::fs::read(path).ok()) {
            self.settings.insert("images".into(), digest(&content));
        }
    }

    /// Makes paths relative to the configuration's directory absolute.
    pub(super) fn start_at(&mut self, base: &Path) {
        let files = [
            &mut self.credentials,
            &mut self.password_file,
            &mut self.ca_file,
            &mut self.cert_file,
            &mut self.key_file,
        ];
        files.into_iter().flatten().for_each(|file| *file = base.join(&*file));
    }
}

/// Whether a server's address is for TLS, and the host in it.
fn split(server: &str) -> Result<(bool, &str)> {
    let wrong = || {
        Error::invalid_argument(format!(
            "nats: {server:?} is not usable: `nats://HOST:PORT` or `tls://HOST:PORT`, without a user or a path"
        ))
    };
    let (tls, rest) =
        SCHEMES.iter().find_map(|(scheme, tls)| Some((*tls, server.strip_prefix(scheme)?))).ok_or_else(wrong)?;
    let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
    let plain = !host.is_empty() && !host.contains(['/', '@', '?', ' ']);
    if !plain || port.parse::<u16>().is_err() {
        return Err(wrong());
    }
    Ok((tls, host))
}

/// Whether hosts and clusters can be called that: it is part of subjects and of names of streams.
fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=32).contains(&name.len()) && name.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn cluster(text: &str) -> Result<ClusterConfig, String> {
        let config = Config::parse(&format!("[cluster]\n{text}"), Path::new("/etc/skillhost.toml"));
        config.map(|config| config.cluster.unwrap()).map_err(|error| error.message)
    }

    #[test]
    fn one_line_is_enough_on_this_machine() {
        let config = cluster("nats = \"nats://127.0.0.1:4222\"\n").unwrap();
        assert_eq!((config.name.as_str(), config.accepts_sessions, config.tls()), ("skillhost", true, false));
        let far = "nats = [\"tls://a.example:4222\", \"tls://b.example:4222\"]\ncredentials = \"host.creds\"\n";
        let config = cluster(far).unwrap();
        assert_eq!(config.credentials.as_deref(), Some(Path::new("/etc/host.creds")));
        assert!(config.tls() && config.servers().len() == 2);
        assert_eq!(Config::default().cluster, None);
    }

    #[test]
    fn settings_are_compared_but_not_those_of_a_machine() {
        let settings = |more: &str| cluster(&format!("nats = \"nats://127.0.0.1:4222\"\n{more}")).unwrap().settings;
        assert_eq!(settings(""), settings("host = \"a\"\n[local]\nrequire-limits = true\n[pool]\n"));
        let (one, other) = (settings("[quota]\nsandboxes = 3\n"), settings("[quota]\nsandboxes = 4 # four\n"));
        assert!(one.keys().eq(["quota"]) && one != other);
        assert_eq!(one, settings("[quota]\n# the same\nsandboxes  =  3\n"));
    }

    #[test]
    fn what_lets_strangers_in_or_cannot_be_meant_is_refused() {
        let here = "nats = \"nats://127.0.0.1:4222\"\n";
        for (text, said) in [
            ("", "nats"),
            ("nats = []", "1 to 64"),
            ("nats = \"127.0.0.1:4222\"", "is not usable"),
            ("nats = \"nats://u:p@127.0.0.1:4222\"", "without a user"),
            ("nats = \"nats://127.0.0.1\"", "is not usable"),
            ("nats = \"nats://a.example:4222\"", "takes TLS"),
            ("nats = \"tls://a.example:4222\"", "credentials"),
            ("nats = \"nats://a.example:4222\"\ncredentials = \"x\"", "takes TLS"),
            (&format!("{here}name = \"a.b\""), "\"a.b\" is not usable"),
            (&format!("{here}host = \"\""), "\"\" is not usable"),
            (&format!("{here}cert-file = \"x\""), "go together"),
            (&format!("{here}user = \"x\""), "go together"),
            (&format!("{here}replicas = 2"), "1, 3 or 5"),
            (&format!("{here}leases = 2"), "leases"),
        ] {
            let error = cluster(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
