//! The requests and answers of the host as types: what the command line, tests and embedders speak.
//!
//! Names in JSON are snake_case for answers, as S1's users know them; enumerations are kebab-case, as in WIT.

mod machine;
mod records;
mod sandboxes;
mod skills;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::caller::Caller;
pub use machine::{Check, DoctorReport, Done, HostStatus, ImageList, ImageSummary};
pub use records::{Approval, ApprovalList, AuditList, AuditRecord, BlackboardEntry, BlackboardList};
pub use sandboxes::{
    Command, CopyAnswer, CopyRequest, ExecAnswer, ExecRequest, FileAnswer, HostPath, LaunchAnswer, LaunchRequest,
    Network, Outcome, SandboxList, SandboxStatus, SandboxSummary, StopAnswer,
};
pub use skills::{ActionDetail, Permission, RunAnswer, RunRequest, SkillDetail, SkillList, SkillState, SkillSummary};

/// One call: who asks, from where, and what for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Who asks.
    pub caller: Caller,
    /// The directory the caller works in: its skills are found there, and the host root `project` is this directory.
    #[serde(default)]
    pub project: Option<PathBuf>,
    /// What is asked.
    pub request: Request,
}

/// What can be asked of the host.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", content = "with", rename_all = "kebab-case")]
pub enum Request {
    /// Call an action of a skill. Answer: [`RunAnswer`].
    Run(RunRequest),
    /// List the skills. Answer: [`SkillList`].
    ListSkills,
    /// Search names and descriptions. Answer: [`SkillList`].
    SearchSkills {
        /// The words, all of which must occur.
        query: String,
    },
    /// Describe one skill whole. Answer: [`SkillDetail`].
    InspectSkill {
        /// Its name.
        skill: String,
    },
    /// Trust (or stop trusting) the skills of a project directory. Answer: [`Done`].
    Trust {
        /// The project directory, absolute.
        project: PathBuf,
        /// False takes the trust back.
        trusted: bool,
    },
    /// What waits for the owner's approval. Answer: [`ApprovalList`].
    ListApprovals,
    /// Approve one of these; it may then happen once. Answer: [`Approval`].
    Approve {
        /// Which.
        id: String,
    },
    /// The roles and whether their images are present. Answer: [`ImageList`].
    ListImages,
    /// What is on, what is missing, and how to get it. Answer: [`DoctorReport`].
    Doctor,
    /// Launch a sandbox. Answer: [`LaunchAnswer`].
    Launch(LaunchRequest),
    /// Run a command. Answer: [`ExecAnswer`].
    Exec(ExecRequest),
    /// The caller's sandboxes. Answer: [`SandboxList`].
    ListSandboxes,
    /// One sandbox. Answer: [`SandboxStatus`].
    SandboxStatus {
        /// Which.
        container_id: String,
    },
    /// Stop a sandbox. Answer: [`StopAnswer`].
    StopSandbox {
        /// Which.
        container_id: String,
    },
    /// Read a file of a sandbox; its bytes are streamed. Answer: [`FileAnswer`].
    ReadFile {
        /// Which sandbox.
        container_id: String,
        /// Path in the sandbox; relative ones start at `/workspace`.
        path: String,
    },
    /// Write a file of a sandbox from the streamed input. Answer: [`FileAnswer`].
    WriteFile {
        /// Which sandbox.
        container_id: String,
        /// Path in the sandbox; relative ones start at `/workspace`.
        path: String,
    },
    /// Copy a host file or directory into a sandbox. Answer: [`CopyAnswer`].
    CopyIn(CopyRequest),
    /// Copy a file or directory of a sandbox to the host. Answer: [`CopyAnswer`].
    CopyOut(CopyRequest),
    /// Publish a blackboard value. Answer: [`BlackboardEntry`].
    BlackboardPublish {
        /// The key.
        key: String,
        /// Any JSON value.
        value: Value,
    },
    /// Read a blackboard value. Answer: [`BlackboardEntry`], or a `not-found` error.
    BlackboardGet {
        /// The key.
        key: String,
    },
    /// List blackboard entries whose key matches a glob. Answer: [`BlackboardList`].
    BlackboardList {
        /// `*` matches within a `:`-separated part, `**` across parts; empty lists all.
        #[serde(default)]
        pattern: String,
    },
    /// The last audit records. Answer: [`AuditList`]; with `follow`, later ones are streamed until the caller leaves.
    AuditTail {
        /// How many.
        lines: u32,
        /// Go on as records come.
        #[serde(default)]
        follow: bool,
    },
    /// The host process. Answer: [`HostStatus`].
    HostStatus,
    /// End the host process and its sandboxes. Answer: [`Done`].
    HostStop,
}

impl Request {
    /// Whether input may follow it.
    pub fn takes_input(&self) -> bool {
        match self {
            Self::Exec(exec) => exec.stdin,
            Self::WriteFile { .. } => true,
            _ => false,
        }
    }
}

/// What comes before the answer while a call is under way.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// A skill's progress.
    Progress {
        /// How much is done.
        done: u64,
        /// Of how much, when known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        total: Option<u64>,
        /// In words.
        message: String,
    },
    /// A line of a skill's log.
    Log {
        /// `trace`, `debug`, `info`, `warn`, `error`, `stdout` or `stderr`.
        level: String,
        /// The line.
        message: String,
    },
    /// An exec has started.
    ExecStarted {
        /// Its id.
        exec_id: String,
    },
    /// A later audit record.
    Audit(AuditRecord),
}
