//! What a face needs to offer the skills' actions, and the revision that says whether it has changed.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use sha2::{Digest as _, Sha256};

use super::fit::{MAX_LISTING, fitting, length};
use super::skills::{blocking, described};
use super::{Host, switched_off};
use crate::api::types::{ActionEntry, ActionList, Authority, SkillState};
use crate::error::Result;
use crate::skills::discovery::MIN_SHARE;
use crate::skills::{Action, Catalog, Descriptor, Entry, Loaded, Places, Roots};
use crate::units::hex;

/// The most bytes of JSON that the actions of one skill are listed with.
const MAX_SKILL: usize = 4 << 20;

/// The catalogue at one moment.
#[derive(Default)]
pub(super) struct Look {
    /// The skills that can be described, by name.
    found: Vec<Described>,
    pub(super) problems: Vec<String>,
    /// Equal for two looks only where all of their rest is.
    pub(super) revision: String,
    /// Where on disk it would show that this is not so any more.
    pub(super) places: Places,
}

impl Look {
    /// The skills' directories, and what was read there.
    pub(super) fn skills(&self) -> impl Iterator<Item = (&PathBuf, &Arc<Loaded>)> {
        self.found.iter().filter_map(|skill| Some((&skill.entry.dir, skill.entry.loaded.as_ref().ok()?)))
    }
}

struct Described {
    entry: Entry,
    descriptor: Arc<Descriptor>,
    state: SkillState,
}

impl Host {
    /// Looks at the catalogue. Waits for the file system.
    pub(super) fn look_at(&self, project: Option<&Path>, with_places: bool) -> Result<Look> {
        let roots = Roots::from_env(project);
        let mut catalog = Catalog::discover(&roots, &self.shelf);
        let places = if with_places { Places::of(&roots, &catalog) } else { Places::default() };
        let mut problems = std::mem::take(&mut catalog.problems);
        problems.append(&mut catalog.collisions);
        // A face offers them to agents.
        catalog.skills.retain(|_, entry| switched_off::check_shown(&self.config, entry, Authority::Agent).is_ok());
        let all = described(catalog.skills.into_values().collect(), &self.descriptors);
        let trust = self.trusts(all.iter().map(|(entry, _)| entry), project)?;
        let mut found = Vec::with_capacity(all.len());
        for (entry, descriptor) in all {
            match descriptor {
                Ok(descriptor) => {
                    let state = trust.state(&entry, &descriptor).0;
                    found.push(Described { entry, descriptor, state });
                }
                Err(error) => problems.push(error.message),
            }
        }
        let revision = revision(&found, &problems);
        Ok(Look { found, problems, revision, places })
    }

    /// The catalogue, and where a change of it would show.
    pub(super) async fn look(self: &Arc<Self>, project: Option<PathBuf>) -> Result<Look> {
        let host = self.clone();
        blocking(move || host.look_at(project.as_deref(), true)).await
    }

    pub(super) async fn list_actions(
        self: &Arc<Self>,
        project: Option<PathBuf>,
        unless: Option<String>,
    ) -> Result<ActionList> {
        let host = self.clone();
        blocking(move || {
            let kept = host.looks.get(project.as_deref());
            let is_kept = kept.is_some();
            let look = match kept {
                Some(look) => look,
                None => Arc::new(host.look_at(project.as_deref(), false)?),
            };
            if unless.as_ref() != Some(&look.revision) {
                return Ok(list(&look));
            }
            if !is_kept {
                host.keep_look(project);
            }
            Ok(ActionList { revision: look.revision.clone(), actions: None, problems: Vec::new() })
        })
        .await
    }
}

/// A digest of all that the listing is made of. Of the skills' own files it holds the digests and not what is made of them.
fn revision(found: &[Described], problems: &[String]) -> String {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    // Another version may say other things of the same files.
    part(env!("CARGO_PKG_VERSION").as_bytes());
    for Described { entry, descriptor, state } in found {
        part(entry.name.as_bytes());
        part(entry.dir.as_os_str().as_encoded_bytes());
        part(&[entry.source as u8, *state as u8]);
        part(descriptor.digest.as_bytes());
        if let Ok(loaded) = &entry.loaded {
            part(loaded.texts());
        }
    }
    part(b"");
    for problem in problems {
        part(problem.as_bytes());
    }
    hex(&hash.finalize())
}

fn list(look: &Look) -> ActionList {
    let Look { found, problems, revision, .. } = look;
    let mut problems = problems.clone();
    let entry = |skill: &Described| {
        let actions = entries(skill);
        let length = (skill.entry.source, length(&actions));
        (actions, length)
    };
    let (actions, lengths): (Vec<_>, Vec<_>) = found.par_iter().with_min_len(MIN_SHARE).map(entry).unzip();
    let fits = fitting(&lengths, MAX_LISTING);
    let mut offered = Vec::with_capacity(actions.len());
    for ((skill, actions), ((_, length), fits)) in found.iter().zip(actions).zip(lengths.iter().zip(fits)) {
        if *length <= MAX_SKILL && fits {
            offered.extend(actions);
            continue;
        }
        let why = match *length > MAX_SKILL {
            true => format!("more than the {MAX_SKILL} that one skill may have"),
            false => format!("and with those of the other skills they are more than {MAX_LISTING}"),
        };
        problems.push(format!(
            "{}: its actions are not listed: their descriptions and schemas are {length} bytes, {why}; expose fewer of them \
             with `[actions] expose` in its skill.toml",
            skill.entry.name
        ));
    }
    ActionList { revision: revision.clone(), actions: Some(offered), problems }
}

fn entries(skill: &Described) -> Vec<ActionEntry> {
    let Described { entry, descriptor, state } = skill;
    let Ok(loaded) = &entry.loaded else { return Vec::new() };
    let capabilities = &loaded.manifest.capabilities;
    let of = |action: &Action| ActionEntry {
        skill: entry.name.clone(),
        action: action.name.clone(),
        description: action.docs.clone(),
        skill_description: loaded.frontmatter.description.clone(),
        signature: action.signature.clone(),
        input_schema: action.input_schema.clone(),
        output_schema: action.output_schema.clone(),
        source: entry.source.name().into(),
        state: *state,
        sole: descriptor.actions.len() == 1,
        read_only: capabilities.read_only(),
        open_world: capabilities.open_world(),
        directory: entry.dir.clone(),
    };
    descriptor.actions.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::skills::{ExportPath, Root, Shelf, Source};

    /// Skills in files, with descriptions of their actions that are so long.
    fn found(skills: &[(&str, usize)]) -> Vec<Described> {
        let temp = tempfile::tempdir().unwrap();
        for (name, _) in skills {
            let dir = temp.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            let manifest = format!("[skill]\nname = \"{name}\"\nversion = \"1.0.0\"\ncomponent = \"c.wasm\"\n");
            std::fs::write(dir.join("skill.toml"), manifest).unwrap();
            std::fs::write(dir.join("SKILL.md"), "---\ndescription: d\n---\n").unwrap();
        }
        let roots = Roots(vec![Root { dir: temp.path().to_owned(), source: Source::User }]);
        let catalog = Catalog::discover(&roots, &Shelf::default());
        let described = |entry: Entry| {
            let docs = skills.iter().find(|(name, _)| *name == entry.name).map_or(0, |(_, length)| *length);
            let action = Action {
                name: "act".into(),
                export: ExportPath { interface: None, function: "act".into() },
                params: Vec::new(),
                result: None,
                docs: "x".repeat(docs),
                signature: "func()".into(),
                input_schema: json!({"type": "object"}),
                output_schema: None,
            };
            let descriptor = Descriptor {
                digest: format!("sha256:{docs}"),
                imports: Vec::new(),
                actions: vec![action],
                unavailable: Default::default(),
            };
            Described { entry, descriptor: Arc::new(descriptor), state: SkillState::Ready }
        };
        catalog.skills.into_values().map(described).collect()
    }

    fn listed(skills: &[(&str, usize)]) -> (Vec<String>, Vec<String>) {
        let look =
            Look { found: found(skills), problems: Vec::new(), revision: String::new(), places: Places::default() };
        let list = list(&look);
        (list.actions.unwrap().into_iter().map(|action| action.skill).collect(), list.problems)
    }

    #[test]
    fn a_skill_that_says_too_much_is_left_out_and_no_other() {
        let (offered, problems) = listed(&[("a", 10), ("long", MAX_SKILL), ("z", MAX_SKILL - 10_000)]);
        assert_eq!(offered, ["a", "z"]);
        assert!(problems.len() == 1 && problems[0].starts_with("long: "), "{problems:?}");
    }

    #[test]
    fn many_that_say_much_leave_room_for_those_that_say_little() {
        let names: Vec<_> = (0..12).map(|number| format!("long-{number:02}")).collect();
        let mut skills: Vec<_> = names.iter().map(|name| (name.as_str(), MAX_SKILL - 10_000)).collect();
        skills.extend([("a", 10), ("z", 10)]);
        let (offered, problems) = listed(&skills);
        assert!(offered.contains(&"a".into()) && offered.contains(&"z".into()), "{offered:?}");
        assert_eq!(offered.len() + problems.len(), skills.len());
        assert!(offered.len() >= 2 + MAX_LISTING / MAX_SKILL && !problems.is_empty(), "{offered:?}");
    }

    #[test]
    fn whatever_is_listed_is_in_the_revision() {
        let of = |found: &[Described], problems: &[&str]| {
            revision(found, &problems.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let plain = found(&[("a", 1)]);
        let mut seen = std::collections::BTreeSet::from([of(&plain, &[])]);
        assert!(!seen.insert(of(&plain, &[])), "the same is the same");
        let mut other = found(&[("a", 1)]);
        other[0].entry.dir = plain[0].entry.dir.clone();
        assert!(!seen.insert(of(&other, &[])), "and read again");
        other[0].state = SkillState::Untrusted;
        assert!(seen.insert(of(&other, &[])));
        other[0].entry.source = Source::System;
        assert!(seen.insert(of(&other, &[])));
        other[0].entry.name = "b".into();
        assert!(seen.insert(of(&other, &[])));
        other[0].descriptor = found(&[("a", 2)])[0].descriptor.clone();
        assert!(seen.insert(of(&other, &[])));
        other[0].entry.dir = "/elsewhere".into();
        assert!(seen.insert(of(&other, &[])));
        other[0].entry.loaded = found(&[("c", 1)])[0].entry.loaded.clone();
        assert!(seen.insert(of(&other, &[])), "another manifest");
        for problems in [&["x"][..], &["y"], &["x", "y"], &["xy"], &["", "xy"]] {
            assert!(seen.insert(of(&plain, problems)), "{problems:?}");
        }
        assert!(seen.insert(of(&[], &[])));
    }
}
