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
    /// Whether it widens what programs may do, so that a person must have been shown it: an agent with a shell has the
    /// owner's programs, and not their eyes.
    in_person: bool,
}

fn owners_alone(request: &Request) -> Option<OwnersAlone> {
    let in_person = match request {
        Request::Trust { project: _, trusted } => *trusted,
        // What a trusted skill has when its approval is forgotten is its new baseline.
        Request::Approve { .. } | Request::RevokeApproval { .. } => true,
        _ => false,
    };
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
    Some(OwnersAlone { effect, what, in_person })
}

impl Host {
    /// Who makes the call, with what they may do; refused at once where that is only for the owner.
    pub(super) async fn actor(&self, call: &Call) -> Result<Actor> {
        let caller = call.caller.clone();
        let actor = match call.authority {
            Authority::Person | Authority::Owner => Actor::owner(caller),
            Authority::Agent => Actor::agent(caller, grant::agent(&self.config, call.project.as_deref())),
        };
        let Some(OwnersAlone { effect, what, in_person }) = owners_alone(&call.request) else { return Ok(actor) };
        let refusal = match call.authority {
            Authority::Person => return Ok(actor),
            Authority::Owner if !in_person || self.config.approvals.without_terminal => return Ok(actor),
            Authority::Owner => Error::denied(
                "only a person can say yes to this, and nobody was asked: run it in a terminal, which shows what it is about, or \
                 use a client that shows forms. docs/configuration.md says under \"What is asked about\" what the operator of a \
                 machine without either can do",
            ),
            Authority::Agent => Error::denied(format!(
                "this is not for agents, whatever they are told: only the owner of this machine's skillhost {what}"
            )),
        };
        match effect {
            Some(effect) => self.broker.refuse(&actor, effect, refusal).await,
            None => Err(refusal),
        }
    }
}
