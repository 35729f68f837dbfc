//! What a skill is granted: what its manifest asks for, and the operator's policy allows.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::api::types::Network;
use crate::broker::{SandboxGrant, SkillGrant};
use crate::config::{Config, SkillPolicy};
use crate::skills::manifest::Capabilities;

/// The host root that is the directory its caller works in.
pub(super) const PROJECT_ROOT: &str = "project";

/// The grant of the skill `name`, asked for from `project`.
pub(super) fn grant(config: &Config, name: &str, asked: &Capabilities, project: Option<&Path>) -> SkillGrant {
    let policy = &config.policy;
    let none = SkillPolicy::default();
    let own = policy.skills.get(name).unwrap_or(&none);
    let sandbox = asked.sandbox.as_ref().map(|asked| {
        let roles = own.roles.as_ref().or(policy.roles.as_ref());
        let networks = own.network.as_ref().unwrap_or(&policy.network);
        SandboxGrant {
            roles: asked
                .roles
                .iter()
                .filter(|role| roles.is_none_or(|allowed| allowed.contains(role)))
                .cloned()
                .collect(),
            network: if networks.contains(&asked.network) { asked.network } else { Network::None },
            cpus: asked.cpus.min(policy.cpus),
            memory_mib: asked.memory_mib.min(policy.memory_mib),
        }
    });
    let roots = roots(config, project);
    let files = asked.files.clone().unwrap_or_default();
    let allowed = |asked: &[String], allowed: Option<&Vec<String>>| -> BTreeMap<String, PathBuf> {
        asked
            .iter()
            .filter(|root| allowed.is_none_or(|allowed| allowed.contains(root)))
            .filter_map(|root| Some((root.clone(), roots.get(root)?.clone())))
            .collect()
    };
    let board = asked.blackboard.clone().unwrap_or_default();
    SkillGrant {
        sandbox,
        copy_in: allowed(&files.copy_in, own.copy_in.as_ref()),
        copy_out: allowed(&files.copy_out, Some(own.copy_out.as_ref().unwrap_or(&policy.copy_out))),
        publish: board.publish,
        read: board.read,
    }
}

fn roots(config: &Config, project: Option<&Path>) -> BTreeMap<String, PathBuf> {
    let own = project.map(|dir| (PROJECT_ROOT.to_owned(), dir.to_owned()));
    // The operator's word about a name stands before the caller's directory.
    own.into_iter().chain(config.roots.iter().map(|(name, root)| (name.clone(), root.path.clone()))).collect()
}

/// The grant in words, by the interface that it is about.
pub(super) fn in_words(grant: &SkillGrant, import: &str) -> String {
    let names = |names: Vec<&String>| {
        if names.is_empty() { "none".to_owned() } else { names.into_iter().cloned().collect::<Vec<_>>().join(", ") }
    };
    if import.contains("/sandbox@") {
        return match &grant.sandbox {
            Some(sandbox) => format!(
                "roles {}; network {}; up to {} cores and {} MiB each",
                names(sandbox.roles.iter().collect()),
                match sandbox.network {
                    Network::None => "none",
                    Network::Bridge => "bridge",
                },
                sandbox.cpus,
                sandbox.memory_mib
            ),
            None => "nothing".into(),
        };
    }
    if import.contains("/files@") {
        return format!(
            "copy in from {}; copy out to {}",
            names(grant.copy_in.keys().collect()),
            names(grant.copy_out.keys().collect())
        );
    }
    if import.contains("/blackboard@") {
        return format!(
            "publish {}; read {}",
            names(grant.publish.iter().collect()),
            names(grant.read.iter().collect())
        );
    }
    "yes".into()
}
