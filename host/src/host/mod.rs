//! The one door: opens state, config, catalogue, engine and broker, and answers calls.

mod doctor;
mod grant;
mod held;
mod run;
mod sandboxes;
mod skills;
mod trust;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::apart::Bounds;
use crate::api::types::{AuditList, Call, Event, HostStatus, Request};
use crate::broker::{Actor, Broker};
use crate::config::{Config, Isolation};
use crate::db::Db;
use crate::engine::{Engine, compile};
use crate::error::{Error, Result};
use crate::sandbox::backend::Choice;
use crate::sandbox::backend::local::LocalConfig;
use crate::sandbox::{self, Sandboxes};
use crate::skills::{DirCache, Shelf};
use crate::units::now_ms;
pub use held::Held;
use trust::Trust;

/// How long a background host process stays with nothing to do.
const IDLE_EXIT: Duration = Duration::from_secs(60);
/// The most audit records that one listing gives.
const MAX_AUDIT_LINES: u32 = 10_000;

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
}

/// The host: everything behind the faces.
pub struct Host {
    options: HostOptions,
    config: Arc<Config>,
    broker: Arc<Broker>,
    engine: Arc<Engine>,
    descriptors: Arc<DirCache>,
    shelf: Arc<Shelf>,
    trust: Trust,
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
        let roles = config.roles()?;
        let state = &options.state_dir;
        let db = Db::open(&state.join("state.db"), config.durability)?;
        let engine = Arc::new(Engine::open(
            &state.join("compiled"),
            options.describer.clone(),
            options.compile_bounds.unwrap_or(compile::BOUNDS),
        )?);
        let descriptors =
            Arc::new(DirCache::open(&state.join("descriptors"))?.describing_with(options.describer.clone()));
        let sandboxes = Sandboxes::open(sandbox::Config {
            roles,
            backend,
            local: LocalConfig {
                bare: config.local.isolation == Isolation::None,
                read_only: config.local.read_only.clone(),
                env: config.local.env.clone(),
            },
            lease: config.sandbox.lease.0,
            ..sandbox::Config::new(state)?
        })
        .await?;
        let config = Arc::new(config);
        let broker = Broker::new(config.clone(), sandboxes, &db);
        broker.adopt()?;
        Ok(Arc::new(Self {
            options,
            config,
            broker,
            engine,
            descriptors,
            shelf: Arc::default(),
            trust: Trust::open(db).await?,
            calls: AtomicUsize::new(0),
            started_at_ms: now_ms(),
        }))
    }

    /// One call. Events and output go to `io`, input comes from it. Dropping the future cancels everything that the call started.
    pub async fn call(self: &Arc<Self>, call: Call, io: CallIo) -> Result<Value> {
        call.caller.check()?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let _under_way = UnderWay(&self.calls);
        let actor = Actor::owner(call.caller.clone());
        let broker = &self.broker;
        match call.request {
            Request::Run(request) => json(&self.run(&call.caller, call.project, request, &io).await?),
            Request::ListSkills => json(&self.list_skills(call.project, None).await?),
            Request::SearchSkills { query } => json(&self.list_skills(call.project, Some(query)).await?),
            Request::InspectSkill { skill } => json(&self.inspect_skill(call.project, &skill).await?),
            Request::Trust { project, trusted } => json(&self.trust.set(&project, trusted).await?),
            Request::ListApprovals => json(&broker.list_approvals()),
            Request::Approve { id } => json(&broker.approve(&actor, &id).await?),
            Request::ListImages => json(&broker.sandboxes().images().await?),
            Request::Doctor => json(&self.doctor().await),
            Request::Launch(request) => json(&broker.launch(&actor, request).await?),
            Request::Exec(request) => json(&self.exec(&actor, request, io).await?),
            Request::ListSandboxes => json(&broker.list_sandboxes(&actor)),
            Request::SandboxStatus { container_id } => json(&broker.sandbox_status(&actor, &container_id)),
            Request::StopSandbox { container_id } => json(&broker.stop(&actor, &container_id).await?),
            Request::ReadFile { container_id, path } => json(&self.read_file(&actor, container_id, path, io).await?),
            Request::WriteFile { container_id, path } => json(&self.write_file(&actor, container_id, path, io).await?),
            Request::CopyIn(request) => json(&broker.copy_in(&actor, &request).await?),
            Request::CopyOut(request) => json(&broker.copy_out(&actor, &request).await?),
            Request::BlackboardPublish { key, value } => json(&broker.publish(&actor, &key, value).await?),
            Request::BlackboardGet { key } => {
                let entry = broker.get(&actor, &key).await?;
                json(&entry.ok_or_else(|| Error::not_found(format!("the blackboard has no key {key:?}")))?)
            }
            Request::BlackboardList { pattern } => json(&broker.list(&actor, &pattern).await?),
            Request::AuditTail { lines, follow } => json(&self.audit_tail(lines, follow, &io).await?),
            Request::HostStatus => json(&self.status()),
            Request::HostStop => {
                Err(Error::invalid_argument("only the host process can be told to stop, and this is not in it"))
            }
        }
    }

    async fn audit_tail(&self, lines: u32, follow: bool, io: &CallIo) -> Result<AuditList> {
        use tokio::sync::broadcast::error::RecvError;
        // Subscribed before the listing: a record that falls between the two comes twice rather than never.
        let mut live = self.broker.audit().follow();
        let records = self.broker.audit().tail(lines.min(MAX_AUDIT_LINES)).await?;
        if !follow {
            return Ok(AuditList { records });
        }
        let mut last = 0;
        for record in records {
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

    fn status(&self) -> HostStatus {
        HostStatus {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            state_dir: self.options.state_dir.clone(),
            started_at_ms: self.started_at_ms,
            calls: self.calls.load(Ordering::Relaxed),
            sandboxes: self.broker.sandboxes().list().len(),
            backend: self.broker.sandboxes().backend().into(),
        }
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
    }
}

fn json(answer: &impl Serialize) -> Result<Value> {
    serde_json::to_value(answer).map_err(|error| Error::other(format!("the answer cannot be written as JSON: {error}")))
}
