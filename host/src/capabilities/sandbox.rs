//! `skillhost:skill/sandbox`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use skillhost_api::error::Error;
use skillhost_api::types::{
    Command, Delivery, ExecAnswer, ExecRequest, ExecSpec, FileEntry, LaunchRequest, Network, Outcome, RunOptions,
    TerminalSize,
};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use wasmtime::component::Resource;

use super::bindings::skillhost::skill::sandbox as wit;
use super::{GuestError, GuestShell, View};
use crate::broker::{Broker, Chunk, CommandTarget, Running, StdinWrite, StopOnDrop};
use crate::policy::Actor;
use crate::sandbox::link::{ByteRange, ExecStdin};

/// The most bytes that `read-file` gives when the guest does not say.
const DEFAULT_MAX_FILE: u64 = 1_000_000;
/// The most bytes that `read-file` gives at all.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// A guest's handle on a sandbox.
pub struct GuestSandbox {
    info: wit::ContainerInfo,
    /// Stops it when the handle goes; `None` for one that was attached.
    owned: Option<StopOnDrop>,
}

impl GuestSandbox {
    pub(crate) fn id(&self) -> &str {
        &self.info.id
    }
}

/// A guest's handle on a running command.
pub struct GuestProcess {
    id: String,
    container_id: String,
    state: Arc<Mutex<GuestProcessState>>,
}

struct GuestProcessState {
    /// Until its end was asked for.
    running: Option<Running>,
    stdin: GuestStdin,
    /// What a `read` left over.
    rest: Option<Chunk>,
    ended: Option<wit::ProcessResult>,
    killed: bool,
}

/// A guest that acts on a command.
struct Acting {
    broker: Arc<Broker>,
    actor: Arc<Actor>,
    container_id: String,
    exec_id: String,
    state: Arc<Mutex<GuestProcessState>>,
}

impl Acting {
    fn target(&self) -> CommandTarget<'_> {
        CommandTarget { container_id: &self.container_id, exec_id: &self.exec_id }
    }
}

/// The check of who acts on a command: a guest that has its handle may.
fn has_it() -> Result<(), Error> {
    Ok(())
}

/// A process's standard input.
enum GuestStdin {
    Open(ExecStdin),
    /// What `start` was given for it is being written, as the command reads it.
    Fed(JoinHandle<ExecStdin>),
    Closed,
}

impl GuestStdin {
    /// Writes `bytes` without anybody waiting for that.
    fn fed(mut stdin: ExecStdin, bytes: Bytes) -> Self {
        Self::Fed(tokio::spawn(async move {
            // A command that does not read to the end of its input has its reasons; its outcome tells.
            let _ = stdin.write(bytes).await;
            stdin
        }))
    }

    /// Writes `bytes` after what is being written, and says whether the command could read them.
    async fn write(&mut self, bytes: Vec<u8>) -> Result<bool, Error> {
        if let Self::Fed(feeding) = self {
            *self = feeding.await.map_or(Self::Closed, Self::Open);
        }
        match self {
            // What a command that has ended would have read is dropped, as by a closed pipe.
            Self::Open(stdin) => stdin.write(bytes).await,
            Self::Fed(_) | Self::Closed => {
                Err(Error::invalid_argument("the process's standard input is closed already"))
            }
        }
    }

    /// Ends it after what is being written.
    fn close(&mut self) {
        match std::mem::replace(self, Self::Closed) {
            Self::Open(stdin) => stdin.close(),
            // Dropping it is its end.
            Self::Fed(feeding) => drop(feeding),
            Self::Closed => {}
        }
    }
}

impl GuestProcessState {
    async fn finish(&mut self) -> Result<wit::ProcessResult, Error> {
        if let Some(mut running) = self.running.take() {
            loop {
                match running.next().await {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => return running.fail(error).await,
                }
            }
            self.rest = None;
            self.ended = Some(running.finish().await?.into());
        }
        self.ended.clone().ok_or_else(|| Error::sandbox_died("the process failed earlier"))
    }

    async fn read(&mut self, max: usize) -> Result<Option<wit::Chunk>, Error> {
        let chunk = match (self.rest.take(), &mut self.running) {
            (Some(chunk), _) => chunk,
            (None, None) => return Ok(None),
            (None, Some(running)) => match running.next().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => return Ok(None),
                Err(error) => match self.running.take() {
                    Some(running) => return running.fail(error).await,
                    None => return Err(error),
                },
            },
        };
        let take = |mut bytes: Bytes| {
            let given = bytes.split_to(max.min(bytes.len()));
            (given.to_vec(), (!bytes.is_empty()).then_some(bytes))
        };
        Ok(Some(match chunk {
            Chunk::Stdout(bytes) => {
                let (given, rest) = take(bytes);
                self.rest = rest.map(Chunk::Stdout);
                wit::Chunk::Stdout(given)
            }
            Chunk::Stderr(bytes) => {
                let (given, rest) = take(bytes);
                self.rest = rest.map(Chunk::Stderr);
                wit::Chunk::Stderr(given)
            }
        }))
    }
}

impl From<wit::Command> for Command {
    fn from(command: wit::Command) -> Self {
        match command {
            wit::Command::Argv(argv) => Self::Argv(argv),
            wit::Command::Shell(line) => Self::Shell(line),
        }
    }
}

impl From<Outcome> for wit::Outcome {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Exited(code) => Self::Exited(code),
            Outcome::Signaled(signal) => Self::Signaled(signal),
            Outcome::TimedOut => Self::TimedOut,
            Outcome::Cancelled => Self::Cancelled,
            Outcome::OutOfMemory => Self::OutOfMemory,
            Outcome::NotStarted(reason) => Self::NotStarted(reason),
        }
    }
}

impl From<ExecAnswer> for wit::ExecResult {
    fn from(answer: ExecAnswer) -> Self {
        Self {
            exec_id: answer.exec_id,
            command: answer.command,
            exit_code: answer.exit_code,
            outcome: answer.outcome.into(),
            stdout: answer.stdout,
            stderr: answer.stderr,
            stdout_bytes: answer.stdout_bytes,
            stderr_bytes: answer.stderr_bytes,
            truncated: answer.truncated,
            wall_time_ms: answer.wall_time_ms,
            cwd: answer.cwd,
            stream_key: answer.stream_key,
            message: answer.message,
        }
    }
}

impl From<FileEntry> for wit::FileEntry {
    fn from(file: FileEntry) -> Self {
        let kind = match file.kind.as_str() {
            "file" => wit::FileKind::File,
            "dir" => wit::FileKind::Dir,
            "symlink" => wit::FileKind::Symlink,
            _ => wit::FileKind::Other,
        };
        let name = String::from_utf8_lossy(&file.name).into_owned();
        Self { name, kind, size: file.size, mode: file.mode, modified_ms: file.modified_ms }
    }
}

impl From<ExecAnswer> for wit::ProcessResult {
    fn from(answer: ExecAnswer) -> Self {
        Self {
            exit_code: answer.exit_code,
            outcome: answer.outcome.into(),
            stdout_bytes: answer.stdout_bytes,
            stderr_bytes: answer.stderr_bytes,
            wall_time_ms: answer.wall_time_ms,
        }
    }
}

impl From<wit::TerminalSize> for TerminalSize {
    fn from(size: wit::TerminalSize) -> Self {
        Self { rows: size.rows, columns: size.columns }
    }
}

impl From<wit::RunOptions> for (RunOptions, Delivery) {
    fn from(run: wit::RunOptions) -> Self {
        let wit::RunOptions { timeout_ms, priority, max_output, stream_to_blackboard } = run;
        (
            RunOptions { timeout_ms, priority: priority.unwrap_or_default() },
            Delivery { max_output, stream: false, stream_to_blackboard },
        )
    }
}

fn environment(pairs: Vec<(String, String)>) -> BTreeMap<String, String> {
    pairs.into_iter().collect()
}

impl View<'_> {
    fn exec_request(
        &mut self,
        container: &Resource<GuestSandbox>,
        command: wit::Command,
        options: wit::ExecOptions,
    ) -> Result<(ExecRequest, Option<Bytes>), GuestError> {
        let wit::ExecOptions { cwd, env, stdin, run } = options;
        let (options, delivery) = run.into();
        let spec = ExecSpec { command: command.into(), cwd, env: environment(env), options, ..ExecSpec::default() };
        let container_id = self.table.get(container)?.id().to_owned();
        Ok((ExecRequest { container_id, spec, delivery }, stdin.map(Bytes::from)))
    }

    async fn start_process(
        &mut self,
        mut request: ExecRequest,
        stdin: Option<Bytes>,
    ) -> Result<Resource<GuestProcess>, GuestError> {
        request.spec.stdin = true;
        let started = self.context.brokered(|broker, actor| async move {
            let mut running = broker.exec(&actor, request).await?;
            let input = match (running.stdin(), stdin) {
                (Some(input), Some(bytes)) => GuestStdin::fed(input, bytes),
                (Some(input), None) => GuestStdin::Open(input),
                (None, _) => GuestStdin::Closed,
            };
            Ok((running, input))
        });
        let (running, stdin) = started.await?;
        let (id, container_id) = (running.id().to_owned(), running.container_id().to_owned());
        let state = GuestProcessState { running: Some(running), stdin, rest: None, ended: None, killed: false };
        Ok(self.table.push(GuestProcess { id, container_id, state: Arc::new(Mutex::new(state)) })?)
    }

    fn acting(&mut self, process: &Resource<GuestProcess>) -> Result<Acting, GuestError> {
        let GuestProcess { id, container_id, state } = self.table.get(process)?;
        Ok(Acting {
            broker: self.context.broker.clone(),
            actor: self.context.actor.clone(),
            container_id: container_id.clone(),
            exec_id: id.clone(),
            state: state.clone(),
        })
    }

    fn process(&mut self, process: &Resource<GuestProcess>) -> Result<Arc<Mutex<GuestProcessState>>, GuestError> {
        Ok(self.table.get(process)?.state.clone())
    }
}

impl wit::Host for View<'_> {}

impl wit::HostContainer for View<'_> {
    async fn launch(&mut self, options: wit::LaunchOptions) -> Result<Resource<GuestSandbox>, GuestError> {
        let request = LaunchRequest {
            role: options.role,
            cpus: options.cpus,
            memory_mib: options.memory_mib,
            network: options.network.map(|network| match network {
                wit::Network::None => Network::None,
                wit::Network::Bridge => Network::Bridge,
            }),
            wall_time_ms: options.wall_time_ms,
            shared: options.shared,
            env: environment(options.env),
        };
        let (answer, owned) =
            self.context.brokered(|broker, actor| async move { broker.launch_owned(&actor, request).await }).await?;
        let info = wit::ContainerInfo {
            id: answer.container_id,
            role: answer.role,
            image: answer.image,
            backend: answer.backend,
            isolation: answer.isolation,
        };
        Ok(self.table.push(GuestSandbox { info, owned: Some(owned) })?)
    }

    async fn attach(&mut self, id: String) -> Result<Resource<GuestSandbox>, GuestError> {
        let info = self.context.brokered(|broker, actor| async move { broker.take_up(&actor, &id).await }).await?;
        let info = wit::ContainerInfo {
            id: info.id,
            role: info.role,
            image: info.image,
            backend: info.backend,
            isolation: info.isolation,
        };
        Ok(self.table.push(GuestSandbox { info, owned: None })?)
    }

    async fn info(&mut self, container: Resource<GuestSandbox>) -> wasmtime::Result<wit::ContainerInfo> {
        Ok(self.table.get(&container)?.info.clone())
    }

    async fn exec(
        &mut self,
        container: Resource<GuestSandbox>,
        command: wit::Command,
        options: wit::ExecOptions,
    ) -> Result<wit::ExecResult, GuestError> {
        let (request, stdin) = self.exec_request(&container, command, options)?;
        self.context
            .brokered(|broker, actor| async move { Ok(broker.exec_to_end(&actor, request, stdin).await?.into()) })
            .await
    }

    async fn start(
        &mut self,
        container: Resource<GuestSandbox>,
        command: wit::Command,
        options: wit::ExecOptions,
    ) -> Result<Resource<GuestProcess>, GuestError> {
        let (request, stdin) = self.exec_request(&container, command, options)?;
        self.start_process(request, stdin).await
    }

    async fn start_in_terminal(
        &mut self,
        container: Resource<GuestSandbox>,
        command: wit::Command,
        options: wit::ExecOptions,
        size: wit::TerminalSize,
    ) -> Result<Resource<GuestProcess>, GuestError> {
        let (mut request, stdin) = self.exec_request(&container, command, options)?;
        request.spec.terminal = Some(size.into());
        self.start_process(request, stdin).await
    }

    async fn open_shell(&mut self, container: Resource<GuestSandbox>) -> Result<Resource<GuestShell>, GuestError> {
        let id = self.table.get(&container)?.id();
        let shell = self.context.broker.own_shell(&self.context.actor, id)?;
        Ok(self.table.push(GuestShell(Arc::new(shell)))?)
    }

    async fn read_file(
        &mut self,
        container: Resource<GuestSandbox>,
        path: String,
        max_bytes: Option<u64>,
    ) -> Result<Vec<u8>, GuestError> {
        let id = self.table.get(&container)?.id().to_owned();
        let max = max_bytes.unwrap_or(DEFAULT_MAX_FILE).min(MAX_FILE);
        self.context
            .brokered(|broker, actor| async move {
                let mut file = broker.read_file(&actor, &id, &path, ByteRange::whole(Some(max))).await?;
                let mut content = Vec::new();
                while let Some(bytes) = file.next().await? {
                    content.extend_from_slice(&bytes);
                }
                Ok(content)
            })
            .await
    }

    async fn write_file(
        &mut self,
        container: Resource<GuestSandbox>,
        path: String,
        content: Vec<u8>,
    ) -> Result<(), GuestError> {
        let id = self.table.get(&container)?.id().to_owned();
        self.context
            .brokered(|broker, actor| async move {
                broker.write_file(&actor, &id, &path, content.as_slice()).await.map(|_| ())
            })
            .await
    }

    async fn list_files(
        &mut self,
        container: Resource<GuestSandbox>,
        path: String,
    ) -> Result<Vec<wit::FileEntry>, GuestError> {
        let id = self.table.get(&container)?.id().to_owned();
        self.context
            .brokered(|broker, actor| async move {
                let list = broker.list_files(&actor, &id, &path).await?;
                if list.truncated {
                    return Err(Error::too_large(format!("{}: {}", list.path, list.message)));
                }
                Ok(list.files.into_iter().map(wit::FileEntry::from).collect())
            })
            .await
    }

    async fn remove(
        &mut self,
        container: Resource<GuestSandbox>,
        path: String,
        recursive: bool,
    ) -> Result<(), GuestError> {
        let id = self.table.get(&container)?.id().to_owned();
        self.context
            .brokered(
                |broker, actor| async move { broker.remove_file(&actor, &id, &path, recursive).await.map(|_| ()) },
            )
            .await
    }

    async fn stop(&mut self, container: Resource<GuestSandbox>) -> Result<(), GuestError> {
        let id = self.table.get(&container)?.id().to_owned();
        self.context.brokered(|broker, actor| async move { broker.stop(&actor, &id).await.map(drop) }).await
    }

    async fn drop(&mut self, container: Resource<GuestSandbox>) -> wasmtime::Result<()> {
        // One that is owned is stopped by its guard.
        drop(self.table.delete(container)?.owned);
        Ok(())
    }
}

impl wit::HostProcess for View<'_> {
    async fn id(&mut self, process: Resource<GuestProcess>) -> wasmtime::Result<String> {
        Ok(self.table.get(&process)?.id.clone())
    }

    async fn read(
        &mut self,
        process: Resource<GuestProcess>,
        max_bytes: u32,
    ) -> Result<Option<wit::Chunk>, GuestError> {
        let state = self.process(&process)?;
        let max = usize::try_from(max_bytes.max(1)).unwrap_or(usize::MAX);
        self.context.on_host(async move { state.lock().await.read(max).await }).await
    }

    async fn write(&mut self, process: Resource<GuestProcess>, bytes: Vec<u8>) -> Result<(), GuestError> {
        let acting = self.acting(&process)?;
        self.context
            .on_host(async move {
                let write = |()| async {
                    let len = bytes.len() as u64;
                    let mut state = acting.state.lock().await;
                    let written = state.stdin.write(bytes).await;
                    let bytes = if let Ok(true) = written { len } else { 0 };
                    (StdinWrite { bytes, closed: matches!(state.stdin, GuestStdin::Closed) }, written.map(drop))
                };
                acting.broker.feed(&acting.actor, acting.target(), has_it, write).await
            })
            .await
    }

    async fn close_stdin(&mut self, process: Resource<GuestProcess>) -> Result<(), GuestError> {
        let acting = self.acting(&process)?;
        self.context
            .on_host(async move {
                // A command is told once; what is closed is no effect.
                if matches!(acting.state.lock().await.stdin, GuestStdin::Closed) {
                    return Ok(());
                }
                let close = |()| async {
                    acting.state.lock().await.stdin.close();
                    (StdinWrite { bytes: 0, closed: true }, Ok(()))
                };
                acting.broker.feed(&acting.actor, acting.target(), has_it, close).await
            })
            .await
    }

    async fn signal(&mut self, process: Resource<GuestProcess>, number: u8) -> Result<(), GuestError> {
        let (acting, number) = (self.acting(&process)?, i32::from(number));
        self.context
            .on_host(async move {
                let send = |()| async {
                    let control = acting.state.lock().await.running.as_ref().map(Running::control);
                    if let Some(control) = control {
                        control.signal(number);
                        control.confirm().await?;
                    }
                    Ok(())
                };
                acting.broker.signal(&acting.actor, acting.target(), Some(number), has_it, send).await
            })
            .await
    }

    async fn resize(&mut self, process: Resource<GuestProcess>, size: wit::TerminalSize) -> Result<(), GuestError> {
        let process = self.table.get(&process)?;
        let (container_id, exec_id) = (process.container_id.clone(), process.id.clone());
        self.context.broker.resize_terminal(&self.context.actor, container_id, exec_id, size.into())?;
        Ok(())
    }

    async fn kill(&mut self, process: Resource<GuestProcess>) -> Result<(), GuestError> {
        let mut acting = self.acting(&process)?;
        // What it has is ended, however many effects it has used up; once, so that this is no way around their number.
        acting.actor = Arc::new(Actor { effects: None, ..(*acting.actor).clone() });
        self.context
            .on_host(async move {
                let mut state = acting.state.lock().await;
                if std::mem::replace(&mut state.killed, true) {
                    return Ok(());
                }
                let kill = |()| async {
                    if let Some(running) = &state.running {
                        running.kill();
                    }
                    Ok(())
                };
                acting.broker.signal(&acting.actor, acting.target(), None, has_it, kill).await
            })
            .await
    }

    async fn wait(&mut self, process: Resource<GuestProcess>) -> Result<wit::ProcessResult, GuestError> {
        let state = self.process(&process)?;
        self.context.on_host(async move { state.lock().await.finish().await }).await
    }

    async fn drop(&mut self, process: Resource<GuestProcess>) -> wasmtime::Result<()> {
        // Dropping what runs ends its process tree.
        self.table.delete(process)?;
        Ok(())
    }
}
