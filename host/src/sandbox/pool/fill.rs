//! Making sandboxes in advance, handing them out, and removing those that nobody had.

use std::sync::{Arc, Weak};
use std::time::Duration;

use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};
use skillhost_api::units::now_ms;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::PooledSandbox;
use crate::roles::Role;
use crate::sandbox::backend::{ImageId, LABEL_DEPLOYMENT, LABEL_SANDBOX};
use crate::sandbox::life::launch::SelectedBackend;
use crate::sandbox::life::{Inner, forget};
use crate::sandbox::link::Link;
use crate::sandbox::sandbox_dir::SandboxDir;
use crate::sandbox::spec::{LaunchSpec, SandboxInfo, Workspace};

/// Between attempts to make one where that has failed.
const RETRY: Duration = Duration::from_secs(30);

/// For one that is being made when the host leaves: an engine goes on with what it was asked for, so it is waited for and removed.
const ENDING: Duration = Duration::from_secs(10);

/// Between a launch and the making of the next: who has launched runs a command at once, and the making would take the processors
/// and the engine from that.
const SETTLE: Duration = Duration::from_millis(100);

/// What the engine shows of a sandbox that was made in advance.
const LABEL: &str = "skillhost.pool";

impl Inner {
    /// Makes those that the operator wants, and makes new ones as they are handed out.
    pub fn fill_pool(self: &Arc<Self>) {
        for (role, size) in self.config.pool.sizes.clone() {
            let (taken, ending) = (Arc::clone(&self.pool.taken), self.pool.ending.subscribe());
            let task = self.runtime.spawn(keep_filled(Arc::downgrade(self), role, size, taken, ending));
            self.pool.tasks.lock().push(task);
        }
    }

    /// Removes those that nobody had.
    pub async fn empty_pool(&self) {
        self.pool.ending.send_replace(true);
        let tasks = std::mem::take(&mut *self.pool.tasks.lock());
        let ended = async |mut task: JoinHandle<()>| {
            if timeout(ENDING, &mut task).await.is_err() {
                tracing::warn!("a sandbox that was being made in advance is left: the engine took too long");
                task.abort();
            }
        };
        futures_util::future::join_all(tasks.into_iter().map(ended)).await;
        let all: Vec<PooledSandbox> = std::mem::take(&mut *self.pool.ready()).into_values().flatten().collect();
        futures_util::future::join_all(all.into_iter().map(|warm| self.discard(warm))).await;
    }

    async fn discard(&self, PooledSandbox { info, place, link }: PooledSandbox) {
        link.shutdown().await;
        if let Err(error) = self.remove(&info, Duration::from_secs(1)).await {
            tracing::warn!("the container of {} is left until its lease is over: {error}", info.id);
        }
        if let Some(workspace) = info.workspace.directory() {
            self.workspaces.discard_spare(workspace);
        }
        forget(&place);
    }

    /// Launches a sandbox for the pool.
    async fn prepare(self: &Arc<Self>, role: &str) -> Result<PooledSandbox> {
        let role = self.config.roles.roles().require(role)?.clone();
        let SelectedBackend { engine, image, route, passed_over } = self.choose(&role).await?;
        if !route.shares_files {
            return Err(Error::unavailable(
                "the engine does not see this machine's files, so a workspace cannot be given to a container that runs",
            ));
        }
        let place = self.places.create()?;
        let made = async {
            let nobody = Caller { tenant: String::new(), session: String::new(), agent: String::new() };
            let spec = LaunchSpec { pids: self.config.pool.pids, ..LaunchSpec::new(nobody, role.name.clone()) };
            let (workspace, user) = self.workspaces.spare()?;
            let mounted = Workspace::Directory(workspace.clone());
            let info = self.plan(spec, &role, engine.backend.name(), image, &place, mounted, user, route.transport);
            let info = SandboxInfo { notes: passed_over, warm: true, ..info };
            let mut built = self.build_from(&info, &place);
            built.labels.retain(|label, _| !label.starts_with("skillhost.") || OWN_LABELS.contains(&label.as_str()));
            built.labels.insert(LABEL.into(), role.name.clone());
            let started = self.start(&*engine.backend, &built, info, &place, None).await;
            started.inspect_err(|_| self.workspaces.discard_spare(&workspace))
        };
        match made.await {
            Ok((info, link)) => Ok(PooledSandbox { info, place, link }),
            Err(error) => {
                forget(&place);
                Err(error)
            }
        }
    }

    /// A warm one for this launch, made the session's own; none when there is none that fits, or the session has a workspace.
    pub(in crate::sandbox) fn take_warm(
        self: &Arc<Self>,
        spec: &LaunchSpec,
        role: &Role,
        backend: &str,
        image: &ImageId,
    ) -> Option<Result<(SandboxInfo, SandboxDir, Link)>> {
        let fits = |info: &SandboxInfo| {
            (info.backend.as_str(), info.image.as_str(), info.runtime.as_deref())
                == (backend, image.0.as_str(), role.runtime.as_deref())
        };
        let as_asked = |info: &SandboxInfo| {
            (info.cpus, info.memory_mib, info.pids, info.network, info.shared)
                == (spec.cpus, spec.memory_mib, spec.pids, spec.network, spec.shared)
        };
        let warm = loop {
            let mut ready = self.pool.ready();
            let of_role = ready.get_mut(&role.name)?;
            if !of_role.front().is_some_and(|warm| as_asked(&warm.info)) || self.workspaces.is_there(&spec.owner) {
                return None;
            }
            let warm = of_role.pop_front()?;
            drop(ready);
            self.pool.taken.notify_waiters();
            if fits(&warm.info) && !warm.link.is_closed() && warm.link.answers() {
                break warm;
            }
            // Of an image that the role does not have any more, or dead, or frozen.
            let inner = Arc::clone(self);
            self.runtime.spawn(async move { inner.discard(warm).await });
        };
        let given = self.give(warm, spec);
        given.transpose()
    }

    /// Makes a warm one the session's. `Ok(None)` when the session got a workspace meanwhile.
    fn give(
        self: &Arc<Self>,
        warm: PooledSandbox,
        spec: &LaunchSpec,
    ) -> Result<Option<(SandboxInfo, SandboxDir, Link)>> {
        let adopted = match warm.info.workspace.directory() {
            Some(spare) => self.workspaces.adopt(spare, &spec.owner),
            None => Ok(None),
        };
        let workspace = match adopted {
            Ok(Some(workspace)) => Workspace::Directory(workspace),
            other => {
                self.pool.ready().entry(warm.info.role.clone()).or_default().push_front(warm);
                return other.map(|_| None);
            }
        };
        let now = now_ms();
        let wall_time_ms = u64::try_from(spec.wall_time.as_millis()).unwrap_or(u64::MAX);
        let info = SandboxInfo {
            owner: spec.owner.clone(),
            env: spec.env.clone(),
            invocation: spec.invocation.clone(),
            workspace,
            launched_at_ms: now,
            started_at_ms: now,
            expires_at_ms: now.saturating_add(wall_time_ms),
            ..warm.info
        };
        let given = warm.place.write(&info).and_then(|()| warm.link.configure(self.hello(&info)));
        if let Err(error) = given {
            let (inner, place, link) = (Arc::clone(self), warm.place, warm.link);
            self.runtime.spawn(async move { inner.discard(PooledSandbox { info, place, link }).await });
            return Err(error);
        }
        Ok(Some((info, warm.place, warm.link)))
    }
}

/// What a warm one's container is called by the engine, like any other's.
const OWN_LABELS: [&str; 3] = [LABEL_SANDBOX, LABEL_DEPLOYMENT, "skillhost.role"];

async fn keep_filled(
    inner: Weak<Inner>,
    role: String,
    size: usize,
    taken: Arc<Notify>,
    mut ending: watch::Receiver<bool>,
) {
    let mut told = false;
    while !*ending.borrow() {
        let next = taken.notified();
        tokio::pin!(next);
        // Before the look, so that one that is taken between the two is not missed.
        next.as_mut().enable();
        let Some(strong) = inner.upgrade() else { return };
        if strong.pool.count(&role) >= size {
            drop(strong);
            tokio::select! {
                () = next => drop(timeout(SETTLE, ending.changed()).await),
                // Also when nobody is left who could say so.
                _ = ending.changed() => {}
            }
            continue;
        }
        match strong.prepare(&role).await {
            // Commands without isolation are asked for one by one; that is not for a sandbox of nobody's.
            Ok(warm) if warm.info.bare => return strong.discard(warm).await,
            Ok(warm) => {
                told = false;
                strong.pool.ready().entry(role.clone()).or_default().push_back(warm);
            }
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("no sandbox of role `{role}` can be made in advance: {error}");
                }
                drop(strong);
                let _ = timeout(RETRY, ending.changed()).await;
            }
        }
    }
}
