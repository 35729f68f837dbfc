//! The requests and answers of the host as types: what the command line, tests and embedders speak.
//!
//! Names in JSON are snake_case for answers, as S1's users know them; enumerations are kebab-case, as in WIT.

mod board;
mod catalog;
mod machine;
mod processes;
mod read;
mod records;
mod sandboxes;
mod scripts;
mod shells;
mod skills;
mod texts;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use crate::approval::{Approval, ApprovalKind};
use crate::caller::Caller;
pub use board::{
    BlackboardChange, BlackboardDeleted, BlackboardEntry, BlackboardEvent, BlackboardList, DeleteRequest, ListRequest,
    PublishRequest, WatchRequest, Watched,
};
pub use catalog::{ActionEntry, ActionList, SkillFile, SkillFileAnswer, SkillFileList, SkillFiles};
pub use machine::{Check, DoctorReport, Done, HostStatus, ImageList, ImageSummary};
pub use processes::{
    ProcessAnswer, ProcessList, ProcessOutput, ProcessReadRequest, ProcessSummary, ProcessWriteAnswer, ResizeAnswer,
};
pub use read::{FileContent, FileReadAnswer};
pub use records::{ApprovalList, AuditList, AuditRecord, KeptSkill};
pub use sandboxes::{
    AttachAnswer, Command, CopyAnswer, CopyRequest, DetachAnswer, ExecAnswer, ExecRequest, FileAnswer, FileChange,
    FileEntry, FileList, HostPath, LaunchAnswer, LaunchRequest, Network, Outcome, RestartAnswer, SandboxList,
    SandboxStatus, SandboxSummary, Scope, StopAnswer, TerminalSize,
};
pub use scripts::{
    ExecuteScriptRequest, ImageFilter, ParamSummary, RunScriptRequest, ScriptAnswer, ScriptList, ScriptSummary,
    TemplateDetail, TemplateList, TemplateSummary,
};
pub use shells::{ShellAnswer, ShellList, ShellRequest, ShellStopAnswer, ShellSummary};
pub use skills::{ActionDetail, Permission, RunAnswer, RunRequest, SkillDetail, SkillList, SkillState, SkillSummary};
pub use texts::{KeptText, ReadTextRequest, TextPiece};

/// One call: who asks, from where, and what for.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    /// Who asks.
    pub caller: Caller,
    /// With whose authority. There is no default: who leaves it out has not decided whose call it is.
    pub authority: Authority,
    /// The directory the caller works in: its skills are found there, and the host root `project` is this directory.
    #[serde(default)]
    pub project: Option<PathBuf>,
    /// What is asked.
    pub request: Request,
}

/// With whose authority a call is made. Whoever may speak to the host is its owner, so the owner's program says this, and
/// says `agent` for what an agent asks of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Authority {
    /// The owner in person, who was shown what the call is about and said yes to it.
    Person,
    /// The state directory's owner: what the operator's policy and the quotas allow.
    Owner,
    /// An agent: what `[policy.agents]` allows, and nothing that would change what it may.
    Agent,
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
    /// Read every skill anew, also those whose files seem to be what they were, and list them. Answer: [`SkillList`].
    ReloadSkills,
    /// Every action that can be called, with all that a face needs to offer it; they are streamed. Answer: [`ActionList`].
    ListActions {
        /// The revision that the caller has: while it is the present one, the answer is short.
        #[serde(default)]
        unless: Option<String>,
    },
    /// Watch for changes of what [`Self::ListActions`] answers: [`Event::Watching`] first, then [`Event::Skills`] for each.
    /// It goes on until the caller leaves.
    WatchSkills,
    /// The frontmatter of skills and the files in their directories. Answer: [`SkillFileList`].
    SkillFiles {
        /// Only of this one.
        #[serde(default)]
        skill: Option<String>,
    },
    /// Read a file of a skill; its bytes are streamed. Answer: [`SkillFileAnswer`], or a `not-found` error for whatever is
    /// not listed.
    ReadSkillFile {
        /// The skill.
        skill: String,
        /// The file's path, just as it is listed.
        path: String,
    },
    /// Trust (or stop trusting) the skills of a project directory. Answer: [`Done`].
    Trust {
        /// The project directory, absolute.
        project: PathBuf,
        /// False takes the trust back.
        trusted: bool,
    },
    /// What waits for the owner's approval, and what was approved. Answer: [`ApprovalList`].
    ListApprovals,
    /// Approve what waits: an effect may then happen once, a skill runs until it changes. Answer: [`Approval`].
    Approve {
        /// Which.
        id: String,
    },
    /// Forget what skills were let run with. Answer: [`Done`], or a `not-found` error.
    RevokeApproval {
        /// Those of this name, wherever they are.
        skill: String,
        /// And the one in this directory, absolute.
        #[serde(default)]
        directory: Option<PathBuf>,
    },
    /// The roles and whether their images are present. Answer: [`ImageList`].
    ListImages(ImageFilter),
    /// The scripts of one role, or of all. Answer: [`ScriptList`].
    ListScripts {
        /// Only this one's.
        image_role: Option<String>,
    },
    /// Run a script of a sandbox's role. Answer: [`ScriptAnswer`].
    ExecuteScript(ExecuteScriptRequest),
    /// Run Python source in a sandbox. Answer: [`ScriptAnswer`].
    RunScript(RunScriptRequest),
    /// The templates of a role. Answer: [`TemplateList`].
    ListScriptTemplates {
        /// Which.
        image_role: String,
    },
    /// One template, with its source. Answer: [`TemplateDetail`].
    GetScriptTemplate {
        /// The role that it is of.
        image_role: String,
        /// Its name.
        name: String,
    },
    /// What is on, what is missing, and how to get it. Answer: [`DoctorReport`].
    Doctor,
    /// Launch a sandbox. Answer: [`LaunchAnswer`].
    Launch(LaunchRequest),
    /// Run a command. Answer: [`ExecAnswer`].
    Exec(ExecRequest),
    /// Start a command that outlives this call; without `timeout_ms` it has its sandbox's wall time, `max_output` and
    /// `stream` mean nothing, and `stdin` keeps its standard input open for [`Self::ProcessWrite`]. Answer:
    /// [`ProcessAnswer`], once it runs or is known not to.
    ProcessStart(ExecRequest),
    /// The background processes of a sandbox. Answer: [`ProcessList`].
    ProcessList {
        /// Which sandbox.
        container_id: String,
    },
    /// What a background process wrote. Answer: [`ProcessOutput`].
    ProcessRead(ProcessReadRequest),
    /// Write the streamed input to a background process of the caller's own. Answer: [`ProcessWriteAnswer`].
    ProcessWrite {
        /// Which sandbox.
        container_id: String,
        /// Which process.
        exec_id: String,
        /// Whether that is the end of its standard input.
        #[serde(default)]
        close: bool,
    },
    /// Wait for the end of a background process. Answer: [`ProcessAnswer`]; it says whether the process still runs.
    ProcessWait {
        /// Which sandbox.
        container_id: String,
        /// Which process.
        exec_id: String,
        /// No longer than this; absent is for as long as it takes.
        #[serde(default)]
        timeout_ms: Option<u64>,
    },
    /// Send a signal to a background process of the caller's own, or end it. Answer: [`ProcessAnswer`].
    ProcessSignal {
        /// Which sandbox.
        container_id: String,
        /// Which process.
        exec_id: String,
        /// To the leader's process group, 1 to 64; absent ends the whole tree (TERM, a moment, KILL) and waits for that.
        #[serde(default)]
        signal: Option<i32>,
    },
    /// The session's sandboxes. Answer: [`SandboxList`].
    ListSandboxes {
        /// Which of them.
        #[serde(default)]
        scope: Scope,
    },
    /// Give a running command's terminal another size; the command is told by SIGWINCH. Of an exec or background process of
    /// the caller's own. Answer: [`ResizeAnswer`].
    ResizeTerminal {
        /// Which sandbox.
        container_id: String,
        /// Which command.
        exec_id: String,
        /// The size.
        size: TerminalSize,
    },
    /// Run a line in a persistent shell. Answer: [`ShellAnswer`].
    Shell(ShellRequest),
    /// The persistent shells of a sandbox. Answer: [`ShellList`].
    ShellList {
        /// Which sandbox.
        container_id: String,
    },
    /// End a persistent shell of the caller's own, with all that runs in it. Answer: [`ShellStopAnswer`].
    ShellStop {
        /// Which sandbox.
        container_id: String,
        /// Which shell; default `default`.
        #[serde(default)]
        name: Option<String>,
    },
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
    /// Start a sandbox again, with nothing of what ran in it: its workspace and who is attached stay. Answer: [`RestartAnswer`].
    RestartSandbox {
        /// Which.
        container_id: String,
    },
    /// Attach to a shared sandbox of another agent of the session. Answer: [`AttachAnswer`].
    AttachSandbox {
        /// Which.
        container_id: String,
    },
    /// Leave a sandbox of another agent; what the caller runs in it ends. Answer: [`DetachAnswer`].
    DetachSandbox {
        /// Which.
        container_id: String,
    },
    /// Read a file of a sandbox, or a part of it; the bytes are streamed. Answer: [`FileReadAnswer`].
    ReadFile {
        /// Which sandbox.
        container_id: String,
        /// Path in the sandbox; relative ones start at `/workspace`.
        path: String,
        /// The first byte.
        #[serde(default)]
        offset: u64,
        /// At most so many bytes.
        #[serde(default)]
        max_bytes: Option<u64>,
    },
    /// Write a file of a sandbox from the streamed input. Answer: [`FileAnswer`].
    WriteFile {
        /// Which sandbox.
        container_id: String,
        /// Path in the sandbox; relative ones start at `/workspace`.
        path: String,
    },
    /// List what is in a directory of a sandbox. Answer: [`FileList`].
    ListFiles {
        /// Which sandbox.
        container_id: String,
        /// Path in the sandbox; relative ones start at `/workspace`.
        path: String,
    },
    /// Remove a file of a sandbox, or a directory. Answer: [`FileAnswer`].
    RemoveFile {
        /// Which sandbox.
        container_id: String,
        /// Path in the sandbox; relative ones start at `/workspace`.
        path: String,
        /// A directory with all that is in it.
        #[serde(default)]
        recursive: bool,
    },
    /// Watch a file of a sandbox, or what is in a directory; changes are streamed until the caller leaves or the path is
    /// gone. Answer: [`FileAnswer`].
    WatchFiles {
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
    BlackboardPublish(PublishRequest),
    /// Read a blackboard value. Answer: [`BlackboardEntry`], or a `not-found` error.
    BlackboardGet {
        /// The key.
        key: String,
    },
    /// List blackboard values. Answer: [`BlackboardList`].
    BlackboardList(ListRequest),
    /// Delete a blackboard value. Answer: [`BlackboardDeleted`], or a `not-found` error.
    BlackboardDelete(DeleteRequest),
    /// Watch keys; events are streamed until the caller leaves or has as many as it wants. Answer: [`Watched`].
    BlackboardWatch(WatchRequest),
    /// Keep the streamed input, a text, for the caller to read on in. Answer: [`KeptText`].
    KeepText {
        /// What it is called; a text of the caller's that is called so goes.
        output_id: String,
    },
    /// A piece of a text that was kept for the caller. Answer: [`TextPiece`], or a `not-found` error.
    ReadText(ReadTextRequest),
    /// The last audit records. Answer: [`AuditList`]; with `follow`, later ones are streamed until the caller leaves.
    AuditTail {
        /// How many.
        lines: u32,
        /// Only those before this number.
        #[serde(default)]
        before: Option<u64>,
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
            Self::WriteFile { .. } | Self::ProcessWrite { .. } | Self::KeepText { .. } => true,
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
    /// A change at a watched path of a sandbox.
    File(FileChange),
    /// A watch has begun: whatever happens from now on is told.
    Watching,
    /// A change of the blackboard.
    Blackboard(BlackboardEvent),
    /// The catalogue has changed: what is offered is not what it was.
    Skills {
        /// The revision that it has now, as in [`ActionList`].
        revision: String,
    },
}
