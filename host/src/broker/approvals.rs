//! Approvals: what the machine's owner must say yes to before it happens.
//!
//! Where the operator gave up isolation (`[local] isolation = "none"`), a command can do whatever the host's user can, so
//! each one waits for a person. It is refused with an id; the owner approves that id with `skillhost approve`, and the same
//! call, made again, goes through, once. What was approved is the whole of it: who asks, what is to happen and in
//! which directory and environment. What a skill may run with is asked in the same way ([`super::accepted`]), and the answer
//! is kept.
//!
//! Nothing that an agent or a skill can call gives an approval, and nobody who asks chooses an id: if it came from the
//! question, two questions could be made that share one, the harmless to be shown and the other to be approved by it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};
use skillhost_api::types::{Approval, ApprovalKind, ApprovalList};
use skillhost_api::units::quoted;

use super::accepted::PendingAcceptance;
use super::question::{ApprovalText, InjectiveDigest};
use super::{Actor, Broker, EffectRecord};
use crate::ids;
use crate::sandbox::spec::SandboxInfo;

/// How long a question stands, and how long the answer to one about an effect holds.
const STANDS: Duration = Duration::from_secs(10 * 60);
/// The most questions that are kept. Then the oldest of whoever asked most goes, so that a flood of them cannot grow, nor
/// push out what others ask.
const MAX_ASKED: usize = 256;
/// How the owner does it. Without the id: who is refused may be a model, and the question is not its to answer.
pub(super) const HOW: &str = "they see what waits, and approve it, with `skillhost approve` in a terminal";
/// How much of a question the audit log has.
const MAX_RECORDED: usize = 4096;

/// The questions that stand.
#[derive(Debug, Default)]
pub(super) struct Approvals {
    asked: Mutex<VecDeque<PendingApproval>>,
}

#[derive(Debug)]
struct PendingApproval {
    /// What was asked, whole: an answer is for this and for nothing that looks alike.
    digest: Vec<u8>,
    by: Caller,
    shown: Approval,
    /// As much of it as the audit log has.
    recorded: String,
    /// What is kept when it is approved.
    keeps: Option<Box<PendingAcceptance>>,
    at: Instant,
}

/// A question about a skill, whose answer is kept.
#[derive(Debug)]
pub(super) struct SkillQuestion {
    pub(super) kind: ApprovalKind,
    pub(super) what: ApprovalText,
    pub(super) keeps: PendingAcceptance,
}

impl Approvals {
    fn lock(&self) -> MutexGuard<'_, VecDeque<PendingApproval>> {
        let mut asked = self.asked.lock();
        asked.retain(|asked| asked.at.elapsed() < STANDS);
        asked
    }

    /// Uses up the approval of exactly this, or asks for it and gives the question.
    fn take(&self, actor: &Actor, effect: &str, what: &ApprovalText) -> Result<Option<Approval>> {
        let Caller { tenant, session, agent } = &actor.caller;
        let mut digest = InjectiveDigest::default();
        digest.part(b"effect");
        for part in [tenant, session, agent] {
            digest.part(part.as_bytes());
        }
        digest.part(&[u8::from(actor.skill.is_some())]);
        digest.part(actor.skill.as_deref().unwrap_or_default().as_bytes());
        digest.part(effect.as_bytes());
        what.add_to(&mut digest);
        let digest = digest.end();
        let mut asked = self.lock();
        if let Some(at) = asked.iter().position(|asked| asked.digest == digest && asked.shown.approved) {
            asked.remove(at);
            return Ok(None);
        }
        let advice = "put what is long into a file of the sandbox and name that, or shorten it";
        let shown = shown(actor, ApprovalKind::Effect, actor.skill.clone(), effect, what, advice)?;
        put(&mut asked, &actor.caller, digest, Asking { shown, recorded: recorded(what), keeps: None }).map(Some)
    }

    /// The question under this id, noted in the record of its answer; and what is kept when it is approved.
    fn note(&self, record: &mut EffectRecord, id: &str) -> Result<(Approval, Option<Box<PendingAcceptance>>)> {
        record.note("approval", id);
        let asked = self.lock();
        let asked = asked.iter().find(|asked| asked.shown.id == id).ok_or_else(|| nothing_waits(id))?;
        record.note("kind", asked.shown.kind.name());
        record.note("what", asked.recorded.clone());
        if let Some(keeps) = &asked.keeps {
            keeps.note(record);
        }
        Ok((asked.shown.clone(), asked.keeps.clone()))
    }

    /// Lets the effect happen that was asked about.
    fn allow(&self, id: &str) -> Result<()> {
        let mut asked = self.lock();
        asked.iter_mut().find(|asked| asked.shown.id == id).ok_or_else(|| nothing_waits(id))?.shown.approved = true;
        Ok(())
    }

    /// Asks about a skill. Whoever asks, it is the same question.
    pub(super) fn ask(&self, actor: &Actor, effect: &str, lasting: SkillQuestion) -> Result<Approval> {
        let SkillQuestion { kind, what, keeps } = lasting;
        let mut digest = InjectiveDigest::default();
        digest.part(b"skill");
        digest.part(kind.name().as_bytes());
        keeps.add_to(&mut digest)?;
        // What is new depends on what is kept now, which may change while the question stands.
        what.add_to(&mut digest);
        let advice = "let the skill ask for less in its skill.toml, or allow less under [policy] in skillhost.toml";
        let shown = shown(actor, kind, Some(keeps.kept.skill.clone()), effect, &what, advice)?;
        let asking = Asking { shown, recorded: recorded(&what), keeps: Some(Box::new(keeps)) };
        put(&mut self.lock(), &actor.caller, digest.end(), asking)
    }
}

/// A question that may stand already; its id is nothing yet.
struct Asking {
    shown: Approval,
    recorded: String,
    keeps: Option<Box<PendingAcceptance>>,
}

fn shown(
    actor: &Actor,
    kind: ApprovalKind,
    skill: Option<String>,
    effect: &str,
    what: &ApprovalText,
    advice: &str,
) -> Result<Approval> {
    let Caller { tenant, session, agent } = actor.caller.clone();
    let (id, effect, what) = (String::new(), effect.to_owned(), what.shown(advice)?);
    Ok(Approval { id, kind, agent, session, tenant, skill, effect, what, approved: false })
}

fn nothing_waits(id: &str) -> Error {
    Error::not_found(format!("nothing waits for approval under {}: `skillhost approve` lists what does", quoted(id)))
}

fn recorded(what: &ApprovalText) -> String {
    shortened(&what.recorded(), MAX_RECORDED)
}

/// The question as it stands, or as it does from now on.
fn put(asked: &mut VecDeque<PendingApproval>, by: &Caller, digest: Vec<u8>, asking: Asking) -> Result<Approval> {
    let Asking { mut shown, recorded, keeps } = asking;
    if let Some(stands) = asked.iter().find(|stands| stands.digest == digest) {
        // Who asked first may be of another tenant, which is nobody else's business.
        shown.id.clone_from(&stands.shown.id);
        return Ok(shown);
    }
    loop {
        shown.id = ids::approval()?;
        if asked.iter().all(|other| other.shown.id != shown.id) {
            break;
        }
    }
    if asked.len() >= MAX_ASKED {
        make_room(asked);
    }
    asked.push_back(PendingApproval {
        digest,
        by: by.clone(),
        shown: shown.clone(),
        recorded,
        keeps,
        at: Instant::now(),
    });
    Ok(shown)
}

/// Drops the oldest question of whoever asked most.
fn make_room(asked: &mut VecDeque<PendingApproval>) {
    let mut counts: HashMap<&Caller, usize> = HashMap::new();
    for one in &*asked {
        *counts.entry(&one.by).or_default() += 1;
    }
    let most = counts.values().max().copied();
    let at = asked.iter().position(|one| counts.get(&one.by).copied() == most);
    asked.remove(at.unwrap_or_default());
}

impl Broker {
    /// Passes at once where sandboxes are isolated. Where they are not, passes when the owner has approved just this.
    pub(super) fn approved(
        &self,
        actor: &Actor,
        info: &SandboxInfo,
        effect: &str,
        what: impl FnOnce() -> Result<ApprovalText>,
    ) -> Result<()> {
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
        !self.approvals.lock().is_empty()
    }

    /// What waits for the owner, and what was approved for good.
    pub(crate) fn list_approvals(&self) -> ApprovalList {
        ApprovalList {
            approvals: self.approvals.lock().iter().map(|asked| asked.shown.clone()).collect(),
            kept: self.skills.list(),
        }
    }

    /// The owner's yes. It is on record before it counts.
    pub(crate) async fn approve(&self, actor: &Actor, id: &str) -> Result<Approval> {
        let mut record = self.begin(actor, "approval.give").await?;
        let (approval, keeps) = match self.approvals.note(&mut record, id) {
            Ok(found) => found,
            Err(error) => return record.end(Err(error)).await,
        };
        let counts = async {
            match keeps {
                None => self.approvals.allow(id)?,
                Some(keeps) => {
                    self.skills.keep(*keeps).await?;
                    self.approvals.lock().retain(|asked| asked.shown.id != id);
                }
            }
            Ok(Approval { approved: true, ..approval })
        };
        record.before(counts).await
    }

    /// The record of an effect that is refused before anything is done.
    pub(crate) fn refused(&self, actor: &Actor, effect: &'static str) -> EffectRecord {
        EffectRecord::begin(&self.audit, actor, effect)
    }

    /// Notes which approval is asked for; of one that does not wait, the id alone.
    pub(crate) fn note_approval(&self, record: &mut EffectRecord, id: &str) {
        drop(self.approvals.note(record, id));
    }
}

/// As many characters as may be shown, and that there are more.
pub(super) fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => {
            let (shown, rest) = text.split_at(at);
            format!("{shown}… (and {} characters more)", rest.chars().count())
        }
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actor(agent: &str) -> Actor {
        Actor::owner(Caller { agent: agent.into(), ..Caller::default() })
    }

    fn text(text: &str) -> ApprovalText {
        ApprovalText::default().text("command", text)
    }

    #[test]
    fn an_approval_is_for_one_call_of_one_agent() {
        let approvals = Approvals::default();
        let take = |agent: &str, what: &str| approvals.take(&actor(agent), "exec", &text(what)).unwrap();
        let asked = take("a", "rm x").unwrap();
        assert!(!asked.approved);
        assert_eq!(take("a", "rm x").unwrap().id, asked.id, "it is the same question");
        approvals.lock()[0].shown.approved = true;
        // Neither another's nor another command.
        assert!(take("b", "rm x").is_some());
        assert!(take("a", "rm y").is_some());
        assert!(take("a", "rm x").is_none());
        assert!(take("a", "rm x").is_some());
    }

    #[test]
    fn who_asks_does_not_choose_the_id() {
        let ids = || Approvals::default().take(&actor("a"), "exec", &text("rm x")).unwrap().unwrap().id;
        assert_ne!(ids(), ids());
    }

    #[test]
    fn questions_do_not_grow_without_bound_nor_push_out_those_of_others() {
        let approvals = Approvals::default();
        let first = approvals.take(&actor("quiet"), "exec", &text("rm x")).unwrap().unwrap();
        for number in 0..2 * MAX_ASKED {
            assert!(approvals.take(&actor("loud"), "exec", &text(&number.to_string())).unwrap().is_some());
        }
        assert_eq!(approvals.lock().len(), MAX_ASKED);
        assert_eq!(approvals.lock()[0].shown.id, first.id);
    }

    #[test]
    fn a_question_and_its_answer_stand_for_ten_minutes() {
        let approvals = Approvals::default();
        let take = || approvals.take(&actor("a"), "exec", &text("rm x")).unwrap();
        let first = take().unwrap();
        approvals.lock()[0].shown.approved = true;
        approvals.lock()[0].at = Instant::now().checked_sub(STANDS).unwrap();
        let second = take().unwrap();
        assert_ne!(second.id, first.id);
        assert_eq!(approvals.lock().len(), 1);
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!(shortened("äbc", 3), "äbc");
        assert_eq!(shortened("äbcde", 1), "ä… (and 4 characters more)");
    }
}
