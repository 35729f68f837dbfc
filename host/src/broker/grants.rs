//! What an actor may do, and the checks that hold it to that. Each check stands here once, whoever asks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::api::types::{HostPath, LaunchRequest, Network};
use crate::blackboard::{check_unreserved, matches};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::sandbox::spec::SandboxInfo;

/// What an actor may do.
#[derive(Debug, Clone)]
pub(crate) enum Grant {
    /// The state directory's owner at the command line: the operator's policy and the quotas, nothing narrower.
    Owner,
    /// A skill: what its manifest asks for and the operator's policy allows.
    Skill(Box<SkillGrant>),
}

/// What a skill may do. The default is nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct SkillGrant {
    pub(crate) sandbox: Option<SandboxGrant>,
    /// Host roots by name.
    pub(crate) copy_in: BTreeMap<String, PathBuf>,
    pub(crate) copy_out: BTreeMap<String, PathBuf>,
    /// Patterns of keys.
    pub(crate) publish: Vec<String>,
    pub(crate) read: Vec<String>,
}

/// What sandboxes a skill may have.
#[derive(Debug, Clone)]
pub(crate) struct SandboxGrant {
    pub(crate) roles: Vec<String>,
    pub(crate) network: Network,
    /// The most that one may have, and what one gets that asks for nothing.
    pub(crate) cpus: f64,
    pub(crate) memory_mib: u64,
}

/// Which way files go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    In,
    Out,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::In => "copy-in",
            Self::Out => "copy-out",
        }
    }
}

/// A path on the host, and the directory that it must stay beneath.
#[derive(Debug)]
pub(crate) struct Beneath {
    pub(crate) root: PathBuf,
    pub(crate) path: PathBuf,
}

fn not_granted(what: &str, remedy: &str) -> Error {
    Error::denied(format!("{what} is not granted to this skill: {remedy}"))
}

impl Grant {
    fn sandbox(&self) -> Result<Option<&SandboxGrant>> {
        match self {
            Self::Owner => Ok(None),
            Self::Skill(grant) => grant.sandbox.as_ref().map(Some).ok_or_else(|| {
                not_granted(
                    "running commands",
                    "ask for it with `sandbox = { roles = [\"default\"] }` under [capabilities] in its skill.toml",
                )
            }),
        }
    }

    /// The roles that may be used; `None` is every one that is listed.
    pub(crate) fn roles(&self) -> Result<Option<&[String]>> {
        Ok(self.sandbox()?.map(|grant| grant.roles.as_slice()))
    }

    /// Checks that a role may be used, or looked at.
    pub(crate) fn role(&self, role: &str) -> Result<()> {
        self.sandbox()?.map_or(Ok(()), |grant| use_role(grant, role))
    }

    /// Checks a launch, and fills in the size of what was not asked for.
    pub(crate) fn launch(&self, config: &Config, request: &mut LaunchRequest) -> Result<()> {
        let network = request.network.unwrap_or_default();
        match self.sandbox()? {
            Some(grant) => {
                use_sandbox(grant, &request.role, network)?;
                let cpus = *request.cpus.get_or_insert(grant.cpus);
                let memory_mib = *request.memory_mib.get_or_insert(grant.memory_mib);
                if cpus > grant.cpus || memory_mib > grant.memory_mib {
                    return Err(Error::denied(format!(
                        "a sandbox with {cpus} cores and {memory_mib} MiB is more than the {} cores and {} MiB that this \
                         skill is granted: ask for less, or raise them under [capabilities] and in the operator's [policy]",
                        grant.cpus, grant.memory_mib
                    )));
                }
            }
            None => {
                if !config.policy.network.contains(&network) {
                    return Err(Error::denied(
                        "the operator's policy does not allow the network `bridge`: \
                         allow it with `network = [\"none\", \"bridge\"]` under [policy] in skillhost.toml",
                    ));
                }
                request.cpus.get_or_insert(1.0);
                request.memory_mib.get_or_insert(1024);
            }
        }
        Ok(())
    }

    /// Checks the use of a sandbox that runs already: a skill that attaches gains no more than by launching.
    pub(crate) fn attach(&self, info: &SandboxInfo) -> Result<()> {
        match self.sandbox()? {
            Some(grant) => use_sandbox(grant, &info.role, info.network),
            None => Ok(()),
        }
    }

    /// Checks a copy and gives the place on the host.
    pub(crate) fn copy(&self, direction: Direction, host: &HostPath) -> Result<Beneath> {
        match (self, host) {
            (Self::Owner, HostPath::Owner(path)) => owner_path(path),
            (Self::Owner, HostPath::Root { .. }) => {
                Err(Error::invalid_argument("the command line names host paths, not roots"))
            }
            (Self::Skill(_), HostPath::Owner(_)) => {
                Err(not_granted("a path of the host", "name a root and a path beneath it"))
            }
            (Self::Skill(grant), HostPath::Root { root, path }) => {
                let roots = match direction {
                    Direction::In => &grant.copy_in,
                    Direction::Out => &grant.copy_out,
                };
                let dir = roots.get(root).ok_or_else(|| {
                    let remedy = format!(
                        "ask for it with `files = {{ {} = [{root:?}] }}` under [capabilities] in its skill.toml, and let \
                         the operator's [roots] and [policy] in skillhost.toml allow it",
                        direction.name()
                    );
                    not_granted(&format!("{} with the host root {root:?}", direction.name()), &remedy)
                })?;
                Ok(Beneath { root: dir.clone(), path: PathBuf::from(path) })
            }
        }
    }

    /// Checks a write of a key. What the host alone writes is refused to everybody.
    pub(crate) fn publish(&self, key: &str) -> Result<()> {
        self.publish_by_host(key)?;
        check_unreserved(key)
    }

    /// Checks that the host may write a key on behalf of this one.
    pub(crate) fn publish_by_host(&self, key: &str) -> Result<()> {
        match self {
            Self::Owner => Ok(()),
            Self::Skill(grant) => key_in(&grant.publish, "publish", key),
        }
    }

    /// Checks that a key may be deleted: whoever may publish it may, and the owner anything.
    pub(crate) fn delete(&self, key: &str) -> Result<()> {
        match self {
            Self::Owner => Ok(()),
            Self::Skill(_) => self.publish(key),
        }
    }

    /// Checks a read of a key.
    pub(crate) fn read(&self, key: &str) -> Result<()> {
        match self {
            Self::Owner => Ok(()),
            Self::Skill(grant) => key_in(&grant.read, "read", key),
        }
    }

    /// The patterns of what may be read; `None` is everything.
    pub(crate) fn readable(&self) -> Option<Vec<String>> {
        match self {
            Self::Owner => None,
            Self::Skill(grant) => Some(grant.read.clone()),
        }
    }
}

fn use_role(grant: &SandboxGrant, role: &str) -> Result<()> {
    if !grant.roles.iter().any(|granted| granted == role) {
        return Err(not_granted(
            &format!("the role {role:?}"),
            &format!(
                "it has {:?}; ask for more with `sandbox = {{ roles = […] }}` under [capabilities] in its skill.toml",
                grant.roles
            ),
        ));
    }
    Ok(())
}

fn use_sandbox(grant: &SandboxGrant, role: &str, network: Network) -> Result<()> {
    use_role(grant, role)?;
    if network != Network::None && grant.network != network {
        return Err(not_granted(
            "the network `bridge`",
            "ask for it with `sandbox = { network = \"bridge\" }` under [capabilities] in its skill.toml, and let the operator \
             allow it with `network = [\"none\", \"bridge\"]` under [policy] in skillhost.toml",
        ));
    }
    Ok(())
}

fn key_in(patterns: &[String], verb: &str, key: &str) -> Result<()> {
    if patterns.iter().any(|pattern| matches(pattern, key)) {
        return Ok(());
    }
    Err(not_granted(
        &format!("to {verb} the blackboard key {key:?}"),
        &format!("ask for it with `blackboard = {{ {verb} = [{key:?}] }}` under [capabilities] in its skill.toml"),
    ))
}

/// A path of the owner's own: the directory that it names, or the file in its directory.
fn owner_path(path: &Path) -> Result<Beneath> {
    if !path.is_absolute() {
        return Err(Error::invalid_argument(format!("the host path {} is not absolute", path.display())));
    }
    match (path.parent(), path.file_name()) {
        (Some(root), Some(name)) => Ok(Beneath { root: root.to_owned(), path: PathBuf::from(name) }),
        _ => {
            Err(Error::invalid_argument(format!("the host path {} names no file or directory to copy", path.display())))
        }
    }
}
