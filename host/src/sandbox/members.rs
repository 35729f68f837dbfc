//! The agents of a shared sandbox, each as a user of its own.
//!
//! The kernel keeps users apart, so that is what agents are: none can signal, trace or read the memory, the environment or
//! the open files of another's processes, whatever it runs. The workspace is what they share, by a group that all are in.
//! Everything else that one makes belongs to a group that only it is in, and with a umask that gives the world nothing,
//! nobody else reads it. Each has a file system for `HOME` and `TMPDIR` that only it can enter: a home that two users
//! share would let one leave a profile there for the other's shell.
//!
//! An agent keeps its user for as long as the sandbox lives, also over a detach, since its files are still there.

use serde::{Deserialize, Serialize};
use skillhost_api::error::{Error, Result};

use super::link::User;

/// The permissions that new files of a sandbox with one user do not get.
const ALONE_UMASK: u32 = 0o022;

/// The user that a sandbox's commands run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUser {
    /// User id, never 0.
    pub uid: u32,
    /// Group id, never 0.
    pub gid: u32,
    /// The first number of the agents of a shared sandbox.
    #[serde(default = "usual_agents")]
    pub agents: u32,
    /// Whom the supervisor of a local sandbox runs as; absent is one number for all.
    #[serde(default)]
    pub supervisor: Option<u32>,
}

fn usual_agents() -> u32 {
    FIRST
}

impl SandboxUser {
    /// The user that commands run as where they share the sandbox with nobody.
    pub(super) fn user(self) -> User {
        User { uid: self.uid, gid: self.gid, groups: Vec::new(), umask: ALONE_UMASK }
    }
}

impl SandboxUser {
    /// The identity that stands for root, which no command ever runs as.
    const FOR_ROOT: Self = Self::alone(1000, 1000);

    /// Of these numbers, with agents of the usual ones.
    pub(super) const fn alone(uid: u32, gid: u32) -> Self {
        Self { uid, gid, agents: FIRST, supervisor: None }
    }

    /// The owner of the host process, so that a workspace's files are theirs on both sides; a number of nobody's in particular where
    /// that is root.
    pub fn of_host() -> Self {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        if uid.is_root() {
            return Self::FOR_ROOT;
        }
        let gid = if gid.is_root() { Self::FOR_ROOT.gid } else { gid.as_raw() };
        Self::alone(uid.as_raw(), gid)
    }
}

/// The most agents of one sandbox, its owner among them.
pub const MAX_AGENTS: usize = 8;
/// The first of the numbers that are users and groups of agents where a session has none of its own. They lie between those that systemd gives to services and
/// `nobody`, and within the 65,536 that an engine in a user namespace has.
pub(super) const FIRST: u32 = 65_520;
/// Nothing for others; all for the group, which is the workspace's there and the agent's own elsewhere.
const UMASK: u32 = 0o007;

/// Who has ever been attached; the owner is not among them. The place in the list is the user.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members(Vec<Member>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    agent: String,
    attached: bool,
}

/// The number of an agent among a sandbox's members, which decides its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberSlot(usize);

impl Members {
    /// Attaches an agent. Whether it was not attached yet.
    pub fn attach(&mut self, agent: &str) -> Result<bool> {
        if let Some(member) = self.0.iter_mut().find(|member| member.agent == agent) {
            return Ok(!std::mem::replace(&mut member.attached, true));
        }
        if self.0.len() + 1 >= MAX_AGENTS {
            return Err(Error::quota_exceeded(format!(
                "the sandbox has had its {MAX_AGENTS} agents, and each keeps its user for as long as the sandbox lives: launch another"
            )));
        }
        self.0.push(Member { agent: agent.to_owned(), attached: true });
        Ok(true)
    }

    /// Detaches an agent. Whether it was attached.
    pub fn detach(&mut self, agent: &str) -> bool {
        let member = self.0.iter_mut().find(|member| member.agent == agent);
        member.is_some_and(|member| std::mem::replace(&mut member.attached, false))
    }

    /// The place of an agent that is attached.
    pub fn slot(&self, agent: &str) -> Option<MemberSlot> {
        let at = self.0.iter().position(|member| member.agent == agent && member.attached)?;
        Some(MemberSlot(at + 1))
    }

    /// Those that are attached.
    pub fn attached(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|member| member.attached).map(|member| member.agent.as_str())
    }
}

impl MemberSlot {
    /// The slot of the sandbox's owner.
    pub const OWNER: Self = Self(0);

    /// All slots.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_AGENTS).map(Self)
    }

    /// Its user, in a sandbox of this identity.
    pub fn user(self, identity: SandboxUser) -> User {
        #[expect(clippy::expect_used, reason = "there are no more than MAX_AGENTS")]
        let own = identity.agents + u32::try_from(self.0).expect("the number of an agent is small");
        let uid = if self == Self::OWNER { identity.uid } else { own };
        // The workspace's group comes second, so that what is made elsewhere is not the workspace's.
        User { uid, gid: own, groups: vec![identity.gid], umask: UMASK }
    }

    /// What only its user can enter: its home, and its place for temporary files.
    pub fn home(self) -> String {
        format!("/tmp/agent-{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use skillhost_api::error::ErrorKind;

    #[test]
    fn an_agent_keeps_its_user_and_nobody_else_gets_it() {
        let mut members = Members::default();
        assert!(members.attach("a").unwrap());
        assert!(!members.attach("a").unwrap(), "it is attached already");
        assert!(members.attach("b").unwrap());
        let slot = members.slot("a").unwrap();
        assert!(members.detach("a"));
        assert!(!members.detach("a"));
        assert_eq!(members.slot("a"), None);
        assert!(members.attach("c").unwrap());
        assert!(members.attach("a").unwrap());
        assert_eq!(members.slot("a"), Some(slot));
        assert_eq!(members.attached().collect::<Vec<_>>(), ["a", "b", "c"]);
        for number in members.0.len() + 1..MAX_AGENTS {
            members.attach(&number.to_string()).unwrap();
        }
        assert_eq!(members.attach("one more").unwrap_err().kind, ErrorKind::QuotaExceeded);
    }

    #[test]
    fn users_and_groups_are_each_agents_own() {
        let identity = SandboxUser::alone(1000, 100);
        let users: Vec<_> = MemberSlot::all().map(|slot| slot.user(identity)).collect();
        let uids: HashSet<_> = users.iter().map(|user| user.uid).collect();
        let gids: HashSet<_> = users.iter().map(|user| user.gid).collect();
        assert_eq!((uids.len(), gids.len()), (MAX_AGENTS, MAX_AGENTS));
        assert!(!uids.contains(&0) && !gids.contains(&identity.gid));
        assert!(users.iter().all(|user| user.uid < 65_534 && user.groups == [identity.gid]));
        assert_eq!(users[0].uid, identity.uid);
    }
}
