//! What is granted: to a skill what its manifest asks for and the operator's policy allows, to an agent that acts itself what
//! the operator lets agents do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use skillhost_api::types::Network;

use crate::config::{Config, SkillPolicy};
use crate::policy::{EffectiveGrant, LimitedGrant, RootLocation, SandboxGrant};
use crate::roles::Roles;
use crate::skills::imports::ImportKind;
use crate::skills::manifest::{Capabilities, Files, Sandbox, WorkspaceAccess};

/// The host root that is the directory its caller works in.
pub(crate) const PROJECT_ROOT: &str = "project";

/// What the policy says of one skill.
struct Rules<'a> {
    config: &'a Config,
    own: Option<&'a SkillPolicy>,
}

impl<'a> Rules<'a> {
    fn of(config: &'a Config, name: &str) -> Self {
        Self { config, own: config.policy.skills.get(name) }
    }

    fn sandbox(&self, asked: &Capabilities) -> Option<SandboxGrant> {
        let (asked, policy) = (asked.sandbox.as_ref()?, &self.config.policy);
        let roles = self.own.and_then(|own| own.roles.as_ref()).or(policy.roles.as_ref());
        let networks = self.own.and_then(|own| own.network.as_ref()).unwrap_or(&policy.network);
        let allowed = |role: &&String| roles.is_none_or(|allowed| allowed.contains(role));
        Some(SandboxGrant {
            roles: Some(asked.roles.iter().filter(allowed).cloned().collect()),
            network: if networks.contains(&asked.network) { asked.network } else { Network::None },
            cpus: asked.cpus.min(policy.cpus),
            memory_mib: asked.memory_mib.min(policy.memory_mib),
        })
    }

    /// The names of the roots that it may copy in from.
    fn copy_in<'b>(&self, asked: &'b Files) -> impl Iterator<Item = &'b String> {
        let allowed = self.own.and_then(|own| own.copy_in.as_ref());
        asked.copy_in.iter().filter(move |root| allowed.is_none_or(|allowed| allowed.contains(root)))
    }

    /// The names of those that it may copy out to.
    fn copy_out<'b>(&self, asked: &'b Files) -> impl Iterator<Item = &'b String> {
        let allowed = self.own.and_then(|own| own.copy_out.as_ref()).unwrap_or(&self.config.policy.copy_out);
        asked.copy_out.iter().filter(move |root| allowed.contains(root))
    }
}

/// The grant of the skill `name`, asked for from `project`.
pub(crate) fn grant(config: &Config, name: &str, asked: &Capabilities, project: Option<&Path>) -> LimitedGrant {
    let rules = Rules::of(config, name);
    let roots = roots(config, project);
    let files = asked.files.clone().unwrap_or_default();
    let board = asked.blackboard.clone().unwrap_or_default();
    LimitedGrant {
        sandbox: rules.sandbox(asked),
        copy_in: those(&roots, rules.copy_in(&files)),
        copy_out: those(&roots, rules.copy_out(&files)),
        publish: board.publish,
        read: board.read,
    }
}

/// How far the skill `name` reaches with it, whoever calls from wherever.
pub(crate) fn reach(config: &Config, name: &str, asked: &Capabilities) -> EffectiveGrant {
    let rules = Rules::of(config, name);
    let files = asked.files.clone().unwrap_or_default();
    let board = asked.blackboard.clone().unwrap_or_default();
    let place = |name: &String| {
        let place = match config.roots.get(name) {
            // One that is not there is where it would be.
            Some(root) => RootLocation::At(std::fs::canonicalize(&root.path).unwrap_or_else(|_| root.path.clone())),
            None if name == PROJECT_ROOT => RootLocation::Project,
            None => return None,
        };
        Some((name.clone(), place))
    };
    let mut reach = EffectiveGrant {
        copy_in: rules.copy_in(&files).filter_map(place).collect(),
        copy_out: rules.copy_out(&files).filter_map(place).collect(),
        workspace: files.workspace,
        publish: board.publish.into_iter().collect(),
        read: board.read.into_iter().collect(),
        ..EffectiveGrant::default()
    };
    if let Some(sandbox) = rules.sandbox(asked) {
        reach.network = sandbox.network;
        reach.cpus = sandbox.cpus;
        reach.memory_mib = sandbox.memory_mib;
        reach.containers = asked.sandbox.as_ref().map_or(0, |asked| asked.containers);
        reach.roles = sandbox.roles.unwrap_or_default().into_iter().collect();
    }
    reach
}

/// What an agent may do itself, that works in `project`.
pub(crate) fn agent(config: &Config, project: Option<&Path>) -> LimitedGrant {
    let (policy, agents) = (&config.policy, &config.policy.agents);
    let roots = roots(config, project);
    let networks = agents.network.as_ref().unwrap_or(&policy.network);
    let board = agents.blackboard.clone();
    LimitedGrant {
        sandbox: Some(SandboxGrant {
            roles: agents.roles.as_ref().or(policy.roles.as_ref()).cloned(),
            network: if networks.contains(&Network::Bridge) { Network::Bridge } else { Network::None },
            cpus: agents.cpus.unwrap_or(policy.cpus),
            memory_mib: agents.memory_mib.unwrap_or(policy.memory_mib),
        }),
        copy_in: those(&roots, agents.copy_in.iter()),
        copy_out: those(&roots, agents.copy_out.iter()),
        publish: board.publish,
        read: board.read,
    }
}

/// The roots of these names, as far as there are any.
fn those<'a>(roots: &BTreeMap<String, PathBuf>, names: impl Iterator<Item = &'a String>) -> BTreeMap<String, PathBuf> {
    names.filter_map(|name| Some((name.clone(), roots.get(name)?.clone()))).collect()
}

fn roots(config: &Config, project: Option<&Path>) -> BTreeMap<String, PathBuf> {
    let own = project.map(|dir| (PROJECT_ROOT.to_owned(), dir.to_owned()));
    // The operator's word about a name stands before the caller's directory.
    own.into_iter().chain(config.roots.iter().map(|(name, root)| (name.clone(), root.path.clone()))).collect()
}

/// What is granted where nothing is.
pub(crate) const NOTHING: &str = "nothing";

/// The grant in words, by what it is about, with what of it was asked for in vain.
pub(crate) fn in_words(grant: &LimitedGrant, asked: &Capabilities, import: ImportKind, roles: &Roles) -> String {
    let empty = Files::default();
    let files = asked.files.as_ref().unwrap_or(&empty);
    match (import, &grant.sandbox, &asked.sandbox) {
        (ImportKind::Sandbox, Some(sandbox), Some(asked)) => {
            let network = (asked.network != sandbox.network).then(|| asked.network.name().to_owned());
            format!(
                "roles {}; network {}{}; up to {} cores{} and {} MiB{} each",
                role_names(sandbox, asked, roles),
                sandbox.network.name(),
                in_vain(network),
                sandbox.cpus,
                in_vain((asked.cpus > sandbox.cpus).then(|| asked.cpus.to_string())),
                sandbox.memory_mib,
                in_vain((asked.memory_mib > sandbox.memory_mib).then(|| asked.memory_mib.to_string())),
            )
        }
        (ImportKind::Scripts, Some(sandbox), Some(asked)) => format!("of roles {}", role_names(sandbox, asked, roles)),
        (ImportKind::Sandbox | ImportKind::Scripts, _, _) => NOTHING.into(),
        (ImportKind::Files, _, _) => format!(
            "copy in from {}; copy out to {}",
            names(grant.copy_in.keys(), &files.copy_in, String::clone),
            names(grant.copy_out.keys(), &files.copy_out, String::clone)
        ),
        (ImportKind::Blackboard, _, _) => format!(
            "publish {}; read {}",
            names(&grant.publish, &[], String::clone),
            names(&grant.read, &[], String::clone)
        ),
        (ImportKind::WasiFiles, _, _) => match files.workspace {
            WorkspaceAccess::None => NOTHING,
            WorkspaceAccess::ReadOnly => "read the session's workspace",
            WorkspaceAccess::ReadWrite => "read and write the session's workspace",
        }
        .into(),
        (ImportKind::WasiSockets, _, _) => NOTHING.into(),
        (ImportKind::Types | ImportKind::Log | ImportKind::Wasi, _, _) => "yes".into(),
    }
}

fn role_names(granted: &SandboxGrant, asked: &Sandbox, roles: &Roles) -> String {
    names(granted.roles.iter().flatten(), &asked.roles, |role| match roles.get(role) {
        Some(_) => role.clone(),
        None => format!("{role} (there is no such role)"),
    })
}

fn names<'a>(
    granted: impl IntoIterator<Item = &'a String>,
    asked: &[String],
    show: impl Fn(&String) -> String,
) -> String {
    let granted: Vec<_> = granted.into_iter().collect();
    let shown = match granted.as_slice() {
        [] => "none".to_owned(),
        granted => granted.iter().map(|name| show(name)).collect::<Vec<_>>().join(", "),
    };
    shown + &in_vain(asked.iter().filter(|name| !granted.contains(name)).cloned())
}

fn in_vain(names: impl IntoIterator<Item = String>) -> String {
    let names: Vec<_> = names.into_iter().collect();
    if names.is_empty() { String::new() } else { format!(" (asked for and not granted: {})", names.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skills::imports::{PACKAGE, VERSION, known};

    #[test]
    fn what_needs_a_capability_that_is_not_granted_is_not_shown_as_granted() {
        let asked = Capabilities::default();
        let granted =
            |import: &str| in_words(&LimitedGrant::default(), &asked, known(import).unwrap().0, &Roles::default());
        for interface in ["sandbox", "scripts"] {
            assert_eq!(granted(&format!("{PACKAGE}/{interface}@{VERSION}")), NOTHING, "{interface}");
        }
        for (interface, words) in [
            ("files", "copy in from none; copy out to none"),
            ("blackboard", "publish none; read none"),
            ("log", "yes"),
            ("types", "yes"),
        ] {
            assert_eq!(granted(&format!("{PACKAGE}/{interface}@{VERSION}")), words, "{interface}");
        }
        assert_eq!(granted("wasi:filesystem/types@0.2.6"), NOTHING);
        assert_eq!(granted("wasi:sockets/tcp@0.2.6"), NOTHING);
        assert_eq!(granted("wasi:clocks/wall-clock@0.2.6"), "yes");
        let files = Files { workspace: WorkspaceAccess::ReadOnly, ..Files::default() };
        let asked = Capabilities { files: Some(files), ..Capabilities::default() };
        let words = in_words(
            &LimitedGrant::default(),
            &asked,
            known("wasi:filesystem/types@0.2.6").unwrap().0,
            &Roles::default(),
        );
        assert_eq!(words, "read the session's workspace");
    }
}
