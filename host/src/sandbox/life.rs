//! How a sandbox begins and ends, and how it is found again.
//!
//! Beginning: a place on the host, a listener in it, the engine's container, the supervisor's connection (checked by the
//! process id that the engine gave), a look at how it is really confined. Each step undoes what came before when it fails.
//! Ending: whoever notices first gives the reason; the container is removed, then the place, and only then what was held
//! for it is let go.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, mpsc, oneshot};
use tokio::task::{AbortHandle, JoinHandle};

use super::backend::docker::{LABEL_DEPLOYMENT, LABEL_SANDBOX};
use super::backend::{Backend, Found, Running};
use super::images::Role;
use super::link::{ByeReason, CloseReason, HelloConfig, Link, Listener};
use super::place::{Place, Places};
use super::spec::{Identity, LaunchSpec, SandboxInfo, SandboxSpec};
use super::workspace::Workspaces;
use super::{Config, Ended, Held, State};
use crate::error::{Error, ErrorKind, Result};

/// For a supervisor to connect once its container was started.
const CONNECT: Duration = Duration::from_secs(15);
/// For a supervisor to come back to a host that has started again; it tries several times a second.
const COME_BACK: Duration = Duration::from_secs(5);
/// For a container to go by itself once its supervisor has said goodbye.
const LEAVE: Duration = Duration::from_secs(5);
/// Between a sandbox's end by its supervisor's clock and by ours, which only counts when that one fails.
const OVERTIME: Duration = Duration::from_secs(10);
/// Ended sandboxes that are still known by name.
const REMEMBERED: usize = 256;

/// What all clones of `Sandboxes` share.
pub(super) struct Inner {
    pub config: Config,
    pub backend: Box<dyn Backend>,
    pub workspaces: Workspaces,
    pub identity: Identity,
    places: Places,
    deployment: String,
    found_again: OnceCell<()>,
    table: Mutex<Table>,
    /// Where tasks run that outlive a call, whatever runtime that call came from (and while it is being dropped).
    runtime: Handle,
}

#[derive(Default)]
struct Table {
    live: BTreeMap<String, Arc<Live>>,
    ended: VecDeque<Ended>,
    watchers: Vec<mpsc::UnboundedSender<Ended>>,
}

/// A sandbox that runs.
pub(super) struct Live {
    pub info: SandboxInfo,
    pub link: Link,
    pub execs: Arc<AtomicUsize>,
    place: Place,
    held: Mutex<Vec<Held>>,
    ended: OnceCell<Ended>,
    /// Set once, right after the making.
    watch: Mutex<Option<Watch>>,
}

/// The task that waits for a sandbox's end; it goes when nobody knows the sandbox any more.
struct Watch(AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

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

/// A poisoned lock holds what was there: no section here leaves it half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Inner {
    /// Must be called on the runtime that the sandboxes are to live on.
    pub fn new(config: Config, backend: Box<dyn Backend>) -> Result<Self> {
        let identity = Identity::of_host();
        let places = Places::open(&config.state_dir)?;
        let workspaces = Workspaces::open(&config.state_dir, identity)?;
        let deployment = places.deployment()?;
        let (found_again, table) = (OnceCell::new(), Mutex::default());
        let runtime = Handle::current();
        Ok(Self { config, backend, workspaces, identity, places, deployment, found_again, table, runtime })
    }

    /// Whether an earlier host left anything.
    pub fn has_records(&self) -> Result<bool> {
        Ok(!self.places.all()?.is_empty())
    }

    pub fn live(&self, id: &str) -> Option<Arc<Live>> {
        lock(&self.table).live.get(id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<Live>> {
        lock(&self.table).live.values().cloned().collect()
    }

    pub fn state(&self, id: &str) -> Option<State> {
        let table = lock(&self.table);
        match table.live.get(id) {
            Some(live) => Some(State::Running(live.info.clone())),
            None => table.ended.iter().rev().find(|ended| ended.info.id == id).cloned().map(State::Ended),
        }
    }

    pub fn subscribe(&self) -> mpsc::UnboundedReceiver<Ended> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.table).watchers.push(sender);
        receiver
    }

    /// Launches in a task of its own, so that a caller who leaves cannot leave a half-made sandbox.
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

    async fn make(
        self: &Arc<Self>,
        spec: LaunchSpec,
        role: &Role,
        held: Held,
        caller: &oneshot::Sender<Result<Untaken>>,
    ) -> Result<Arc<Live>> {
        self.find_again().await?;
        let image = self.backend.image(&role.image).await?.ok_or_else(|| {
            Error::unavailable(format!(
                "the image {} of role `{}` is not in the engine: run `skillhost images build`",
                role.image, role.name
            ))
        })?;
        let workspace = self.workspaces.ensure(&spec.owner)?;
        let place = self.places.create()?;
        let name = format!("skillhost-{}", place.id);
        let launched_at_ms = now_ms();
        let expires_at_ms = launched_at_ms.saturating_add(millis(spec.wall_time));
        let built = SandboxSpec {
            id: place.id.clone(),
            name: name.clone(),
            role: role.name.clone(),
            image,
            runtime: role.runtime.clone(),
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            pids: spec.pids,
            network: spec.network,
            labels: self.labels(&place.id, &spec, role, expires_at_ms),
            workspace: workspace.clone(),
            control: place.control(),
        };
        let mut info = SandboxInfo {
            id: place.id.clone(),
            name,
            engine_id: String::new(),
            role: role.name.clone(),
            image: built.image.0.clone(),
            backend: self.backend.name().to_owned(),
            isolation: String::new(),
            notes: Vec::new(),
            owner: spec.owner,
            shared: spec.shared,
            cpus: spec.cpus,
            memory_mib: spec.memory_mib,
            pids: spec.pids,
            network: spec.network,
            env: spec.env,
            invocation: spec.invocation,
            identity: self.identity,
            workspace,
            launched_at_ms,
            expires_at_ms,
        };
        let made = async {
            let listener = Listener::bind(&built.control)?;
            still_wanted(caller)?;
            let running = self.backend.launch(&built).await?;
            info.engine_id.clone_from(&running.engine_id);
            info.isolation.clone_from(&running.isolation);
            info.notes.clone_from(&running.notes);
            let connected = async {
                place.write(&info)?;
                still_wanted(caller)?;
                let link = self.connect(listener, running.init_pid, &info, CONNECT).await.map_err(|error| match &role.runtime {
                    Some(runtime) if error.kind == ErrorKind::Unavailable => Error::unavailable(format!(
                        "{error} (the runtime `{runtime}` of role `{}` may keep the host's sockets out of its sandboxes; \
                         those need the bridge transport, which this version of skillhost does not have)",
                        role.name
                    )),
                    _ => error,
                })?;
                self.backend.verify(running.init_pid)?;
                Ok(link)
            };
            match connected.await {
                Ok(link) => Ok::<_, Error>(link),
                Err(error) => {
                    self.remove_container(&running).await;
                    Err(error)
                }
            }
        };
        match made.await {
            Ok(link) => Ok(self.keep(info, place, link, vec![held])),
            Err(error) => {
                forget(&place);
                Err(error.context(format!("cannot launch a sandbox of role `{}`", role.name)))
            }
        }
    }

    fn labels(&self, id: &str, spec: &LaunchSpec, role: &Role, expires_at_ms: u64) -> BTreeMap<String, String> {
        [
            (LABEL_SANDBOX, id.to_owned()),
            (LABEL_DEPLOYMENT, self.deployment.clone()),
            ("skillhost.tenant", spec.owner.tenant.clone()),
            ("skillhost.session", spec.owner.session.clone()),
            ("skillhost.owner", spec.owner.agent.clone()),
            ("skillhost.role", role.name.clone()),
            ("skillhost.expires-at-ms", expires_at_ms.to_string()),
        ]
        .map(|(label, value)| (label.to_owned(), value))
        .into()
    }

    /// Waits for the supervisor to connect; gives up as soon as its process has ended.
    async fn connect(&self, listener: Listener, init_pid: i32, info: &SandboxInfo, patience: Duration) -> Result<Link> {
        let hello = HelloConfig {
            lease: self.config.lease,
            wall_time: Some(Duration::from_millis(info.expires_at_ms.saturating_sub(info.launched_at_ms))),
            idle: self.config.idle,
            env: info.env.clone(),
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

    /// Removes a container that nobody knows yet. What stays in spite of that ends with its lease.
    async fn remove_container(&self, running: &Running) {
        if let Err(error) = self.backend.remove(&running.engine_id, Duration::ZERO).await {
            tracing::warn!("a container is left until its lease is over: {error}");
        }
    }

    /// Enters a connected sandbox, and watches for its end.
    fn keep(self: &Arc<Self>, info: SandboxInfo, place: Place, link: Link, held: Vec<Held>) -> Arc<Live> {
        let live = Arc::new(Live {
            info,
            link,
            place,
            execs: Arc::default(),
            held: Mutex::new(held),
            ended: OnceCell::new(),
            watch: Mutex::new(None),
        });
        lock(&self.table).live.insert(live.info.id.clone(), Arc::clone(&live));
        let left = Duration::from_millis(live.info.expires_at_ms.saturating_sub(now_ms())) + OVERTIME;
        let (inner, weak, closed) = (Arc::downgrade(self), Arc::downgrade(&live), live.link.closed());
        let watch = self.runtime.spawn(async move {
            let cause = tokio::select! {
                cause = closed => cause,
                () = tokio::time::sleep(left) => CloseReason::Bye(ByeReason::WallTime),
            };
            if let (Some(inner), Some(live)) = (Weak::upgrade(&inner), Weak::upgrade(&weak)) {
                // In a task of its own: this one is aborted with the sandbox that it watches.
                drop(inner.end(live, cause));
            }
        });
        *lock(&live.watch) = Some(Watch(watch.abort_handle()));
        live
    }

    /// Asks the supervisor to end everything, and ends it for it when it does not answer.
    pub fn stop(self: &Arc<Self>, live: &Arc<Live>) -> JoinHandle<Ended> {
        let (inner, live) = (Arc::clone(self), Arc::clone(live));
        self.runtime.spawn(async move {
            let asked = async {
                live.link.shutdown().await;
                live.link.closed().await
            };
            let cause = tokio::time::timeout(LEAVE, asked).await.unwrap_or(CloseReason::Bye(ByeReason::Shutdown));
            inner.finish(&live, cause).await
        })
    }

    fn end(self: &Arc<Self>, live: Arc<Live>, cause: CloseReason) -> JoinHandle<Ended> {
        let inner = Arc::clone(self);
        self.runtime.spawn(async move { inner.finish(&live, cause).await })
    }

    /// The one end. The first cause is kept; whoever comes later waits for it to be done.
    async fn finish(&self, live: &Arc<Live>, cause: CloseReason) -> Ended {
        let end = || async {
            // A supervisor that said goodbye takes its container with it; any other is killed.
            let grace = if matches!(cause, CloseReason::Bye(_)) { LEAVE } else { Duration::ZERO };
            let id = &live.info.id;
            if let Err(error) = self.backend.remove(&live.info.engine_id, grace).await {
                tracing::warn!("the container of {id} could not be removed: {error}; trying again after its lease");
                // Until then its processes may live, so what is held for them is not let go.
                tokio::time::sleep(self.config.lease).await;
                if let Err(error) = self.backend.remove(&live.info.engine_id, Duration::ZERO).await {
                    tracing::error!("the container of {id} could not be removed: {error}");
                }
            }
            forget(&live.place);
            lock(&live.held).clear();
            let ended = Ended { info: live.info.clone(), cause, at_ms: now_ms() };
            let mut table = lock(&self.table);
            table.live.remove(id);
            table.ended.push_back(ended.clone());
            if table.ended.len() > REMEMBERED {
                table.ended.pop_front();
            }
            table.watchers.retain(|watcher| watcher.send(ended.clone()).is_ok());
            ended
        };
        live.ended.get_or_init(end).await.clone()
    }

    /// Adopts what an earlier host of this state directory left running, and removes what cannot be adopted. Done once;
    /// an engine that does not answer leaves it for the next time.
    pub async fn find_again(self: &Arc<Self>) -> Result<()> {
        let find = || async {
            let found = self.backend.list(&self.deployment).await?;
            let mut records: HashMap<_, _> =
                self.places.all()?.into_iter().map(|(place, record)| (place.id.clone(), (place, record))).collect();
            let adoptions = found.into_iter().map(|found| {
                let record = records.remove(&found.id);
                self.adopt(found, record)
            });
            join_all(adoptions.collect::<Vec<_>>()).await;
            records.values().for_each(|(place, _)| forget(place));
            Ok(())
        };
        self.found_again.get_or_try_init(find).await.copied()
    }

    async fn adopt(self: &Arc<Self>, found: Found, record: Option<(Place, Result<SandboxInfo>)>) {
        let adopted = async {
            let (place, info) = record.ok_or_else(|| (None, Error::not_found("it has no record")))?;
            let joined = async {
                let info = info?;
                if info.engine_id != found.engine_id || !found.running || info.expires_at_ms <= now_ms() {
                    return Err(Error::sandbox_died("it has ended"));
                }
                let listener = Listener::bind(&place.control())?;
                let init_pid = self.backend.init_pid(&found.engine_id).await?;
                let init_pid = init_pid.ok_or_else(|| Error::sandbox_died("it has ended"))?;
                let link = self.connect(listener, init_pid, &info, COME_BACK).await?;
                self.backend.verify(init_pid)?;
                Ok((info, link))
            };
            match joined.await {
                Ok((info, link)) => Ok((info, place, link)),
                Err(error) => Err((Some(place), error)),
            }
        };
        match adopted.await {
            Ok((info, place, link)) => {
                tracing::info!("found {} again", info.id);
                self.keep(info, place, link, Vec::new());
            }
            Err((place, error)) => {
                tracing::info!("{} is removed: {error}", found.id);
                if let Err(error) = self.backend.remove(&found.engine_id, Duration::ZERO).await {
                    tracing::warn!("{} could not be removed: {error}", found.id);
                }
                place.iter().for_each(forget);
            }
        }
    }
}

impl Live {
    pub fn hold(&self, held: Held) {
        lock(&self.held).push(held);
    }
}

fn still_wanted(caller: &oneshot::Sender<Result<Untaken>>) -> Result<()> {
    if caller.is_closed() { Err(Error::cancelled("the caller left during the launch")) } else { Ok(()) }
}

fn forget(place: &Place) {
    if let Err(error) = place.remove() {
        tracing::warn!("a sandbox's place is left behind: {error}");
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
