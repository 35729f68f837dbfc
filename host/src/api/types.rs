//! The requests and answers of the host as types: what the command line, tests and embedders speak.
//!
//! Names in JSON are snake_case for answers, as S1's users know them; enumerations are kebab-case, as in WIT.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::caller::Caller;

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

/// A call of one action.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunRequest {
    /// `skill`, `skill.action`, `plugin/skill` or `plugin/skill.action`. Without an action the skill must have just one.
    pub skill: String,
    /// The arguments as a JSON object by parameter name.
    pub args: serde_json::Map<String, Value>,
    /// Arguments still in text form (`--arg NAME=VALUE`), read by the schema's types. None may stand in `args` too.
    pub text_args: Vec<(String, String)>,
    /// Less than the skill's own deadline, in milliseconds.
    pub deadline_ms: Option<u64>,
}

/// What an action gave.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunAnswer {
    /// The skill.
    pub skill: String,
    /// The action.
    pub action: String,
    /// The invocation's id, as in the audit log.
    pub invocation_id: String,
    /// The result; `null` where the action returns nothing, or failed.
    pub result: Value,
    /// The skill's own failure: the `err` of a `result`, which is data and not an error of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Value>,
    /// Whether the action failed by its own word.
    pub failed: bool,
    /// Wall time of the call.
    pub wall_time_ms: u64,
    /// Fuel used; absent when it is not known (after an interrupt).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel_used: Option<u64>,
}

/// One line of a listing of skills.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SkillSummary {
    /// Its name, `plugin/skill` when of a plugin.
    pub name: String,
    /// What it is for; empty when it cannot be read.
    pub description: String,
    /// Its version.
    pub version: String,
    /// `project`, `user` or `system`.
    pub source: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Its actions' names.
    pub actions: Vec<String>,
    /// `ready`, `untrusted`, or `broken`.
    pub state: SkillState,
    /// Why it cannot run, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Whether a skill can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkillState {
    /// It can run.
    Ready,
    /// It is of a project that the user has not trusted.
    Untrusted,
    /// It cannot be read or described.
    Broken,
}

/// The skills.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SkillList {
    /// Every skill found, by name.
    pub skills: Vec<SkillSummary>,
    /// Names that two roots claim, and what lost.
    pub collisions: Vec<String>,
    /// What else is wrong: a root that cannot be read, a scan that was cut short.
    #[serde(default)]
    pub problems: Vec<String>,
}

/// One skill, whole.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SkillDetail {
    /// Its line in the listing.
    #[serde(flatten)]
    pub summary: SkillSummary,
    /// The component's digest, `sha256:…`.
    pub digest: String,
    /// Its actions with their schemas.
    pub actions_detail: Vec<ActionDetail>,
    /// Exports that cannot be actions, with the reason.
    pub unavailable: BTreeMap<String, String>,
    /// What it imports, and what each import lets it do.
    pub permissions: Vec<Permission>,
    /// The limits in force, by name, as text with units.
    pub limits: BTreeMap<String, String>,
    /// The body of `SKILL.md`.
    pub body: String,
}

/// One action, described.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ActionDetail {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The signature as WIT.
    pub signature: String,
    /// JSON Schema of the arguments' object.
    pub input_schema: Value,
    /// JSON Schema of the result, when there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
}

/// An import as the permission that it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Permission {
    /// The import, `skillhost:skill/sandbox@0.1.0`.
    pub import: String,
    /// What it lets the skill do.
    pub lets: String,
    /// What is granted of it here, in words.
    pub granted: String,
}

/// The network of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// Only `lo`.
    #[default]
    None,
    /// The engine's bridge: outbound connections.
    Bridge,
}

/// Launch a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LaunchRequest {
    /// The role.
    pub role: String,
    /// Cores; default 1.
    pub cpus: Option<f64>,
    /// Memory; default 1024.
    pub memory_mib: Option<u64>,
    /// Network; default none.
    pub network: Option<Network>,
    /// Wall time after which the sandbox ends; default one hour.
    pub wall_time_ms: Option<u64>,
    /// Whether other agents of the session may attach.
    pub shared: bool,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
}

/// A sandbox that was launched.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchAnswer {
    /// Its id, the handle for everything else.
    pub container_id: String,
    /// The engine's name for it.
    pub container_name: String,
    /// The image, resolved to its id.
    pub image: String,
    /// The role.
    pub role: String,
    /// `docker` or `local`.
    pub backend: String,
    /// What isolates it, in a word or two.
    pub isolation: String,
    /// The session's workspace on the host.
    pub workspace_path: PathBuf,
    /// Its owner.
    pub owner_agent_id: String,
    /// Whether others may attach.
    pub shared: bool,
    /// True.
    pub started: bool,
    /// What a person should know; often empty.
    pub message: String,
}

/// A command: a list is passed verbatim, a string is a line for the shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Verbatim.
    Argv(Vec<String>),
    /// `bash -lc LINE`, `sh -lc LINE` where there is no bash.
    Shell(String),
}

impl Default for Command {
    fn default() -> Self {
        Self::Argv(Vec::new())
    }
}

/// Run a command in a sandbox.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecRequest {
    /// Which sandbox.
    pub container_id: String,
    /// What to run.
    pub command: Command,
    /// Working directory; default `/workspace`; relative ones start there.
    pub cwd: Option<String>,
    /// Environment added for this command.
    pub env: BTreeMap<String, String>,
    /// Deadline; default 120 s, clamped to the ceiling of 600 s.
    pub timeout_ms: Option<u64>,
    /// Bytes kept of each stream; default 1,000,000.
    pub max_output: Option<u64>,
    /// Whether standard input follows as a stream; otherwise it is empty.
    pub stdin: bool,
    /// Whether output is streamed as it comes (then the answer's `stdout` and `stderr` still hold what was kept).
    pub stream: bool,
}

/// How an exec ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The leader exited with this code.
    Exited(i32),
    /// A signal ended the leader.
    Signaled(i32),
    /// The deadline passed.
    TimedOut,
    /// The caller gave up.
    Cancelled,
    /// The kernel ended it for memory.
    OutOfMemory,
    /// It could not be started, with the reason.
    NotStarted(String),
}

impl Outcome {
    /// The exit code that stands for it: 124 for a timeout, 128+n for a signal, 126 or 127 for what could not be started.
    pub fn exit_code(&self, not_started: i32) -> i32 {
        match self {
            Self::Exited(code) => *code,
            Self::Signaled(signal) => 128 + signal,
            Self::TimedOut => 124,
            Self::Cancelled => 130,
            Self::OutOfMemory => 137,
            Self::NotStarted(_) => not_started,
        }
    }
}

/// What a command did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecAnswer {
    /// The sandbox.
    pub container_id: String,
    /// The exec's id, `exec_…`.
    pub exec_id: String,
    /// The argv that ran.
    pub command: Vec<String>,
    /// The exit code (see [`Outcome::exit_code`]).
    pub exit_code: i32,
    /// How it ended.
    pub outcome: Outcome,
    /// What was kept of standard output.
    #[serde(flatten, with = "crate::api::bytes::stdout")]
    pub stdout: Vec<u8>,
    /// What was kept of standard error.
    #[serde(flatten, with = "crate::api::bytes::stderr")]
    pub stderr: Vec<u8>,
    /// All bytes that standard output had.
    pub stdout_bytes: u64,
    /// All bytes that standard error had.
    pub stderr_bytes: u64,
    /// Whether either stream was cut.
    pub truncated: bool,
    /// Whether the deadline ended it.
    pub timed_out: bool,
    /// From the request to the end.
    pub wall_time_ms: u64,
    /// The working directory.
    pub cwd: String,
    /// Where its stream is published; `null` when it is not.
    pub stream_key: Option<String>,
    /// What a person or a model should know: a clamp, a timeout, why it did not start.
    pub message: String,
}

/// One sandbox in a listing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxSummary {
    /// Its id.
    pub container_id: String,
    /// The engine's name for it.
    pub container_name: String,
    /// The image's id.
    pub image: String,
    /// The role.
    pub role: String,
    /// `docker` or `local`.
    pub backend: String,
    /// What isolates it.
    pub isolation: String,
    /// When it was launched, milliseconds since 1970.
    pub launched_at_ms: u64,
    /// Its owner.
    pub owner_agent_id: String,
    /// Whether that is the caller.
    pub owner_is_me: bool,
    /// Whether others may attach.
    pub shared: bool,
    /// Cores.
    pub cpus: f64,
    /// Memory.
    pub memory_mib: u64,
    /// Network.
    pub network: Network,
    /// The session's workspace on the host.
    pub workspace_path: PathBuf,
}

/// The caller's sandboxes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SandboxList {
    /// They.
    pub containers: Vec<SandboxSummary>,
    /// How many.
    pub count: usize,
}

/// One sandbox's state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SandboxStatus {
    /// Its id.
    pub container_id: String,
    /// Whether the host knows it.
    pub known: bool,
    /// Whether it runs.
    pub running: bool,
    /// `running`, `ended`, or `unknown`.
    pub status: String,
    /// Execs under way in it.
    pub execs: usize,
    /// Its line in the listing, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSummary>,
    /// Why it ended, for one.
    pub message: String,
}

/// A sandbox that was stopped.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StopAnswer {
    /// Its id.
    pub container_id: String,
    /// True.
    pub stopped: bool,
    /// What a person should know.
    pub message: String,
}

/// A file that was read or written.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FileAnswer {
    /// The sandbox.
    pub container_id: String,
    /// The path, absolute in the sandbox.
    pub path: String,
    /// True.
    pub ok: bool,
    /// How many bytes.
    pub bytes: u64,
    /// What a person should know.
    pub message: String,
}

/// Copy between host and sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CopyRequest {
    /// The sandbox.
    pub container_id: String,
    /// The path on the host.
    pub host: HostPath,
    /// The path in the sandbox; relative ones start at `/workspace`.
    pub sandbox: String,
}

/// A path on the host, always beneath something.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostPath {
    /// Beneath a root that the operator named (or `project`).
    Root {
        /// The root's name.
        root: String,
        /// Relative to it; `.` is the root itself.
        path: String,
    },
    /// The state directory's owner's own path, absolute. Only the command line may say this, never a skill.
    Owner(PathBuf),
}

/// What was copied.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CopyAnswer {
    /// The sandbox.
    pub container_id: String,
    /// True.
    pub ok: bool,
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What was left out (symlinks that lead outside, sockets), and other notes.
    pub message: String,
}

/// A blackboard value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlackboardEntry {
    /// The key.
    pub key: String,
    /// Any JSON value.
    pub value: Value,
    /// One more with every write, from 1.
    pub version: u64,
    /// Milliseconds since 1970.
    pub created_at_ms: u64,
    /// Milliseconds since 1970.
    pub updated_at_ms: u64,
    /// The agent that created it.
    pub created_by: String,
    /// The agent that wrote it last.
    pub updated_by: String,
}

/// Blackboard values.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BlackboardList {
    /// By key.
    pub entries: Vec<BlackboardEntry>,
    /// How many.
    pub count: usize,
}

/// One brokered effect, or its denial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// One more with every record, from 1.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The tenant.
    pub tenant: String,
    /// The session.
    pub session: String,
    /// The agent.
    pub agent: String,
    /// The skill, when one asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    /// The invocation, when a skill asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation_id: Option<String>,
    /// The effect: `sandbox.launch`, `sandbox.exec`, `files.copy-in`, `blackboard.publish` …
    pub effect: String,
    /// `ok`, or the error's kind.
    pub outcome: String,
    /// The effect's own facts (sizes, never contents).
    pub detail: Value,
}

/// Audit records.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AuditList {
    /// Oldest first.
    pub records: Vec<AuditRecord>,
}

/// One role.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageSummary {
    /// The role.
    pub role: String,
    /// The image's reference.
    pub image: String,
    /// What it holds.
    pub description: String,
    /// Whether the engine has it.
    pub present: bool,
    /// Its id when present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// The roles.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ImageList {
    /// By role.
    pub images: Vec<ImageSummary>,
    /// Entries of the roles' file that were skipped, with their place.
    pub problems: Vec<String>,
}

/// One thing that `doctor` looked at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// Whether it is well.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
    /// What to do when it is not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// What `doctor` saw.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DoctorReport {
    /// In order.
    pub checks: Vec<Check>,
    /// Whether skills can run commands here.
    pub can_sandbox: bool,
}

/// The host process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its process id.
    pub pid: u32,
    /// skillhost's version.
    pub version: String,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Since when, milliseconds since 1970.
    pub started_at_ms: u64,
    /// Calls under way.
    pub calls: usize,
    /// Sandboxes that run.
    pub sandboxes: usize,
    /// The backend in use.
    pub backend: String,
}

/// Done, with nothing more to say than this.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Done {
    /// In words.
    pub message: String,
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
