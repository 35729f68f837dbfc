//! The one door: opens state, config, catalogue, engine and broker, and answers calls.

mod actions;
mod authority;
mod doctor;
mod fit;
mod grant;
mod guarded;
mod held;
mod kept;
mod run;
mod sandboxes;
mod skill_files;
mod skills;
mod switched_off;
mod texts;
mod trust;
mod watch_skills;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::apart::Bounds;
use crate::api::types::{AuditList, BlackboardDeleted, Call, Event, HostStatus, Request, WatchRequest, Watched};
use crate::broker::{Actor, Audit, Broker, Skills};
use crate::config::{Config, Isolation};
use crate::db::{self, Db};
use crate::engine::{Engine, compile};
use crate::error::{Error, Result};
use crate::private::Private;
use crate::sandbox::backend::Choice;
use crate::sandbox::backend::local::LocalConfig;
use crate::sandbox::link::Part;
use crate::sandbox::pool::PoolConfig;
use crate::sandbox::{self, Sandboxes};
use crate::skills::{DirCache, FileDigests, Shelf};
use crate::units::now_ms;
pub use held::Held;
use kept::Kept;
use texts::Texts;
use trust::Trust;
use watch_skills::Watches;

/// How long a background host process stays with nothing to do.
const IDLE_EXIT: Duration = Duration::from_secs(60);
/// The most audit records that one listing gives.
const MAX_AUDIT_LINES: u32 = 10_000;
/// Bytes that are streamed at once of what is there as a whole.
const PIECE: usize = 256 << 10;

/// Which backend makes sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum BackendChoice {
    /// Docker if it answers and can provide the role's image, else local.
    #[default]
    Auto,
    /// Docker only.
    Docker,
    /// Local only.
    Local,
}

impl BackendChoice {
    /// As it is written in `--backend` and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Docker => "docker",
            Self::Local => "local",
        }
    }
}

impl From<Choice> for BackendChoice {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Auto => Self::Auto,
            Choice::Docker => Self::Docker,
            Choice::Local => Self::Local,
        }
    }
}

/// How a host is opened.
#[derive(Debug, Clone, Default)]
pub struct HostOptions {
    /// The state directory, absolute; it exists and is the caller's own.
    pub state_dir: PathBuf,
    /// The configuration file, when one was named; otherwise `$XDG_CONFIG_HOME/skillhost/skillhost.toml` when that exists.
    pub config: Option<PathBuf>,
    /// The backend, when one was named.
    pub backend: Option<BackendChoice>,
    /// How long a background host process stays with nothing to do, when that was said.
    pub idle_timeout: Option<Duration>,
    /// The `skillhost` that describes and compiles components in processes of their own; without one that is done in this
    /// process, which a component that is made for it can then end or hold up (see [`crate::apart`]).
    pub describer: Option<PathBuf>,
    /// What compiling one component may use, where it is done in a process of its own; [`compile::BOUNDS`] when absent.
    pub compile_bounds: Option<Bounds>,
}

/// What a call gives before its answer.
#[derive(Debug, Clone)]
pub enum Output {
    /// Progress and the like.
    Event(Event),
    /// Bytes of standard output, or of a file that is read.
    Stdout(Bytes),
    /// Bytes of standard error.
    Stderr(Bytes),
}

/// The streams of one call. Both channels are bounded, so whoever is slow slows the other end, and nothing is lost.
#[derive(Debug)]
pub struct CallIo {
    /// Where output goes. All of it must be sent before the call's future ends. It fails when the reader is gone.
    pub output: mpsc::Sender<Output>,
    /// What comes in; its end is the end of the input. `None` for requests that take none.
    pub input: Option<mpsc::Receiver<Bytes>>,
}

impl CallIo {
    async fn send(&self, output: Output) -> Result<()> {
        self.output.send(output).await.map_err(|_| Error::cancelled("the caller left"))
    }

    /// Streams what is there as a whole.
    async fn send_bytes(&self, bytes: Vec<u8>) -> Result<()> {
        let mut rest = Bytes::from(bytes);
        while !rest.is_empty() {
            let piece = rest.split_to(rest.len().min(PIECE));
            self.send(Output::Stdout(piece)).await?;
        }
        Ok(())
    }
}

/// The host: everything behind the faces.
pub struct Host {
    options: HostOptions,
    config: Arc<Config>,
    broker: Arc<Broker>,
    engine: Arc<Engine>,
    descriptors: Arc<DirCache>,
    shelf: Arc<Shelf>,
    digests: Arc<FileDigests>,
    kept: Kept,
    watches: Watches,
    trust: Trust,
    db: Db,
    texts: Texts,
    calls: AtomicUsize,
    started_at_ms: u64,
}

/// One call under way.
struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Host {
    /// Opens everything that lasts. The caller holds the state directory's lock.
    pub async fn open(options: HostOptions) -> Result<Arc<Self>> {
        let config = Config::find(options.config.as_deref())?;
        let named = options.backend.map(BackendChoice::name).or(config.backend.as_deref());
        let backend: Choice = named.unwrap_or("auto").parse()?;
        let roles = Arc::new(config.registry()?);
        let state = &options.state_dir;
        let private = Private::open(state)?;
        private.close_files()?;
        let db = Db::open(&state.join(db::FILE), config.durability)?;
        let engine = Arc::new(Engine::open(
            private.cache("compiled")?,
            options.describer.clone(),
            options.compile_bounds.unwrap_or(compile::BOUNDS),
        )?);
        let descriptors =
            Arc::new(DirCache::new(private.cache("descriptors")?).describing_with(options.describer.clone()));
        let sandboxes = Sandboxes::open(sandbox::Config {
            roles,
            backend,
            engine: config.engine,
            local: LocalConfig {
                bare: config.local.isolation == Isolation::None,
                read_only: config.local.read_only.clone(),
                env: config.local.env.clone(),
                require_limits: config.local.require_limits,
            },
            lease: config.sandbox.lease.0,
            pool: PoolConfig { sizes: config.pool.clone(), pids: config.sandbox.pids },
            ..sandbox::Config::new(state)?
        })
        .await?;
        let config = Arc::new(config);
        let skills = Skills::open(db.clone()).await?;
        let audit = Audit::open(db.clone(), config.audit.max_bytes.0).await?;
        let broker = Broker::new(config.clone(), sandboxes, skills, audit, &db);
        broker.adopt()?;
        if let Err(error) = broker.end_streams_of_the_dead().await {
            // The next host process tries again. What is full must not keep this one from saying so.
            tracing::error!("streams of an earlier host process have no end yet: {error}");
        }
        Ok(Arc::new(Self {
            options,
            config,
            broker,
            engine,
            descriptors,
            shelf: Arc::default(),
            digests: Arc::default(),
            kept: Kept::default(),
            watches: Watches::default(),
            trust: Trust::open(db.clone()).await?,
            db,
            texts: Texts::default(),
            calls: AtomicUsize::new(0),
            started_at_ms: now_ms(),
        }))
    }

    /// One call. Events and output go to `io`, input comes from it. Dropping the future cancels everything that the call started.
    pub async fn call(self: &Arc<Self>, call: Call, io: CallIo) -> Result<Value> {
        call.caller.check()?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(&self.calls);
        let actor = self.actor(&call).await?;
        let (broker, asks) = (&self.broker, call.authority);
        match call.request {
            Request::Run(request) => json(&self.run(&call.caller, asks, call.project, request, &io).await?),
            Request::ListSkills => json(&self.list_skills(asks, call.project, None).await?),
            Request::SearchSkills { query } => json(&self.list_skills(asks, call.project, Some(query)).await?),
            Request::InspectSkill { skill } => json(&self.inspect_skill(asks, call.project, &skill).await?),
            Request::ReloadSkills => {
                self.forget_skills().await?;
                json(&self.list_skills(asks, call.project, None).await?)
            }
            Request::ListActions { unless } => json(&self.list_actions(call.project, unless, &io).await?),
            Request::WatchSkills => match self.watch_skills(call.project, &io).await? {},
            Request::SkillFiles { skill } => json(&self.skill_files(asks, call.project, skill).await?),
            Request::ReadSkillFile { skill, path } => {
                json(&self.read_skill_file(asks, call.project, &skill, &path, &io).await?)
            }
            Request::Trust { project, trusted } => json(&self.set_trust(&actor, &project, trusted).await?),
            Request::ListApprovals => json(&broker.list_approvals()),
            Request::Approve { id } => {
                let _changing = self.changing();
                json(&broker.approve(&actor, &id).await?)
            }
            Request::RevokeApproval { skill, directory } => {
                let _changing = self.changing();
                json(&broker.revoke_approval(&actor, &skill, directory.as_deref()).await?)
            }
            Request::ListImages(filter) => json(&broker.images(&actor, filter).await?),
            Request::ListScripts { image_role } => json(&broker.list_scripts(&actor, image_role.as_deref())?),
            Request::ExecuteScript(request) => json(&self.execute_script(&actor, request, io).await?),
            Request::RunScript(request) => json(&self.run_script(&actor, request, io).await?),
            Request::ListScriptTemplates { image_role } => json(&broker.list_templates(&actor, &image_role)?),
            Request::GetScriptTemplate { image_role, name } => json(&broker.template(&actor, &image_role, &name)?),
            Request::Doctor => json(&self.doctor().await),
            Request::Launch(request) => json(&broker.launch(&actor, request).await?),
            Request::Exec(request) => json(&self.exec(&actor, request, io).await?),
            Request::ProcessStart(request) => json(&broker.process_start(&actor, request).await?),
            Request::ProcessList { container_id } => json(&broker.process_list(&actor, &container_id)?),
            Request::ProcessRead(request) => json(&broker.process_read(&actor, &request).await?),
            Request::ProcessWrite { container_id, exec_id, close } => {
                let input = io.input.ok_or_else(|| Error::invalid_argument("there is nothing to write: give input"))?;
                json(&broker.process_write(&actor, &container_id, &exec_id, input, close).await?)
            }
            Request::ProcessWait { container_id, exec_id, timeout_ms } => {
                let timeout = timeout_ms.map(Duration::from_millis);
                json(&broker.process_wait(&actor, &container_id, &exec_id, timeout).await?)
            }
            Request::ProcessSignal { container_id, exec_id, signal } => {
                json(&broker.process_signal(&actor, &container_id, &exec_id, signal).await?)
            }
            Request::ResizeTerminal { container_id, exec_id, size } => {
                json(&broker.resize_terminal(&actor, container_id, exec_id, size)?)
            }
            Request::Shell(request) => json(&broker.shell(&actor, request).await?),
            Request::ShellList { container_id } => json(&broker.shell_list(&actor, &container_id)?),
            Request::ShellStop { container_id, name } => json(&broker.shell_stop(&actor, &container_id, name).await?),
            Request::ListSandboxes { scope } => json(&broker.list_sandboxes(&actor, scope)),
            Request::SandboxStatus { container_id } => json(&broker.sandbox_status(&actor, &container_id)),
            Request::StopSandbox { container_id } => json(&broker.stop(&actor, &container_id).await?),
            Request::RestartSandbox { container_id } => json(&broker.restart(&actor, &container_id).await?),
            Request::AttachSandbox { container_id } => json(&broker.attach(&actor, &container_id).await?),
            Request::DetachSandbox { container_id } => json(&broker.detach(&actor, &container_id).await?),
            Request::ReadFile { container_id, path, offset, max_bytes } => {
                let part = Part { offset, max: max_bytes, more: true };
                json(&self.read_file(&actor, container_id, &path, part, io).await?)
            }
            Request::WriteFile { container_id, path } => json(&self.write_file(&actor, container_id, path, io).await?),
            Request::ListFiles { container_id, path } => json(&broker.list_files(&actor, &container_id, &path).await?),
            Request::RemoveFile { container_id, path, recursive } => {
                json(&broker.remove_file(&actor, &container_id, &path, recursive).await?)
            }
            Request::WatchFiles { container_id, path } => {
                json(&self.watch_files(&actor, container_id, path, &io).await?)
            }
            Request::CopyIn(request) => json(&broker.copy_in(&actor, &request).await?),
            Request::CopyOut(request) => json(&broker.copy_out(&actor, &request).await?),
            Request::BlackboardPublish(request) => json(&broker.publish(&actor, request).await?),
            Request::BlackboardGet { key } => json(&broker.get(&actor, &key).await?.ok_or_else(|| no_such_key(&key))?),
            Request::BlackboardList(request) => json(&broker.list(&actor, request).await?),
            Request::BlackboardDelete(request) => {
                let version = broker.delete(&actor, &request).await?.ok_or_else(|| no_such_key(&request.key))?;
                json(&BlackboardDeleted { key: request.key, version })
            }
            Request::BlackboardWatch(request) => json(&self.watch(&actor, &request, &io).await?),
            Request::KeepText { output_id } => json(&self.texts.keep(&call.caller, output_id, io.input).await?),
            Request::ReadText(request) => json(&self.texts.read(&call.caller, &request)?),
            Request::AuditTail { lines, before, follow } => json(&self.audit_tail(lines, before, follow, &io).await?),
            Request::HostStatus => json(&self.status()),
            Request::HostStop => {
                Err(Error::invalid_argument("only the host process can be told to stop, and this is not in it"))
            }
        }
    }

    async fn audit_tail(&self, lines: u32, before: Option<u64>, follow: bool, io: &CallIo) -> Result<AuditList> {
        use tokio::sync::broadcast::error::RecvError;
        // Subscribed before the listing: a record that falls between the two comes twice rather than never.
        let mut live = self.broker.audit().follow();
        let listed = self.broker.audit().tail(lines.min(MAX_AUDIT_LINES), before).await?;
        if !follow {
            return Ok(listed);
        }
        let mut last = 0;
        for record in listed.records {
            last = record.seq;
            io.send(Output::Event(Event::Audit(record))).await?;
        }
        loop {
            match live.recv().await {
                Ok(record) if record.seq <= last => {}
                Ok(record) => io.send(Output::Event(Event::Audit(record))).await?,
                Err(RecvError::Lagged(missed)) => {
                    let message =
                        format!("{missed} records came faster than they were read; `skillhost audit tail` has them");
                    io.send(Output::Event(Event::Log { level: "warn".into(), message })).await?;
                }
                Err(RecvError::Closed) => return Ok(AuditList::default()),
            }
        }
    }

    async fn watch(&self, actor: &Actor, request: &WatchRequest, io: &CallIo) -> Result<Watched> {
        let mut watching = self.broker.watch(actor, request).await?;
        io.send(Output::Event(Event::Watching)).await?;
        while request.count.is_none_or(|count| watching.seen().events < count) {
            let event = watching.next().await?;
            io.send(Output::Event(Event::Blackboard(event))).await?;
        }
        Ok(watching.seen())
    }

    /// The choice of backends that it has, wherever that was said.
    pub fn backend(&self) -> BackendChoice {
        self.broker.sandboxes().backend().into()
    }

    /// What answers [`Request::HostStatus`], without being a call.
    pub(crate) fn status(&self) -> HostStatus {
        HostStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            state_dir: self.options.state_dir.clone(),
            started_at_ms: self.started_at_ms,
            calls: self.calls.load(Ordering::Relaxed),
            sandboxes: self.broker.sandboxes().list().len(),
            warm: self.broker.sandboxes().warm(),
            backend: self.backend().name().into(),
            http: None,
        }
    }

    /// Whether it can do its work: everything that lasts goes through the database, whose thread must answer.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.broker.audit().tail(0, None).await.map(drop)
    }

    /// Whether it has calls under way or sandboxes: then it must not leave for idleness.
    pub fn busy(&self) -> bool {
        self.calls.load(Ordering::Relaxed) > 0 || !self.broker.sandboxes().list().is_empty()
    }

    /// How long a background host process stays with nothing to do.
    pub fn idle_timeout(&self) -> Duration {
        self.options.idle_timeout.or(self.config.idle_exit.map(|span| span.0)).unwrap_or(IDLE_EXIT)
    }

    /// Ends what runs and closes what is open.
    pub async fn shutdown(&self) {
        self.broker.sandboxes().shutdown().await;
        self.broker.processes_ended().await;
        self.broker.settle_streams().await;
    }
}

fn json(answer: &impl Serialize) -> Result<Value> {
    serde_json::to_value(answer).map_err(|error| Error::other(format!("the answer cannot be written as JSON: {error}")))
}

fn no_such_key(key: &str) -> Error {
    Error::not_found(format!("the blackboard has no key {key:?}"))
}
