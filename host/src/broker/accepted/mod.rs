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

use skillhost_api::error::{Error, Result};
use skillhost_api::types::Revoked;
use skillhost_api::units::quoted;

pub(crate) use store::Skills;

use super::approvals::{HOW, SkillQuestion};
use super::effective_grant::EffectiveGrant;
use super::question::InjectiveDigest;
use super::{Actor, Broker, EffectRecord};
use crate::paths::real;
use crate::skills::Loaded;

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

/// The component, manifest and effective grant that a skill was let run with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Acceptance {
    pub(super) skill: String,
    project: Option<PathBuf>,
    component: String,
    manifest: String,
    /// By the owner, and not because its root was trusted.
    approved: bool,
    reach: EffectiveGrant,
    at_ms: u64,
}

/// An acceptance to be stored, and the directory that it is of.
#[derive(Debug, Clone)]
pub(super) struct PendingAcceptance {
    dir: PathBuf,
    pub(super) kept: Acceptance,
}

impl PendingAcceptance {
    /// Adds all that an approval of it is bound to.
    pub(super) fn add_to(&self, digest: &mut InjectiveDigest) -> Result<()> {
        let Self { dir, kept } = self;
        // Not when it was asked.
        let Acceptance { skill, project, component, manifest, approved: _, reach, at_ms: _ } = kept;
        digest.part(dir.as_os_str().as_bytes());
        digest.part(project.as_deref().unwrap_or(Path::new("")).as_os_str().as_bytes());
        digest.part(text(reach)?.as_bytes());
        for word in [skill, component, manifest] {
            digest.part(word.as_bytes());
        }
        Ok(())
    }

    /// Notes what it is about.
    pub(super) fn note(&self, record: &mut EffectRecord) {
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
        reach: impl FnOnce() -> EffectiveGrant,
    ) -> Result<()> {
        if self.skills.has_accepted(candidate, loaded) {
            return Ok(());
        }
        let asked = match self.skills.look_at(candidate, loaded, reach).await {
            Ok(None) => return Ok(()),
            Ok(Some((why, lasting))) => {
                self.approvals.ask(actor, SKILL_RUN, self.with_missing(lasting)).map(|asked| (why, asked))
            }
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

    /// Adds which roles there are none of: what is approved is the name, whatever it comes to stand for.
    fn with_missing(&self, mut lasting: SkillQuestion) -> SkillQuestion {
        let roles = self.sandboxes.roles();
        for role in lasting.keeps.kept.reach.roles.iter().filter(|role| roles.get(role).is_none()) {
            lasting.what = lasting.what.text("does not exist here", format!("role {role}"));
        }
        lasting
    }

    /// Why the owner would be asked about a skill whose files may run; none when it would run.
    pub(crate) fn would_ask(
        &self,
        candidate: &Candidate<'_>,
        loaded: &Arc<Loaded>,
        reach: impl FnOnce() -> EffectiveGrant,
    ) -> Option<String> {
        if self.skills.has_accepted(candidate, loaded) { None } else { self.skills.would_ask(candidate, reach) }
    }

    /// Whether a skill of a root that is not trusted was approved with just these files.
    pub(crate) fn has_approved(&self, dir: &Path, component: &str, manifest: &str) -> bool {
        real(dir).is_ok_and(|dir| self.skills.has_approved(&dir, component, manifest))
    }

    /// Forgets what skills in these directories were let run with; `skill` is what the owner named them by.
    pub(crate) async fn revoke_approval(&self, actor: &Actor, skill: &str, directories: &[String]) -> Result<Revoked> {
        let mut record = self.begin(actor, "approval.revoke").await?;
        note_revoked(&mut record, skill, directories);
        let forgotten = self.skills.forget(|at, _| directories.contains(&at.display().to_string())).await;
        let result = forgotten.and_then(|forgotten| match forgotten.is_empty() {
            true => Err(Error::not_found(format!(
                "nothing is kept of a skill {} any more: `skillhost approve` lists what was approved",
                quoted(skill)
            ))),
            false => Ok(forgotten),
        });
        let forgotten = record.end(result).await?;
        let places: Vec<_> = forgotten.iter().map(|kept| kept.directory.as_str()).collect();
        let message = format!(
            "forgotten: {}. Where its root is not trusted, a skill is asked about before it runs again; where it is, what it \
             may then is its new baseline",
            places.join(", ")
        );
        Ok(Revoked { message, forgotten })
    }

    /// Records that a project is trusted from now on, or no longer, which `change` does; or why it is not even begun.
    pub(crate) async fn trust<T>(
        &self,
        actor: &Actor,
        project: &Path,
        trusted: bool,
        change: Result<impl Future<Output = Result<T>>>,
    ) -> Result<T> {
        let mut record = self.begin(actor, "trust.set").await?;
        note_trust(&mut record, project, trusted);
        match (change, trusted) {
            (Err(error), _) => record.end(Err(error)).await,
            (Ok(change), true) => record.before(change).await,
            // At once, whatever becomes of the record.
            (Ok(change), false) => {
                let result = change.await;
                record.end(result).await
            }
        }
    }

    /// Forgets what the skills of a project were let run with; the project's path leads through no link.
    pub(crate) async fn forget_project(&self, project: &Path) -> Result<()> {
        self.skills.forget(|_, kept| kept.project.as_deref() == Some(project)).await.map(drop)
    }
}

/// Notes what was to be forgotten.
pub(crate) fn note_revoked(record: &mut EffectRecord, skill: &str, directories: &[String]) {
    record.note("skill", skill);
    record.note("directories", directories);
}

/// Notes which project was to be trusted, or no longer.
pub(crate) fn note_trust(record: &mut EffectRecord, project: &Path, trusted: bool) {
    record.note("trusted", trusted);
    // As it leads now; where it leads nowhere, as it was named.
    record.note("project", real(project).unwrap_or_else(|_| project.to_owned()).display().to_string());
}

fn text(reach: &EffectiveGrant) -> Result<String> {
    serde_json::to_string(reach)
        .map_err(|error| Error::invalid_argument(format!("what the skill may do cannot be written down: {error}")))
}
