//! Which skills may run, and with how much.
//!
//! # The rule
//!
//! | the skill's root | it was never let run | it was |
//! | --- | --- | --- |
//! | is trusted | it runs, and what it reaches is kept as its baseline | it runs with that or less; more is asked about |
//! | is not | its first use is asked about | the same, and only while its component and `skill.toml` are those that were approved |
//!
//! One rule, whoever asks: the owner at the command line is refused what an agent is refused. What is kept belongs to a
//! directory, through no link, so that a skill of the same name elsewhere gains nothing by it.
//!
//! # Cost
//!
//! The database is read once, when the host opens. What was accepted last in a directory is remembered; the same files under
//! the same configuration reach as far as before, so a call that finds them there is let through without looking further,
//! unless it reaches a directory that the operator named: then links on the way to that may have moved.
//!
//! Every change is made under one lock and written before it counts, except that what is forgotten counts for nothing at
//! once, whatever becomes of the database.

mod rule;
mod store;

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use store::Skills;

use super::approvals::HOW;
use super::question::Injective;
use super::reach::Reach;
use super::{Actor, Broker, Record};
use crate::api::types::Done;
use crate::error::{Error, Result};
use crate::skills::Loaded;
use crate::units::quoted;

/// How much of a reach is shown in a listing, and in a refusal.
const MAX_LISTED: usize = 1024;
/// The effect that a skill's run is, where it is refused or asked about.
pub(crate) const SKILL_RUN: &str = "skill.run";

/// A skill that is about to run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'a str,
    /// Its directory, as it was found.
    pub(crate) dir: &'a Path,
    /// The digest of its component, and that of its `skill.toml`.
    pub(crate) component: &'a str,
    pub(crate) manifest: &'a str,
    /// The project that it is of; none of the user's and the system's own.
    pub(crate) project: Option<&'a Path>,
    /// Whether whoever puts skills there is trusted.
    pub(crate) trusted: bool,
}

/// What a skill was let run with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Kept {
    pub(super) skill: String,
    project: Option<PathBuf>,
    component: String,
    manifest: String,
    /// By the owner, and not because its root was trusted.
    approved: bool,
    reach: Reach,
    at_ms: u64,
}

/// What is kept from now on, and where.
#[derive(Debug, Clone)]
pub(super) struct Keeps {
    dir: PathBuf,
    pub(super) kept: Kept,
}

impl Keeps {
    /// Adds all that an approval of it is bound to.
    pub(super) fn add_to(&self, digest: &mut Injective) -> Result<()> {
        let Self { dir, kept } = self;
        // Not when it was asked.
        let Kept { skill, project, component, manifest, approved: _, reach, at_ms: _ } = kept;
        digest.part(dir.as_os_str().as_bytes());
        digest.part(project.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes());
        digest.part(text(reach)?.as_bytes());
        for word in [skill, component, manifest] {
            digest.part(word.as_bytes());
        }
        Ok(())
    }

    /// Notes what it is about.
    pub(super) fn note(&self, record: &mut Record) {
        record.note("skill", self.kept.skill.clone());
        record.note("directory", self.dir.display().to_string());
        record.note("component", self.kept.component.clone());
        record.note("manifest", self.kept.manifest.clone());
    }
}

impl Broker {
    /// Lets a skill run, or refuses it with what its owner would have to approve. `loaded` is what
    /// its files say, and `reach` how far it reaches with that.
    pub(crate) async fn accept(
        &self,
        actor: &Actor,
        candidate: &Candidate<'_>,
        loaded: &Arc<Loaded>,
        reach: impl FnOnce() -> Reach,
    ) -> Result<()> {
        if self.skills.has_accepted(candidate, loaded) {
            return Ok(());
        }
        let asked = match self.skills.look_at(candidate, loaded, reach).await {
            Ok(None) => return Ok(()),
            Ok(Some((why, lasting))) => self.approvals.ask(actor, SKILL_RUN, lasting).map(|asked| (why, asked)),
            Err(error) => Err(error),
        };
        let refusal = match asked {
            Ok((why, asked)) => {
                let name = candidate.name;
                let trust = match candidate.project.filter(|_| !candidate.trusted) {
                    Some(project) => {
                        format!(", or let all of the project's skills run with `skillhost trust {}`", project.display())
                    }
                    None => String::new(),
                };
                let message = format!(
                    "{why}: {HOW}{trust}; `skillhost inspect {name}` says what it is. Then make the same call again"
                );
                Error::unapproved(asked, message)
            }
            Err(error) => error,
        };
        self.refuse(actor, SKILL_RUN, refusal).await
    }

    /// Whether a skill of a root that is not trusted was approved with just these files.
    pub(crate) fn has_approved(&self, dir: &Path, component: &str, manifest: &str) -> bool {
        real(dir).is_ok_and(|dir| self.skills.has_approved(&dir, component, manifest))
    }

    /// Forgets what skills of this name were let run with, and the one in this directory.
    pub(crate) async fn revoke_approval(&self, actor: &Actor, skill: &str, dir: Option<&Path>) -> Result<Done> {
        let mut record = self.begin(actor, "approval.revoke").await?;
        record.note("skill", skill);
        // One that is gone is known by what it was called.
        let dir = dir.map(|dir| real(dir).unwrap_or_else(|_| dir.to_owned()));
        let forgotten = self.skills.forget(|at, kept| kept.skill == skill || Some(at) == dir.as_deref()).await;
        let result = forgotten.and_then(|forgotten| {
            if forgotten.is_empty() {
                return Err(Error::not_found(format!(
                    "nothing is kept of a skill {}, nor of one in such a directory: `skillhost approve` lists what was \
                     approved",
                    quoted(skill)
                )));
            }
            let places: Vec<_> = forgotten.iter().map(|dir| dir.display().to_string()).collect();
            Ok(places)
        });
        if let Ok(places) = &result {
            record.note("directories", places.clone());
        }
        let places = record.end(result).await?.join(", ");
        Ok(Done {
            message: format!(
                "forgotten: {places}. Where its root is not trusted, a skill is asked about before it runs again; where it \
                 is, what it may then is its new baseline"
            ),
        })
    }

    /// Records that a project is trusted from now on, or no longer, which `change` does.
    pub(crate) async fn trust<T>(
        &self,
        actor: &Actor,
        project: &Path,
        trusted: bool,
        change: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut record = self.begin(actor, "trust.set").await?;
        record.note("trusted", trusted);
        // As it leads now; where it leads nowhere, as it was named.
        record.note("project", real(project).unwrap_or_else(|_| project.to_owned()).display().to_string());
        let result = change.await;
        record.end(result).await
    }

    /// Forgets what the skills of a project were let run with; the project's path leads through no link.
    pub(crate) async fn forget_project(&self, project: &Path) -> Result<()> {
        self.skills.forget(|_, kept| kept.project.as_deref() == Some(project)).await.map(drop)
    }
}

fn real(dir: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(dir).map_err(|error| Error::of_file(error).context(dir.display()))
}

fn text(reach: &Reach) -> Result<String> {
    serde_json::to_string(reach)
        .map_err(|error| Error::invalid_argument(format!("what the skill may do cannot be written down: {error}")))
}
