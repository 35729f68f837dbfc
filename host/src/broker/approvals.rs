//! Approvals: what the machine's owner must say yes to before it happens.
//!
//! Where the operator gave up isolation (`[local] isolation = "none"`), a command can do whatever the host's user can, so
//! each one waits for a person. It is refused with an id; the owner approves that id with `skillhost approve`, and the same
//! call, made again, goes through, once. What was approved is the whole of it: who asks, what is to happen and in
//! which directory and environment. Nothing that an agent or a skill can call gives an approval.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::{Actor, Broker};
use crate::api::types::{Approval, ApprovalList};
use crate::error::{Error, Result};
use crate::sandbox::spec::SandboxInfo;
use crate::units::hex;

/// How long a question stands, and how long its answer holds.
const STANDS: Duration = Duration::from_secs(10 * 60);
/// The most questions that are kept; the oldest goes first, so that a flood of them cannot grow.
const MAX_ASKED: usize = 256;
/// The bytes of a question's id that are shown; the whole digest is what is compared.
const ID_BYTES: usize = 6;
/// How much of what is to happen is shown.
const MAX_SHOWN: usize = 4096;

/// The questions that stand.
#[derive(Debug, Default)]
pub(super) struct Approvals {
    asked: Mutex<VecDeque<Asked>>,
}

#[derive(Debug)]
struct Asked {
    digest: Vec<u8>,
    shown: Approval,
    /// As much of it as the audit log has.
    recorded: String,
    at: Instant,
}

/// What is to happen, as its owner is asked about it.
#[derive(Debug, Default)]
pub(super) struct What {
    /// What the audit log may have too.
    pub(super) plain: String,
    /// Values of the environment, which the owner has to see and the log has not.
    pub(super) env: String,
}

impl From<&str> for What {
    fn from(plain: &str) -> Self {
        Self { plain: plain.to_owned(), env: String::new() }
    }
}

impl Approvals {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Asked>> {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|asked| asked.at.elapsed() < STANDS);
        asked
    }

    /// Uses up the approval of exactly this, or asks for it.
    fn take(&self, actor: &Actor, effect: &str, what: &What) -> std::result::Result<(), Box<Approval>> {
        let (caller, recorded) = (&actor.caller, cut(&what.plain));
        let what = format!("{}{}", what.plain, what.env);
        let mut hash = Sha256::new();
        for part in
            [&*caller.tenant, &caller.session, &caller.agent, actor.skill.as_deref().unwrap_or(""), effect, &what]
        {
            // Lengths in front: no two questions read alike.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update([u8::from(actor.skill.is_some())]);
        let digest = hash.finalize().to_vec();
        let mut asked = self.lock();
        if let Some(at) = asked.iter().position(|asked| asked.digest == digest) {
            let Some(found) = asked.get(at) else { return Ok(()) };
            if !found.shown.approved {
                return Err(Box::new(found.shown.clone()));
            }
            asked.remove(at);
            return Ok(());
        }
        let shown = Approval {
            id: format!("ap_{}", hex(digest.get(..ID_BYTES).unwrap_or(&digest))),
            agent: caller.agent.clone(),
            session: caller.session.clone(),
            skill: actor.skill.clone(),
            effect: effect.to_owned(),
            what: cut(&what),
            approved: false,
        };
        if asked.len() >= MAX_ASKED {
            asked.pop_front();
        }
        asked.push_back(Asked { digest, shown: shown.clone(), recorded, at: Instant::now() });
        Err(Box::new(shown))
    }
}

impl Broker {
    /// Passes at once where sandboxes are isolated. Where they are not, passes when the owner has approved just this.
    pub(super) fn approved(&self, actor: &Actor, info: &SandboxInfo, effect: &str, what: &What) -> Result<()> {
        if !info.bare {
            return Ok(());
        }
        self.approvals.take(actor, effect, what).map_err(|asked| {
            Error::denied(format!(
                "this machine's sandboxes have no isolation, so its owner must approve each command: with `skillhost approve \
                 {}` they let this one happen once; then make the same call again",
                asked.id
            ))
        })
    }

    /// What waits for the owner.
    pub(crate) fn list_approvals(&self) -> ApprovalList {
        ApprovalList { approvals: self.approvals.lock().iter().map(|asked| asked.shown.clone()).collect() }
    }

    /// The owner's yes.
    pub(crate) async fn approve(&self, actor: &Actor, id: &str) -> Result<Approval> {
        let mut record = self.begin(actor, "approval.give").await?;
        record.note("approval", id);
        let found = {
            let mut asked = self.approvals.lock();
            let found = asked.iter_mut().find(|asked| asked.shown.id == id);
            found.map(|asked| {
                asked.shown.approved = true;
                (asked.shown.clone(), asked.recorded.clone())
            })
        };
        let result = found.ok_or_else(|| {
            Error::not_found(format!("nothing waits for approval under {id:?}: `skillhost approve` lists what does"))
        });
        let result = result.map(|(approval, recorded)| {
            record.note("what", recorded);
            approval
        });
        record.end(result).await
    }
}

fn cut(what: &str) -> String {
    what.chars().take(MAX_SHOWN).collect()
}

/// A command as a person is asked about it. `more` is what they have to know besides.
pub(super) fn command_in_words(request: &crate::api::types::ExecRequest, cwd: &str, more: &str) -> What {
    use crate::api::types::Command;
    let mut words = match &request.command {
        Command::Argv(argv) => format!("{argv:?}"),
        Command::Shell(line) => format!("shell: {line}"),
    };
    let _ = write!(words, " in {cwd}");
    if request.terminal.is_some() {
        words.push_str(", in a terminal");
    }
    if request.stdin {
        words.push_str(", with input");
    }
    words.push_str(more);
    let mut env = String::new();
    for (name, value) in &request.env {
        let _ = write!(env, ", with {name}={value:?}");
    }
    What { plain: words, env }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;

    fn actor(agent: &str) -> Actor {
        Actor::owner(Caller { agent: agent.into(), ..Caller::default() })
    }

    #[test]
    fn an_approval_is_for_one_call_of_one_agent() {
        let approvals = Approvals::default();
        let asked = approvals.take(&actor("a"), "exec", &"rm x".into()).unwrap_err();
        assert!(!asked.approved);
        approvals.lock()[0].shown.approved = true;
        // Neither another's nor another command.
        approvals.take(&actor("b"), "exec", &"rm x".into()).unwrap_err();
        approvals.take(&actor("a"), "exec", &"rm y".into()).unwrap_err();
        approvals.take(&actor("a"), "exec", &"rm x".into()).unwrap();
        approvals.take(&actor("a"), "exec", &"rm x".into()).unwrap_err();
    }

    #[test]
    fn questions_do_not_grow_without_bound() {
        let approvals = Approvals::default();
        for number in 0..2 * MAX_ASKED {
            approvals.take(&actor("a"), "exec", &What::from(&*number.to_string())).unwrap_err();
        }
        assert_eq!(approvals.lock().len(), MAX_ASKED);
    }

    #[test]
    fn values_of_the_environment_are_asked_about_and_not_recorded() {
        let approvals = Approvals::default();
        let with = |value: &str| {
            let env = [("TOKEN".to_owned(), value.to_owned())].into();
            let command = crate::api::types::Command::Shell("true".into());
            let request = crate::api::types::ExecRequest { command, env, ..Default::default() };
            command_in_words(&request, "/workspace", ", with a note")
        };
        let asked = approvals.take(&actor("a"), "exec", &with("hunter2")).unwrap_err();
        assert_eq!(asked.what, "shell: true in /workspace, with a note, with TOKEN=\"hunter2\"");
        assert_eq!(approvals.lock()[0].recorded, "shell: true in /workspace, with a note");
        // Another value is another question.
        assert_ne!(approvals.take(&actor("a"), "exec", &with("other")).unwrap_err().id, asked.id);
    }
}
