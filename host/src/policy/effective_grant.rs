//! How far a skill reaches: its effective grant (manifest ∩ policy), as it is kept, compared and put to a person.
//!
//! It depends on the skill's files and the operator's configuration, never on the call: the directory that a caller works
//! in is `project` here, whichever it is, since a skill that was let copy from it was let copy from where its caller
//! works. Roots that the operator named are compared by their real paths, so that a name which comes to mean another
//! directory is seen to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use skillhost_api::types::Network;

use crate::blackboard::covers;
use crate::skills::manifest::WorkspaceAccess;

/// What a skill may that was granted nothing.
pub(crate) const NOTHING: &str = "nothing but compute";

/// The effective grant of a skill. The default is nothing; so is what an older record does not tell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct EffectiveGrant {
    pub(crate) network: Network,
    /// Host roots by name.
    pub(crate) copy_out: BTreeMap<String, RootLocation>,
    pub(crate) copy_in: BTreeMap<String, RootLocation>,
    /// How its own code sees the session's workspace.
    pub(crate) workspace: WorkspaceAccess,
    /// Sandboxes at once.
    pub(crate) containers: u32,
    /// Cores of one sandbox.
    pub(crate) cpus: f64,
    pub(crate) memory_mib: u64,
    pub(crate) roles: BTreeSet<String>,
    /// Patterns of keys.
    pub(crate) publish: BTreeSet<String>,
    pub(crate) read: BTreeSet<String>,
}

/// The directory that a root means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RootLocation {
    /// Where the caller works.
    Project,
    /// In a directory that the operator named, through no link.
    At(PathBuf),
}

impl RootLocation {
    fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Project, Self::Project) => true,
            (Self::At(path), Self::At(other)) => path.starts_with(other),
            (Self::Project, Self::At(_)) | (Self::At(_), Self::Project) => false,
        }
    }
}

impl EffectiveGrant {
    /// Whether a file system that changes can change it.
    pub(crate) fn has_places(&self) -> bool {
        self.copy_in.values().chain(self.copy_out.values()).any(|place| matches!(place, RootLocation::At(_)))
    }

    /// What it has beyond `kept`, in words; nothing when it lies within. What a person must not miss comes first: the rest
    /// may be long, and is written by the skill's author.
    pub(crate) fn beyond(&self, kept: &Self) -> Vec<String> {
        let mut new = Vec::new();
        if self.network == Network::Bridge && kept.network != Network::Bridge {
            new.push("network bridge".to_owned());
        }
        new_places(&mut new, "copy out to", &self.copy_out, &kept.copy_out);
        new_places(&mut new, "copy in from", &self.copy_in, &kept.copy_in);
        if self.workspace > kept.workspace {
            let access = if self.workspace == WorkspaceAccess::ReadWrite { "read and write" } else { "read" };
            new.push(format!("{access} the session's workspace"));
        }
        more(&mut new, "sandboxes at once", self.containers, kept.containers);
        more(&mut new, "cores of a sandbox", self.cpus, kept.cpus);
        more(&mut new, "MiB of a sandbox", self.memory_mib, kept.memory_mib);
        new.extend(self.roles.difference(&kept.roles).map(|role| format!("role {role}")));
        new_patterns(&mut new, "publish", &self.publish, &kept.publish);
        new_patterns(&mut new, "read", &self.read, &kept.read);
        new
    }

    /// The grant in words.
    pub(crate) fn in_words(&self) -> String {
        let words = self.beyond(&Self::default());
        if words.is_empty() { NOTHING.into() } else { words.join("; ") }
    }
}

fn more<T: PartialOrd + Default + Display>(new: &mut Vec<String>, what: &str, now: T, kept: T) {
    if now > kept {
        let before = if kept > T::default() { format!(" (before: {kept})") } else { String::new() };
        new.push(format!("{what}: {now}{before}"));
    }
}

/// By where they lie: another name for the same directory is nothing new.
fn new_places(
    new: &mut Vec<String>,
    verb: &str,
    places: &BTreeMap<String, RootLocation>,
    kept: &BTreeMap<String, RootLocation>,
) {
    for (name, place) in places.iter().filter(|(_, place)| !kept.values().any(|kept| place.is_within(kept))) {
        new.push(match place {
            RootLocation::Project => format!("{verb} the directory that its caller works in"),
            RootLocation::At(path) => format!("{verb} {name} ({})", path.display()),
        });
    }
}

fn new_patterns(new: &mut Vec<String>, verb: &str, patterns: &BTreeSet<String>, kept: &BTreeSet<String>) {
    let is_new = |pattern: &&String| !kept.iter().any(|kept| covers(kept, pattern));
    new.extend(patterns.iter().filter(is_new).map(|pattern| format!("{verb} blackboard keys {pattern}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn at(name: &str, path: &str) -> BTreeMap<String, RootLocation> {
        [(name.to_owned(), RootLocation::At(path.into()))].into()
    }

    fn usual() -> EffectiveGrant {
        EffectiveGrant {
            roles: set(&["default"]),
            cpus: 1.0,
            memory_mib: 1024,
            containers: 1,
            copy_in: at("data", "/srv/data"),
            publish: set(&["stats:*"]),
            workspace: WorkspaceAccess::ReadOnly,
            ..EffectiveGrant::default()
        }
    }

    #[test]
    fn what_is_new_is_said_and_nothing_else() {
        let usual = usual();
        assert_eq!(usual.beyond(&usual), Vec::<String>::new());
        type Change = fn(&mut EffectiveGrant);
        let wider: [(Change, &str); 11] = [
            (|r| r.network = Network::Bridge, "network bridge"),
            (|r| r.roles.extend(["build".into()]), "role build"),
            (|r| r.cpus = 2.5, "cores of a sandbox: 2.5 (before: 1)"),
            (|r| r.memory_mib = 2048, "MiB of a sandbox: 2048 (before: 1024)"),
            (|r| r.containers = 2, "sandboxes at once: 2 (before: 1)"),
            (|r| r.copy_in = at("data", "/srv"), "copy in from data (/srv)"),
            (|r| r.copy_out = at("data", "/srv/data"), "copy out to data (/srv/data)"),
            (
                |r| r.copy_in.extend([("project".into(), RootLocation::Project)]),
                "copy in from the directory that its caller works in",
            ),
            (|r| r.workspace = WorkspaceAccess::ReadWrite, "read and write the session's workspace"),
            (|r| r.publish.extend(["stats:**".into()]), "publish blackboard keys stats:**"),
            (|r| r.read.extend(["stats:a".into()]), "read blackboard keys stats:a"),
        ];
        for (change, said) in wider {
            let mut changed = usual.clone();
            change(&mut changed);
            assert_eq!(changed.beyond(&usual), [said]);
        }
        let narrower: [Change; 8] = [
            |r| r.roles.clear(),
            |r| r.cpus = 0.5,
            |r| r.containers = 0,
            |r| r.copy_in = at("data", "/srv/data/part"),
            // Another name for the same place.
            |r| r.copy_in = at("other", "/srv/data"),
            |r| r.publish = set(&["stats:a*", "stats:b"]),
            |r| r.workspace = WorkspaceAccess::None,
            |r| *r = EffectiveGrant::default(),
        ];
        for change in narrower {
            let mut changed = usual.clone();
            change(&mut changed);
            assert_eq!(changed.beyond(&usual), Vec::<String>::new(), "{changed:?}");
        }
    }

    #[test]
    fn what_a_person_must_not_miss_comes_first() {
        let mut reach = usual();
        reach.publish = (0..128).map(|number| format!("a{number}:**")).collect();
        reach.network = Network::Bridge;
        assert!(reach.in_words().starts_with("network bridge; copy in from data"), "{}", reach.in_words());
        assert_eq!(EffectiveGrant::default().in_words(), "nothing but compute");
    }

    #[test]
    fn it_is_read_back_and_what_is_unknown_is_nothing() {
        let text = serde_json::to_string(&usual()).unwrap();
        assert_eq!(serde_json::from_str::<EffectiveGrant>(&text).unwrap(), usual());
        assert_eq!(serde_json::from_str::<EffectiveGrant>("{}").unwrap(), EffectiveGrant::default());
    }
}
