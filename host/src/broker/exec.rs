//! Commands, brokered.
//!
//! A [`Running`] gives output as it comes and, at its end, the outcome. What is not taken makes the command wait, so a slow
//! reader loses nothing. Dropping it ends the whole process tree, and the audit log says `cancelled`.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::approvals::command_in_words;
use super::{Actor, Broker, Record};
use crate::api::types::{Command, ExecAnswer, ExecRequest, Outcome};
use crate::error::{Error, Result};
use crate::ids;
use crate::sandbox::link::{Ending, ExecEvent, ExecStdin};
use crate::sandbox::{ExecCommand, SandboxExec};

/// Bytes kept of each stream when the caller does not say.
pub(crate) const DEFAULT_MAX_OUTPUT: u64 = 1_000_000;
/// The most bytes of each stream that a caller may have kept: they are held in memory, and both have to fit into one
/// answer as base64. More than this is streamed.
const MAX_OUTPUT_CEILING: u64 = 8 * 1024 * 1024;
/// How much of a command line stands in the audit log.
const AUDITED_COMMAND: usize = 4 * 1024;

/// A piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Chunk {
    Stdout(Bytes),
    Stderr(Bytes),
}

/// A command that runs.
pub(crate) struct Running {
    exec: SandboxExec,
    record: Record,
    container_id: String,
    exec_id: String,
    argv: Vec<String>,
    cwd: String,
    started: Instant,
    timeout: Duration,
    memory_mib: u64,
    clamped: Option<String>,
    outcome: Option<Outcome>,
    not_started: i32,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

/// What is kept of the output while it passes.
#[derive(Debug)]
pub(crate) struct Kept {
    max: usize,
    /// Whether the caller got all of it already: then a cut is nothing to tell.
    streamed: bool,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Kept {
    /// Keeps at most `max` bytes of each stream.
    pub(crate) fn new(max: Option<u64>) -> Self {
        let max = max.unwrap_or(DEFAULT_MAX_OUTPUT).min(MAX_OUTPUT_CEILING);
        let max = usize::try_from(max).unwrap_or(usize::MAX);
        Self { max, streamed: false, stdout: Vec::new(), stderr: Vec::new() }
    }

    /// The same, of output that the caller gets as it comes.
    pub(crate) fn of_stream(max: Option<u64>) -> Self {
        Self { streamed: true, ..Self::new(max) }
    }

    pub(crate) fn push(&mut self, chunk: &Chunk) {
        let (kept, bytes) = match chunk {
            Chunk::Stdout(bytes) => (&mut self.stdout, bytes),
            Chunk::Stderr(bytes) => (&mut self.stderr, bytes),
        };
        let room = self.max.saturating_sub(kept.len()).min(bytes.len());
        kept.extend(bytes.iter().take(room));
    }
}

/// Cuts what is left of a character that the bound fell into. Bytes that are no text are left as they are.
fn cut_at_character(mut bytes: Vec<u8>, total: u64) -> Vec<u8> {
    let was_cut = (bytes.len() as u64) < total;
    if was_cut
        && let Err(error) = std::str::from_utf8(&bytes)
        && error.error_len().is_none()
    {
        bytes.truncate(error.valid_up_to());
    }
    bytes
}

impl Broker {
    /// Starts a command.
    pub(crate) async fn exec(&self, actor: &Actor, request: ExecRequest) -> Result<Running> {
        let exec_id = ids::exec()?;
        let mut record = self.begin(actor, "sandbox.exec").await?;
        record.note("container_id", request.container_id.clone());
        record.note("exec_id", exec_id.clone());
        record.note("command", audited(&request.command));
        let started = Instant::now();
        let ceiling = self.config.sandbox.exec_timeout_ceiling.0;
        let asked = request.timeout_ms.map_or(self.config.sandbox.exec_timeout.0, Duration::from_millis);
        let timeout = asked.min(ceiling);
        let result = async {
            let info = self.usable(actor, &request.container_id)?;
            if request.command == Command::Argv(Vec::new()) {
                return Err(Error::invalid_argument(
                    "the command is empty: give a program and its arguments, or a line for the shell",
                ));
            }
            let cwd = info.working_directory(request.cwd.as_deref());
            self.approved(actor, &info, "sandbox.exec", &command_in_words(&request, &cwd))?;
            let command = ExecCommand {
                command: request.command.clone(),
                cwd: request.cwd.clone(),
                env: request.env.clone(),
                timeout: Some(timeout),
                stdin: request.stdin,
            };
            Ok((self.sandboxes.exec(&info.id, command).await?, info, cwd))
        }
        .await;
        let (exec, info, cwd) = match result {
            Ok(started) => started,
            Err(error) => return record.end(Err(error)).await,
        };
        record.note("role", info.role);
        record.note("image", info.image);
        let clamped = (asked > ceiling).then(|| {
            format!("the timeout of {} s was clamped to the ceiling of {} s", asked.as_secs(), ceiling.as_secs())
        });
        Ok(Running {
            exec,
            record,
            container_id: request.container_id,
            exec_id,
            argv: match request.command {
                Command::Argv(argv) => argv,
                Command::Shell(line) => vec![line],
            },
            cwd,
            started,
            timeout,
            memory_mib: info.memory_mib,
            clamped,
            outcome: None,
            not_started: 126,
            stdout_bytes: 0,
            stderr_bytes: 0,
        })
    }

    /// Runs a command to its end, with `stdin` as all of its input.
    pub(crate) async fn exec_to_end(
        &self,
        actor: &Actor,
        mut request: ExecRequest,
        stdin: Option<Bytes>,
    ) -> Result<ExecAnswer> {
        request.stdin = stdin.is_some();
        let mut kept = Kept::new(request.max_output);
        let mut running = self.exec(actor, request).await?;
        let input = running.stdin();
        let feed = async {
            if let (Some(mut input), Some(bytes)) = (input, stdin) {
                // A command that does not read to the end of its input has its reasons; its outcome tells.
                let _ = input.write(bytes).await;
                input.close();
            }
        };
        let drain = async {
            while let Some(chunk) = running.next().await? {
                kept.push(&chunk);
            }
            Ok::<_, Error>(())
        };
        // The end of the command ends this, whether or not it has read all of its input.
        let drained = with_background(drain, feed).await;
        match drained {
            Ok(()) => running.finish(kept).await,
            Err(error) => running.fail(error).await,
        }
    }
}

/// Runs `work` to its end, with `background` beside it for as long as that takes.
pub(crate) async fn with_background<T>(work: impl Future<Output = T>, background: impl Future<Output = ()>) -> T {
    let background = async {
        background.await;
        std::future::pending().await
    };
    tokio::select! {
        result = work => result,
        never = background => never,
    }
}

impl Running {
    /// The exec's id.
    pub(crate) fn id(&self) -> &str {
        &self.exec_id
    }

    /// Its standard input, once, when it was asked for.
    pub(crate) fn stdin(&mut self) -> Option<ExecStdin> {
        self.exec.stdin()
    }

    /// Ends the whole process tree; the outcome will be `cancelled`.
    pub(crate) fn kill(&self) {
        self.exec.kill();
    }

    /// Waits for output. `None` when the command is over and all of its output was given.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>> {
        while let Some(event) = self.exec.next().await? {
            match event {
                ExecEvent::Started { argv, .. } => self.argv = argv,
                ExecEvent::NotStarted { code, reason } => {
                    self.not_started = i32::from(code);
                    self.outcome = Some(Outcome::NotStarted(reason));
                }
                ExecEvent::Exited(ending) => self.outcome = Some(outcome(ending)),
                ExecEvent::Stdout(bytes) => {
                    self.stdout_bytes += bytes.len() as u64;
                    return Ok(Some(Chunk::Stdout(bytes)));
                }
                ExecEvent::Stderr(bytes) => {
                    self.stderr_bytes += bytes.len() as u64;
                    return Ok(Some(Chunk::Stderr(bytes)));
                }
            }
        }
        Ok(None)
    }

    /// Ends the record of a command that failed under way.
    pub(crate) async fn fail<T>(self, error: Error) -> Result<T> {
        self.record.end(Err(error)).await
    }

    /// The answer, after [`Running::next`] gave `None`.
    pub(crate) async fn finish(mut self, kept: Kept) -> Result<ExecAnswer> {
        let Some(outcome) = self.outcome.take() else {
            return self.fail(Error::sandbox_died("the command's end was never reported")).await;
        };
        let stdout = cut_at_character(kept.stdout, self.stdout_bytes);
        let stderr = cut_at_character(kept.stderr, self.stderr_bytes);
        let truncated = (stdout.len() as u64) < self.stdout_bytes || (stderr.len() as u64) < self.stderr_bytes;
        let exit_code = outcome.exit_code(self.not_started);
        let wall_time_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut notes = self.notes(&outcome);
        for (name, kept_bytes, total) in
            [("stdout", stdout.len(), self.stdout_bytes), ("stderr", stderr.len(), self.stderr_bytes)]
        {
            if !kept.streamed && (kept_bytes as u64) < total {
                notes.push(format!("{name} has {total} bytes, of which the first {kept_bytes} are kept"));
            }
        }
        self.record.note("exit_code", exit_code);
        self.record.note("outcome", serde_json::to_value(&outcome).unwrap_or_default());
        self.record.note("wall_time_ms", wall_time_ms);
        self.record.note("stdout_bytes", self.stdout_bytes);
        self.record.note("stderr_bytes", self.stderr_bytes);
        let answer = ExecAnswer {
            container_id: self.container_id,
            exec_id: self.exec_id,
            command: self.argv,
            exit_code,
            timed_out: outcome == Outcome::TimedOut,
            outcome,
            stdout,
            stderr,
            stdout_bytes: self.stdout_bytes,
            stderr_bytes: self.stderr_bytes,
            truncated,
            wall_time_ms,
            cwd: self.cwd,
            stream_key: None,
            message: notes.join("; "),
        };
        self.record.end(Ok(answer)).await
    }

    fn notes(&self, outcome: &Outcome) -> Vec<String> {
        let mut notes: Vec<String> = self.clamped.iter().cloned().collect();
        match outcome {
            Outcome::TimedOut => notes.push(format!(
                "the command ran longer than its timeout of {} ms and was ended with all of its processes; what it wrote until then is kept",
                self.timeout.as_millis()
            )),
            Outcome::OutOfMemory => notes.push(format!(
                "the kernel ended it: the sandbox's {} MiB of memory were used up; launch one with more",
                self.memory_mib
            )),
            Outcome::NotStarted(reason) => notes.push(reason.clone()),
            Outcome::Cancelled => notes.push("the command was ended by request, with all of its processes".into()),
            Outcome::Exited(_) | Outcome::Signaled(_) => {}
        }
        notes
    }
}

fn outcome(ending: Ending) -> Outcome {
    match ending {
        Ending::Code(code) => Outcome::Exited(code),
        Ending::Signal(signal) => Outcome::Signaled(signal),
        Ending::OutOfMemory => Outcome::OutOfMemory,
        Ending::TimedOut => Outcome::TimedOut,
        Ending::Cancelled => Outcome::Cancelled,
    }
}

fn audited(command: &Command) -> serde_json::Value {
    let mut room = AUDITED_COMMAND;
    let mut clip = |text: &str| {
        let end = text.floor_char_boundary(room.min(text.len()));
        room -= end;
        match text.get(..end) {
            Some(kept) if end < text.len() => format!("{kept}…"),
            _ => text.to_owned(),
        }
    };
    match command {
        Command::Argv(argv) => argv.iter().take(256).map(|arg| clip(arg)).collect(),
        Command::Shell(line) => clip(line).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_never_splits_a_character_nor_touches_other_bytes() {
        let euro = "a€".as_bytes();
        assert_eq!(cut_at_character(euro[..3].to_vec(), 4), b"a");
        assert_eq!(cut_at_character(euro.to_vec(), 4), euro);
        assert_eq!(cut_at_character(vec![0xff, 0xe2, 0x82], 9), [0xff, 0xe2, 0x82]);
        // What ends so by itself was not cut by us.
        assert_eq!(cut_at_character(euro[..3].to_vec(), 3), euro[..3]);
    }

    #[test]
    fn kept_is_bounded_for_each_stream() {
        let mut kept = Kept::new(Some(3));
        kept.push(&Chunk::Stdout(Bytes::from_static(b"ab")));
        kept.push(&Chunk::Stdout(Bytes::from_static(b"cd")));
        kept.push(&Chunk::Stderr(Bytes::from_static(b"e")));
        assert_eq!((kept.stdout.as_slice(), kept.stderr.as_slice()), (&b"abc"[..], &b"e"[..]));
    }

    #[test]
    fn a_long_command_line_is_clipped_in_the_audit_log() {
        let long = "x".repeat(AUDITED_COMMAND + 5);
        let shown = audited(&Command::Shell(long)).as_str().unwrap().len();
        assert!(shown <= AUDITED_COMMAND + '…'.len_utf8());
    }
}
