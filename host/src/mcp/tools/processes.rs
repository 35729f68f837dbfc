//! Background processes, and their terminals.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::sandbox::{Container, Words};
use super::{Ask, Builtin, Effect, builtin, milliseconds};
use crate::api::types::{
    ExecRequest, ProcessAnswer, ProcessList, ProcessOutput, ProcessReadRequest, ProcessWriteAnswer, Request,
    ResizeAnswer, TerminalSize,
};
use crate::config::Group::Sandbox;
use crate::error::Result;

/// A process to start.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Start {
    /// Which sandbox.
    container_id: String,
    /// What to run: a list of arguments, passed verbatim, or a line for the shell.
    command: Words,
    /// Ended after so many seconds; default the sandbox's own wall time.
    timeout_seconds: Option<f64>,
    /// Environment added for it.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Working directory; default and start of relative ones: `/workspace`.
    workdir: Option<String>,
    /// Whether `write_process` will give it input; otherwise its standard input is empty.
    #[serde(default)]
    stdin: bool,
    /// Gives it a terminal of this size: then all that it shows is standard output.
    terminal: Option<TerminalSize>,
}

/// A background process.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Read {
    /// Which sandbox.
    container_id: String,
    /// Which process, `exec_…`.
    exec_id: String,
    /// From this byte of standard output on: 0 is its beginning, an earlier answer's `stdout_next` what came since.
    #[serde(default)]
    stdout_from: u64,
    /// The same of standard error.
    #[serde(default)]
    stderr_from: u64,
    /// At most so many bytes of each stream.
    max_bytes: Option<u64>,
    /// When there is nothing new, wait so many seconds for something, or for its end; default 0, at most 60.
    wait_seconds: Option<f64>,
}

/// Input for a background process.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Write {
    /// Which sandbox.
    container_id: String,
    /// Which process.
    exec_id: String,
    /// What to write.
    #[serde(default)]
    text: String,
    /// Whether that is the end of its input.
    #[serde(default)]
    close: bool,
}

/// A background process to wait for.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Wait {
    /// Which sandbox.
    container_id: String,
    /// Which process.
    exec_id: String,
    /// No longer than so many seconds; default 60.
    timeout_seconds: Option<f64>,
}

/// A background process to end.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Kill {
    /// Which sandbox.
    container_id: String,
    /// Which process.
    exec_id: String,
    /// Send just this signal, 1 to 64, to its process group; without one all of its tree is ended and waited for.
    signal: Option<i32>,
}

/// A terminal's new size.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Resize {
    /// Which sandbox.
    container_id: String,
    /// Which process.
    exec_id: String,
    /// Lines.
    rows: u16,
    /// Columns.
    columns: u16,
}

fn start(asked: Start) -> Result<Ask> {
    let request = ExecRequest {
        container_id: asked.container_id,
        command: asked.command.into(),
        cwd: asked.workdir,
        env: asked.env,
        timeout_ms: milliseconds(asked.timeout_seconds)?,
        stdin: asked.stdin,
        terminal: asked.terminal,
        ..ExecRequest::default()
    };
    Ok(Request::ProcessStart(request).into())
}

fn read(asked: Read) -> Result<Ask> {
    let request = ProcessReadRequest {
        container_id: asked.container_id,
        exec_id: asked.exec_id,
        stdout_from: asked.stdout_from,
        stderr_from: asked.stderr_from,
        max_bytes: asked.max_bytes,
        wait_ms: milliseconds(asked.wait_seconds)?.unwrap_or_default(),
    };
    Ok(Request::ProcessRead(request).into())
}

fn write(asked: Write) -> Result<Ask> {
    let Write { container_id, exec_id, text, close } = asked;
    Ok(Ask { input: Some(text.into()), ..Request::ProcessWrite { container_id, exec_id, close }.into() })
}

fn wait(asked: Wait) -> Result<Ask> {
    let timeout_ms = Some(milliseconds(asked.timeout_seconds)?.unwrap_or(60_000));
    Ok(Request::ProcessWait { container_id: asked.container_id, exec_id: asked.exec_id, timeout_ms }.into())
}

fn kill(asked: Kill) -> Result<Ask> {
    let Kill { container_id, exec_id, signal } = asked;
    Ok(Request::ProcessSignal { container_id, exec_id, signal }.into())
}

fn resize(asked: Resize) -> Result<Ask> {
    let size = TerminalSize { rows: asked.rows, columns: asked.columns };
    Ok(Request::ResizeTerminal { container_id: asked.container_id, exec_id: asked.exec_id, size }.into())
}

pub(super) fn add(all: &mut Vec<Builtin>) {
    all.push(builtin::<Start, ProcessAnswer>(
        Sandbox,
        "start_process",
        Effect::Runs,
        "Start a process",
        "Starts a command that goes on in the background, such as a server. Its output is kept for read_process.",
        start,
    ));
    all.push(builtin::<Container, ProcessList>(
        Sandbox,
        "list_processes",
        Effect::Reads,
        "List processes",
        "Lists the background processes of a sandbox: those that run and the last that have ended.",
        |asked: Container| Ok(Request::ProcessList { container_id: asked.container_id }.into()),
    ));
    all.push(builtin::<Read, ProcessOutput>(
        Sandbox,
        "read_process",
        Effect::Reads,
        "Read a process",
        "Gives what a background process wrote.",
        read,
    ));
    all.push(builtin::<Write, ProcessWriteAnswer>(
        Sandbox,
        "write_process",
        Effect::Adds,
        "Write to a process",
        "Writes to the standard input of a background process of this agent's own.",
        write,
    ));
    all.push(builtin::<Wait, ProcessAnswer>(
        Sandbox,
        "wait_process",
        Effect::Reads,
        "Wait for a process",
        "Waits for the end of a background process; the answer says whether it still runs.",
        wait,
    ));
    all.push(builtin::<Kill, ProcessAnswer>(
        Sandbox,
        "kill_process",
        Effect::Sets,
        "End a process",
        "Ends a background process of this agent's own with all that it started, or sends it a signal.",
        kill,
    ));
    all.push(builtin::<Resize, ResizeAnswer>(
        Sandbox,
        "resize_terminal",
        Effect::Sets,
        "Resize a terminal",
        "Gives the terminal of a running process another size.",
        resize,
    ));
}
