//! Sandboxes: their life, sharing, commands, scripts and shells.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Ask, Builtin, Effect, builtin, milliseconds};
use crate::api::types::{
    AttachAnswer, Command, DetachAnswer, ExecAnswer, ExecRequest, ExecuteScriptRequest, ImageFilter, ImageList,
    LaunchAnswer, LaunchRequest, Network, Request, RestartAnswer, RunScriptRequest, SandboxList, SandboxStatus, Scope,
    ScriptAnswer, ScriptList, ShellAnswer, ShellList, ShellRequest, ShellStopAnswer, StopAnswer, TemplateDetail,
    TemplateList,
};
use crate::config::Group::Sandbox;
use crate::error::{Error, Result};

/// A sandbox to launch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Launch {
    /// A role that `list_images` names, such as `default`.
    image_role: String,
    /// Cores; default 1.
    cpu_limit: Option<f64>,
    /// Memory in MiB; default 1024.
    memory_limit_mb: Option<u64>,
    /// It ends after so many seconds; default 3600.
    max_wall_time_seconds: Option<f64>,
    /// `none` (default), or `bridge` where the operator allows connections out.
    network_mode: Option<Network>,
    /// Whether other agents of the session may attach.
    #[serde(default)]
    shared: bool,
    /// Environment of your commands in it.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// One sandbox.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Container {
    /// Its id, as `launch_container` gave it; ids are good until the sandbox ends, for this session's agents alone.
    pub(super) container_id: String,
}

/// Which sandboxes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Containers {
    /// `own`, `used` (default: those and the ones attached to), or `session` (also those that could be attached to).
    #[serde(default)]
    scope: Scope,
}

/// A command: a list is passed verbatim, a string is a line for the shell.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Words {
    /// Verbatim.
    List(Vec<String>),
    /// `bash -lc LINE`, `sh -lc LINE` where there is no bash.
    Line(String),
}

impl From<Words> for Command {
    fn from(words: Words) -> Self {
        match words {
            Words::List(argv) => Self::Argv(argv),
            Words::Line(line) => Self::Shell(line),
        }
    }
}

/// A command to run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Execute {
    /// Which sandbox.
    container_id: String,
    /// What to run: a list of arguments, passed verbatim, or a line for the shell.
    command: Words,
    /// Ended after so many seconds; default 120, at most what the operator allows (600).
    timeout_seconds: Option<f64>,
    /// Environment added for it.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Working directory; default and start of relative ones: `/workspace`.
    workdir: Option<String>,
    /// Its standard input; default empty.
    stdin: Option<String>,
    /// Bytes kept of each stream; default 1,000,000.
    capture_max_bytes: Option<u64>,
    /// Whether output is published on the blackboard as it comes, under the answer's `stream_key`.
    #[serde(default)]
    stream_to_blackboard: bool,
}

/// A script of the sandbox's role.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Script {
    /// Which sandbox.
    container_id: String,
    /// A script that `list_scripts` names.
    script_name: String,
    /// Its arguments by name.
    #[serde(default)]
    args: Map<String, Value>,
    /// The role that it must be of; a sandbox runs its own role's scripts only.
    image_role: Option<String>,
    /// Ended after so many seconds; default the script's own.
    timeout_seconds: Option<f64>,
    /// Whether output is published on the blackboard as it comes.
    #[serde(default)]
    stream_to_blackboard: bool,
}

/// Python source, or a template; exactly one of the two.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Python {
    /// Which sandbox.
    container_id: String,
    /// A template that `list_script_templates` names.
    template_name: Option<String>,
    /// Python source.
    script: Option<String>,
    /// Its arguments by name; each is passed as `--kebab-name value`.
    #[serde(default)]
    template_args: Map<String, Value>,
    /// Environment added for it.
    #[serde(default)]
    extra_env: BTreeMap<String, String>,
    /// Ended after so many seconds; default the template's own.
    timeout_seconds: Option<f64>,
    /// Whether output is published on the blackboard as it comes.
    #[serde(default)]
    stream_to_blackboard: bool,
}

/// A line for a persistent shell.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Which sandbox.
    container_id: String,
    /// What to run: any text that the shell reads, of many lines too.
    line: String,
    /// Which of the agent's shells; default `default`. It is started when there is none of that name.
    name: Option<String>,
    /// Ended after so many seconds; default 120.
    timeout_seconds: Option<f64>,
    /// Bytes kept of each stream; default 1,000,000.
    capture_max_bytes: Option<u64>,
}

/// A persistent shell.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Shell {
    /// Which sandbox.
    container_id: String,
    /// Which shell; default `default`.
    name: Option<String>,
}

/// Which roles.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Images {
    /// Only these roles.
    role_allowlist: Option<Vec<String>>,
    /// Only roles that have all of these tags.
    #[serde(default)]
    tags: Vec<String>,
}

/// Of which role.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Scripts {
    /// Only this role's; default all.
    image_role: Option<String>,
}

/// A role.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Role {
    /// Which role.
    image_role: String,
}

/// A template of a role.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Template {
    /// Which role.
    image_role: String,
    /// The template's name.
    name: String,
}

fn launch(asked: Launch) -> Result<Ask> {
    let request = LaunchRequest {
        role: asked.image_role,
        cpus: asked.cpu_limit,
        memory_mib: asked.memory_limit_mb,
        network: asked.network_mode,
        wall_time_ms: milliseconds(asked.max_wall_time_seconds)?,
        shared: asked.shared,
        env: asked.env,
    };
    Ok(Request::Launch(request).into())
}

fn execute(asked: Execute) -> Result<Ask> {
    let request = ExecRequest {
        container_id: asked.container_id,
        command: asked.command.into(),
        cwd: asked.workdir,
        env: asked.env,
        timeout_ms: milliseconds(asked.timeout_seconds)?,
        max_output: asked.capture_max_bytes,
        stdin: asked.stdin.is_some(),
        stream_to_blackboard: asked.stream_to_blackboard,
        ..ExecRequest::default()
    };
    Ok(Ask { input: asked.stdin.map(Into::into), ..Request::Exec(request).into() })
}

fn script(asked: Script) -> Result<Ask> {
    let request = ExecuteScriptRequest {
        container_id: asked.container_id,
        script_name: asked.script_name,
        args: asked.args,
        image_role: asked.image_role,
        timeout_ms: milliseconds(asked.timeout_seconds)?,
        stream_to_blackboard: asked.stream_to_blackboard,
        ..ExecuteScriptRequest::default()
    };
    Ok(Request::ExecuteScript(request).into())
}

fn python(asked: Python) -> Result<Ask> {
    if asked.template_name.is_some() == asked.script.is_some() {
        return Err(Error::invalid_argument("give either `template_name` or `script`"));
    }
    let request = RunScriptRequest {
        container_id: asked.container_id,
        template_name: asked.template_name,
        script: asked.script,
        template_args: asked.template_args,
        extra_env: asked.extra_env,
        timeout_ms: milliseconds(asked.timeout_seconds)?,
        stream_to_blackboard: asked.stream_to_blackboard,
        ..RunScriptRequest::default()
    };
    Ok(Request::RunScript(request).into())
}

fn line(asked: Line) -> Result<Ask> {
    let request = ShellRequest {
        container_id: asked.container_id,
        name: asked.name,
        line: asked.line,
        timeout_ms: milliseconds(asked.timeout_seconds)?,
        max_output: asked.capture_max_bytes,
    };
    Ok(Request::Shell(request).into())
}

pub(super) fn add(all: &mut Vec<Builtin>) {
    lives(all);
    runs(all);
    knows(all);
}

fn lives(all: &mut Vec<Builtin>) {
    all.push(builtin::<Launch, LaunchAnswer>(
        Sandbox,
        "launch_container",
        Effect::Adds,
        "Launch a sandbox",
        "Launches an isolated sandbox from a role and gives its container_id. The session's files are in /workspace. It ends by itself after max_wall_time_seconds; stop it when it is not needed any more.",
        launch,
    ));
    all.push(builtin::<Container, StopAnswer>(
        Sandbox,
        "stop_container",
        Effect::Sets,
        "Stop a sandbox",
        "Ends a sandbox of this agent's own and all that runs in it. The workspace stays.",
        |asked: Container| Ok(Request::StopSandbox { container_id: asked.container_id }.into()),
    ));
    all.push(builtin::<Container, RestartAnswer>(
        Sandbox,
        "restart_container",
        Effect::Sets,
        "Restart a sandbox",
        "Starts a sandbox of this agent's own again, with nothing of what ran in it. The workspace and the id stay.",
        |asked: Container| Ok(Request::RestartSandbox { container_id: asked.container_id }.into()),
    ));
    all.push(builtin::<Containers, SandboxList>(
        Sandbox,
        "list_containers",
        Effect::Reads,
        "List sandboxes",
        "Lists the sandboxes that this agent launched or is attached to.",
        |asked: Containers| Ok(Request::ListSandboxes { scope: asked.scope }.into()),
    ));
    all.push(builtin::<Container, SandboxStatus>(
        Sandbox,
        "get_container_status",
        Effect::Reads,
        "Look at a sandbox",
        "Says whether a sandbox runs, what it is, and why it ended.",
        |asked: Container| Ok(Request::SandboxStatus { container_id: asked.container_id }.into()),
    ));
    all.push(builtin::<Container, AttachAnswer>(
        Sandbox,
        "attach_container",
        Effect::Adds,
        "Attach to a sandbox",
        "Attaches to a shared sandbox of another agent of this session, to run commands in it.",
        |asked: Container| Ok(Request::AttachSandbox { container_id: asked.container_id }.into()),
    ));
    all.push(builtin::<Container, DetachAnswer>(
        Sandbox,
        "detach_container",
        Effect::Sets,
        "Detach from a sandbox",
        "Leaves a sandbox of another agent; what this agent runs in it ends.",
        |asked: Container| Ok(Request::DetachSandbox { container_id: asked.container_id }.into()),
    ));
}

fn runs(all: &mut Vec<Builtin>) {
    all.push(builtin::<Execute, ExecAnswer>(
        Sandbox,
        "execute_command",
        Effect::Runs,
        "Run a command",
        "Runs a command in a sandbox and gives its exit code and output. What it starts ends with it; start_process is for what should live on, shell_execute for what should remember. Where a script of list_scripts fits, execute_script is better.",
        execute,
    ));
    all.push(builtin::<Script, ScriptAnswer>(
        Sandbox,
        "execute_script",
        Effect::Runs,
        "Run a script",
        "Runs a script that the operator registered for the sandbox's role, with checked arguments.",
        script,
    ));
    all.push(builtin::<Python, ScriptAnswer>(
        Sandbox,
        "run_script",
        Effect::Runs,
        "Run Python",
        "Runs Python source, or a template of the sandbox's role, in a sandbox.",
        python,
    ));
    all.push(builtin::<Line, ShellAnswer>(
        Sandbox,
        "shell_execute",
        Effect::Runs,
        "Run a line in a shell",
        "Runs a line in a shell that persists: working directory, exports, functions and jobs are there for the next line. Its cwd is in the answer.",
        line,
    ));
    all.push(builtin::<Container, ShellList>(
        Sandbox,
        "list_shells",
        Effect::Reads,
        "List shells",
        "Lists the persistent shells of a sandbox.",
        |asked: Container| Ok(Request::ShellList { container_id: asked.container_id }.into()),
    ));
    all.push(builtin::<Shell, ShellStopAnswer>(
        Sandbox,
        "stop_shell",
        Effect::Sets,
        "End a shell",
        "Ends a persistent shell of this agent's own, with all that runs in it.",
        |asked: Shell| Ok(Request::ShellStop { container_id: asked.container_id, name: asked.name }.into()),
    ));
}

fn knows(all: &mut Vec<Builtin>) {
    all.push(builtin::<Images, ImageList>(
        Sandbox,
        "list_images",
        Effect::Reads,
        "List roles",
        "Lists the roles that sandboxes can be launched from.",
        |asked: Images| {
            Ok(Request::ListImages(ImageFilter { role_allowlist: asked.role_allowlist, tags: asked.tags }).into())
        },
    ));
    all.push(builtin::<Scripts, ScriptList>(
        Sandbox,
        "list_scripts",
        Effect::Reads,
        "List scripts",
        "Lists the scripts of one role, or of all, with their parameters.",
        |asked: Scripts| Ok(Request::ListScripts { image_role: asked.image_role }.into()),
    ));
    all.push(builtin::<Role, TemplateList>(
        Sandbox,
        "list_script_templates",
        Effect::Reads,
        "List templates",
        "Lists the Python templates of a role, with their parameters.",
        |asked: Role| Ok(Request::ListScriptTemplates { image_role: asked.image_role }.into()),
    ));
    all.push(builtin::<Template, TemplateDetail>(
        Sandbox,
        "get_script_template",
        Effect::Reads,
        "Read a template",
        "Gives a template with its Python source.",
        |asked: Template| Ok(Request::GetScriptTemplate { image_role: asked.image_role, name: asked.name }.into()),
    ));
}
