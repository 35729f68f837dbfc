//! `approve`: the owner's yes to what waits for it.

use clap::Args;

use super::app::App;
use super::failure::Ended;
use super::global::absolute;
use super::print::table;
use super::skills::done;
use crate::api::types::{Approval, ApprovalList, Done, KeptSkill, Request};

/// Lets something happen that waits for your word, or lists what does and what you approved for good
///
/// What waits: the first use of a skill of a project that is not trusted, also after it changed; more for a skill than it ran
/// with before; and each command where the operator gave up isolation (`[local] isolation = "none"`). For a command the
/// approval is for one call, for a skill it is kept. A question stands for ten minutes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  skillhost approve
  skillhost approve ap_0123456789ab
  skillhost approve --revoke code-stats")]
pub(super) struct Approve {
    /// What waits; without it, all that do are listed
    #[arg(conflicts_with = "revoke")]
    id: Option<String>,
    /// Forget what a skill was let run with: by its name, or its directory
    #[arg(long, value_name = "SKILL_OR_DIR")]
    revoke: Option<String>,
}

impl Approve {
    pub(super) async fn run(self, app: &App) -> Ended {
        if let Some(skill) = self.revoke {
            let directory = Some(absolute(&skill)?);
            let answer = app.call::<Done>(Request::RevokeApproval { skill, directory }).await?;
            return done(app, answer).await;
        }
        match self.id {
            Some(id) => {
                let answer = app.call::<Approval>(Request::Approve { id }).await?;
                app.answer(&answer, |approval| {
                    let so_long = if approval.kind.lasts() { "until you revoke it" } else { "once" };
                    format!("approved, {so_long}: {}\n", approval.what)
                })
                .await?;
            }
            None => {
                let answer = app.call::<ApprovalList>(Request::ListApprovals).await?;
                app.answer(&answer, listed).await?;
            }
        }
        Ok(0)
    }
}

fn listed(list: &ApprovalList) -> String {
    let row = |approval: &Approval| {
        let by = approval.skill.clone().unwrap_or_else(|| approval.agent.clone());
        let state = if approval.approved { "approved" } else { "waits" };
        let (id, kind) = (approval.id.clone(), approval.kind.name().to_owned());
        [id, state.to_owned(), kind, by, approval.effect.clone(), approval.what.clone()]
    };
    let mut text = table(["ID", "STATE", "KIND", "BY", "EFFECT", "WHAT"], list.approvals.iter().map(row));
    // Baselines are nobody's word; JSON has them.
    let kept: Vec<_> = list.kept.iter().filter(|kept| kept.approved).collect();
    if !kept.is_empty() {
        let row = |kept: &&KeptSkill| [kept.skill.clone(), kept.directory.clone(), kept.may.clone()];
        text.push_str("\nApproved until they change, or are revoked:\n");
        text.push_str(&table(["SKILL", "DIRECTORY", "MAY"], kept.iter().map(row)));
    }
    text
}
