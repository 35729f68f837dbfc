//! `approve`: the owner's yes to what waits for it.

use clap::Args;

use super::app::App;
use super::failure::Ended;
use super::print::table;
use crate::api::types::{Approval, ApprovalList, Request};

/// Lets a command happen that waits for your word, or lists those that do
///
/// Commands wait where the operator gave up isolation (`[local] isolation = "none"`). An approval is for one call.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  skillhost approve
  skillhost approve ap_0123456789ab")]
pub(super) struct Approve {
    /// What waits; without it, all that do are listed
    id: Option<String>,
}

impl Approve {
    pub(super) async fn run(self, app: &App) -> Ended {
        match self.id {
            Some(id) => {
                let answer = app.call::<Approval>(Request::Approve { id }).await?;
                app.answer(&answer, |approval| format!("approved, once: {}\n", approval.what)).await?;
            }
            None => {
                let answer = app.call::<ApprovalList>(Request::ListApprovals).await?;
                app.answer(&answer, |list| {
                    let row = |approval: &Approval| {
                        let by = approval.skill.clone().unwrap_or_else(|| approval.agent.clone());
                        let state = if approval.approved { "approved" } else { "waits" };
                        [approval.id.clone(), state.to_owned(), by, approval.effect.clone(), approval.what.clone()]
                    };
                    table(["ID", "STATE", "BY", "EFFECT", "WHAT"], list.approvals.iter().map(row))
                })
                .await?;
            }
        }
        Ok(0)
    }
}
