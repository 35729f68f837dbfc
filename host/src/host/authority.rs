//! What only the machine's owner may ask, whatever an agent says.
//!
//! Each request has its place here, so that a new one cannot be left open by nobody having thought of it. What an agent may
//! ask is still held to its grant by the broker.

use super::{Host, grant};
use crate::api::types::{Authority, Call, Request};
use crate::broker::Actor;
use crate::error::{Error, Result};

/// What is refused to agents: the effect, where it is one, and what to tell them.
struct OwnersAlone {
    effect: Option<&'static str>,
    what: &'static str,
}

fn owners_alone(request: &Request) -> Option<OwnersAlone> {
    let (effect, what) = match request {
        Request::Trust { .. } => (Some("trust.set"), "says which projects are trusted, with `skillhost trust`"),
        Request::Approve { .. } => (Some("approval.give"), "approves, with `skillhost approve`"),
        Request::RevokeApproval { .. } => {
            (Some("approval.revoke"), "forgets approvals, with `skillhost approve --revoke`")
        }
        Request::HostStop => (Some("host.stop"), "ends the host process, with `skillhost host stop`"),
        Request::ListApprovals => (None, "sees what waits for approval, with `skillhost approve`"),
        Request::AuditTail { .. } => (None, "reads the audit log, with `skillhost audit tail`"),
        Request::HostStatus => (None, "sees how the host process does, with `skillhost host status`"),
        Request::Run(_)
        | Request::ListSkills
        | Request::SearchSkills { .. }
        | Request::InspectSkill { .. }
        | Request::ReloadSkills
        | Request::ListActions { .. }
        | Request::WatchSkills
        | Request::SkillFiles { .. }
        | Request::ReadSkillFile { .. }
        | Request::ListImages(_)
        | Request::ListScripts { .. }
        | Request::ExecuteScript(_)
        | Request::RunScript(_)
        | Request::ListScriptTemplates { .. }
        | Request::GetScriptTemplate { .. }
        | Request::Doctor
        | Request::Launch(_)
        | Request::Exec(_)
        | Request::ProcessStart(_)
        | Request::ProcessList { .. }
        | Request::ProcessRead(_)
        | Request::ProcessWrite { .. }
        | Request::ProcessWait { .. }
        | Request::ProcessSignal { .. }
        | Request::ListSandboxes { .. }
        | Request::ResizeTerminal { .. }
        | Request::Shell(_)
        | Request::ShellList { .. }
        | Request::ShellStop { .. }
        | Request::SandboxStatus { .. }
        | Request::StopSandbox { .. }
        | Request::RestartSandbox { .. }
        | Request::AttachSandbox { .. }
        | Request::DetachSandbox { .. }
        | Request::ReadFile { .. }
        | Request::WriteFile { .. }
        | Request::ListFiles { .. }
        | Request::RemoveFile { .. }
        | Request::WatchFiles { .. }
        | Request::CopyIn(_)
        | Request::CopyOut(_)
        | Request::BlackboardPublish(_)
        | Request::BlackboardGet { .. }
        | Request::BlackboardList(_)
        | Request::BlackboardDelete(_)
        | Request::BlackboardWatch(_)
        | Request::KeepText { .. }
        | Request::ReadText(_) => return None,
    };
    Some(OwnersAlone { effect, what })
}

impl Host {
    /// Who makes the call, with what they may do; refused at once where that is only for the owner.
    pub(super) async fn actor(&self, call: &Call) -> Result<Actor> {
        let caller = call.caller.clone();
        if call.authority == Authority::Owner {
            return Ok(Actor::owner(caller));
        }
        let actor = Actor::agent(caller, grant::agent(&self.config, call.project.as_deref()));
        let Some(OwnersAlone { effect, what }) = owners_alone(&call.request) else { return Ok(actor) };
        let refusal = Error::denied(format!(
            "this is not for agents, whatever they are told: only the owner of this machine's skillhost {what}"
        ));
        match effect {
            Some(effect) => self.broker.refuse(&actor, effect, refusal).await,
            None => Err(refusal),
        }
    }
}
