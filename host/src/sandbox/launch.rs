//! How a sandbox begins.
//!
//! A place on the host, a listener in it, the engine's container, the supervisor's connection (checked by the process id
//! that the engine gave), a look at how it is really confined. When a step fails, what came before is undone. All of it
//! is a task of its own, since an undoing that is dropped half way would undo nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::Held;
use super::backend::{Backend, ImageId, LABEL_DEPLOYMENT, LABEL_SANDBOX, Running};
use super::images::Role;
use super::life::{Engine, Inner, Live, forget};
use super::link::{HelloConfig, Link, Listener};
use super::place::Place;
use super::spec::{LaunchSpec, SandboxInfo, SandboxSpec};
use crate::error::{Error, ErrorKind, Result};
use crate::units::now_ms;

/// For a supervisor to connect once its container was started.
const CONNECT: Duration = Duration::from_secs(15);

/// A launch that is done and not yet taken: when its caller has left, the sandbox goes too.
struct Untaken {
    inner: Arc<Inner>,
    live: Option<Arc<Live>>,
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            drop(self.inner.stop(&live));
        }
    }
}

/// The backend for a launch.
struct Chosen<'a> {
    engine: &'a Engine,
    image: ImageId,
    /// Which better ones it was not, and why.
    passed_over: Vec<String>,
}

/// Whoever asked for a launch, for as long as they wait.
type Caller = oneshot::Sender<Result<Untaken>>;

fn still_wanted(caller: &Caller) -> Result<()> {
    if caller.is_closed() { Err(Error::cancelled("the caller left during the launch")) } else { Ok(()) }
}

impl Inner {
    /// Launches a sandbox of `role` and keeps `held` for it.
    pub async fn launch(self: &Arc<Self>, spec: LaunchSpec, role: Role, held: Held) -> Result<SandboxInfo> {
        let (give, take) = oneshot::channel();
        let inner = Arc::clone(self);
        self.runtime.spawn(async move {
            let outcome = inner.make(spec, &role, held, &give).await;
            let outcome = outcome.map(|live| Untaken { inner, live: Some(live) });
            // Not taken: `Untaken` sees to it.
            let _ = give.send(outcome);
        });
        let mut launched =
            take.await.map_err(|_| Error::other("the launch ended with no result, which is a bug of the host"))??;
        match launched.live.take() {
            Some(live) => Ok(live.info.clone()),
            None => Err(Error::other("the launch gave nothing, which is a bug of the host")),
        }
    }

    async fn make(self: &Arc<Self>, spec: LaunchSpec, role: &Role, held: Held, caller: &Caller) -> Result<Arc<Live>> {
        let Chosen { engine, image, passed_over } = self.choose(role).await?;
        let place = self.places.create()?;
        let made = match self.plan(spec, role, engine.backend.name(), image, &place) {
            Ok((built, mut info)) => {
                info.notes = passed_over;
                self.start(&*engine.backend, &built, info, &place, caller).await
            }
            Err(error) => Err(error),
        };
        match made {
            Ok((info, link)) => Ok(self.keep(info, place, link, vec![held])),
            Err(error) => {
                forget(&place);
                Err(error.context(format!("cannot launch a sandbox of role `{}`", role.name)))
            }
        }
    }

    /// The first backend that has the role's image.
    async fn choose(self: &Arc<Self>, role: &Role) -> Result<Chosen<'_>> {
        let mut passed_over: Vec<String> = Vec::new();
        for (index, engine) in self.engines.iter().enumerate() {
            let last = index + 1 == self.engines.len();
            let has = async {
                self.find_again(engine).await?;
                engine.backend.image(role).await?.ok_or_else(|| engine.backend.lacks(role))
            };
            match has.await {
                Ok(image) => return Ok(Chosen { engine, image, passed_over }),
                Err(error) if !last => passed_over.push(format!("{} was passed over: {error}", engine.backend.name())),
                Err(error) if passed_over.is_empty() => return Err(error),
                Err(error) => {
                    let before = passed_over.join("; ");
                    return Err(Error::new(error.kind, format!("{}: {error}; {before}", engine.backend.name())));
                }
            }
        }
        Err(Error::unavailable("there is no backend, so there are no sandboxes"))
    }

    /// What the engine is to build, and what will be known of it; the engine's own part of that is still empty.
    fn plan(
        &self,
        spec: LaunchSpec,
        role: &Role,
        backend: &str,
        image: ImageId,
        place: &Place,
    ) -> Result<(SandboxSpec, SandboxInfo)> {
        let LaunchSpec { owner, role: _, cpus, memory_mib, pids, network, wall_time, shared, env, invocation } = spec;
        let launched_at_ms = now_ms();
        let wall_time_ms = u64::try_from(wall_time.as_millis()).unwrap_or(u64::MAX);
        let info = SandboxInfo {
            id: place.id.clone(),
            name: format!("skillhost-{}", place.id),
            engine_id: String::new(),
            role: role.name.clone(),
            image: image.0.clone(),
            backend: backend.to_owned(),
            isolation: String::new(),
            notes: Vec::new(),
            workspace: self.workspaces.ensure(&owner)?,
            owner,
            shared,
            cpus,
            memory_mib,
            pids,
            network,
            env,
            invocation,
            identity: self.identity,
            bare: false,
            launched_at_ms,
            expires_at_ms: launched_at_ms.saturating_add(wall_time_ms),
        };
        let built = SandboxSpec {
            id: info.id.clone(),
            name: info.name.clone(),
            role: info.role.clone(),
            image,
            runtime: role.runtime.clone(),
            cpus,
            memory_mib,
            pids,
            network,
            shared,
            labels: self.labels(&info),
            workspace: info.workspace.clone(),
            control: place.control(),
        };
        Ok((built, info))
    }

    fn labels(&self, info: &SandboxInfo) -> BTreeMap<String, String> {
        [
            (LABEL_SANDBOX, info.id.clone()),
            (LABEL_DEPLOYMENT, self.deployment.clone()),
            ("skillhost.tenant", info.owner.tenant.clone()),
            ("skillhost.session", info.owner.session.clone()),
            ("skillhost.owner", info.owner.agent.clone()),
            ("skillhost.role", info.role.clone()),
            ("skillhost.expires-at-ms", info.expires_at_ms.to_string()),
        ]
        .map(|(label, value)| (label.to_owned(), value))
        .into()
    }

    /// From the plan to a sandbox whose supervisor is connected and confined. After an error no container is left.
    async fn start(
        &self,
        backend: &dyn Backend,
        built: &SandboxSpec,
        mut info: SandboxInfo,
        place: &Place,
        caller: &Caller,
    ) -> Result<(SandboxInfo, Link)> {
        // Before the container is there, so that its supervisor finds somebody at once.
        let listener = Listener::bind(&built.control)?;
        still_wanted(caller)?;
        let Running { engine_id, init_pid, isolation, bare, notes } = backend.launch(built).await?;
        info.notes.extend(notes);
        info = SandboxInfo { engine_id, isolation, bare, ..info };
        let joined = async {
            place.write(&info)?;
            still_wanted(caller)?;
            let link = self.connect(listener, init_pid, &info, CONNECT).await;
            let link = link.map_err(|error| explain(error, built.runtime.as_deref()))?;
            backend.verify(init_pid)?;
            Ok(link)
        };
        match joined.await {
            Ok(link) => Ok((info, link)),
            Err(error) => {
                if let Err(left) = backend.remove(&info.engine_id, Duration::ZERO).await {
                    tracing::warn!("the container of {} is left until its lease is over: {left}", info.id);
                }
                Err(error)
            }
        }
    }

    /// Waits for the supervisor to connect; gives up as soon as its process has ended.
    pub(super) async fn connect(
        &self,
        listener: Listener,
        init_pid: i32,
        info: &SandboxInfo,
        patience: Duration,
    ) -> Result<Link> {
        let hello = HelloConfig {
            lease: self.config.lease,
            wall_time: Some(Duration::from_millis(info.expires_at_ms.saturating_sub(info.launched_at_ms))),
            idle: self.config.idle,
            env: info.env.clone(),
            workspace: info.workspace_inside().into_owned(),
            ..HelloConfig::default()
        };
        tokio::select! {
            link = listener.accept(Some(init_pid), hello) => link,
            () = process_ended(init_pid) => {
                Err(Error::sandbox_died("the sandbox's supervisor ended before it connected"))
            }
            () = tokio::time::sleep(patience) => Err(Error::unavailable(format!(
                "the sandbox's supervisor did not connect within {} s",
                patience.as_secs()
            ))),
        }
    }
}

/// Names the likely cause where a role has a runtime of its own.
fn explain(error: Error, runtime: Option<&str>) -> Error {
    match runtime {
        Some(runtime) if error.kind == ErrorKind::Unavailable => Error::unavailable(format!(
            "{error} (the role's runtime `{runtime}` may keep the host's sockets out of its sandboxes; those need the \
             bridge transport, which this version of skillhost does not have)"
        )),
        _ => error,
    }
}

/// Returns once the process has ended; at once when it is not there.
async fn process_ended(pid: i32) {
    let watched = || -> std::io::Result<AsyncFd<OwnedFd>> {
        let pid = rustix::process::Pid::from_raw(pid).ok_or(rustix::io::Errno::SRCH)?;
        let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        #[allow(unsafe_code)]
        // SAFETY: an `OwnedFd` keeps its one descriptor open until it is dropped, and always gives that one.
        Ok(unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }?)
    };
    match watched() {
        // A failure to wait means what an end means: there is no more waiting for this process.
        Ok(process) => drop(process.readable().await),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
        // An older kernel: the deadline has to do.
        Err(_) => std::future::pending().await,
    }
}
