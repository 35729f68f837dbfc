//! Asking the machine's owner, and their answer: each is on record.

use skillhost_api::error::{Error, Result};
use skillhost_api::types::{Approval, ApprovalList};

use super::audit_detail::text_on_record;
use crate::broker::{Broker, EffectRecord};
use crate::policy::Actor;
use crate::policy::approvals::{FoundApproval, HOW};
use crate::policy::question::ApprovalText;
use crate::policy::skill_gate::Acceptance;
use crate::sandbox::spec::SandboxInfo;

impl Broker {
    /// Refuses what would begin in a sandbox that is paused. Otherwise passes at once where sandboxes are isolated; where they are
    /// not, when the owner has approved just this.
    pub(super) fn approved(
        &self,
        actor: &Actor,
        info: &SandboxInfo,
        effect: &str,
        what: impl FnOnce() -> Result<ApprovalText>,
    ) -> Result<()> {
        self.sandboxes.check(&info.id)?;
        if !info.bare {
            return Ok(());
        }
        let Some(asked) = self.approvals.take(actor, effect, &what()?)? else { return Ok(()) };
        let message = format!(
            "this machine's sandboxes have no isolation, so its owner must approve each command: {HOW}; then make the same \
             call again, which lets it happen once"
        );
        Err(Error::unapproved(asked, message))
    }

    /// Whether a question stands, or an answer that has not been used.
    pub(crate) fn is_asking(&self) -> bool {
        self.approvals.are_any()
    }

    /// What waits for the owner, and what was approved for good.
    pub(crate) fn list_approvals(&self) -> ApprovalList {
        ApprovalList { approvals: self.approvals.list(), kept: self.skills.list() }
    }

    /// The owner's yes. It is on record before it counts.
    pub(crate) async fn approve(&self, actor: &Actor, id: &str) -> Result<Approval> {
        let record = self.begin(actor, "approval.give").await?;
        let (effect, FoundApproval { approval, keeps, .. }) =
            record.authorise(|record| self.note_approval(record, id)).await?;
        let counts = async {
            match keeps {
                None => self.approvals.allow(id)?,
                Some(keeps) => {
                    self.skills.keep(*keeps).await?;
                    self.approvals.forget(id);
                }
            }
            Ok(Approval { approved: true, ..approval })
        };
        effect.before(counts).await
    }

    /// The record of an effect that is refused before anything is done.
    pub(crate) fn refused(&self, actor: &Actor, effect: &'static str) -> EffectRecord {
        EffectRecord::begin(&self.audit, actor, effect)
    }

    /// Notes which approval is asked for, and finds it; of one that does not wait, the id alone.
    pub(crate) fn note_approval(&self, record: &mut EffectRecord, id: &str) -> Result<FoundApproval> {
        record.note("approval", id);
        let found = self.approvals.find(id)?;
        record.note("kind", found.approval.kind.name());
        record.note("what", text_on_record(self.config.audit.commands, &found.recorded));
        if let Some(keeps) = &found.keeps {
            let Acceptance { skill, component, manifest, .. } = &keeps.kept;
            record.note("skill", skill.clone());
            record.note("directory", keeps.dir.display().to_string());
            record.note("component", component.clone());
            record.note("manifest", manifest.clone());
        }
        Ok(found)
    }
}
