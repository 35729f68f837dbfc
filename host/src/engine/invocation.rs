//! One call of one action: its store, its limits, its deadline.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use std::time::Instant;

use skillhost_api::error::{Error, Result};
use wasmtime::UpdateDeadline;
use wasmtime::component::{ResourceTable, Val};
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxView, WasiView};

use super::limiter::{LimitHit, Limiter, size};
use super::{Engine, LinkedComponent, ended, failure};
use crate::capabilities::{CapabilitiesView, Context, OpenFiles, View};
use crate::skills::Limits;

/// The data of an invocation's Wasmtime store.
pub(super) struct StoreData {
    wasi: WasiCtx,
    table: ResourceTable,
    context: Context,
    files: OpenFiles,
    limiter: Limiter,
}

impl StoreData {
    /// The limit that was met, where the guest itself had to do with less.
    fn hit(&self) -> Option<LimitHit> {
        self.limiter.hit.or_else(|| self.files.refused().then_some(LimitHit::OpenFiles))
    }
}

impl WasiView for StoreData {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl CapabilitiesView for StoreData {
    fn capabilities(&mut self) -> View<'_> {
        View { context: &mut self.context, table: &mut self.table, files: &mut self.files }
    }
}

/// The session's workspace, for a skill that is granted it.
#[derive(Debug, Clone)]
pub struct Preopen {
    /// Where it is on the host; the guest sees `/workspace`.
    pub path: PathBuf,
    /// Whether it may be written.
    pub write: bool,
}

/// One call of one action.
pub struct Invocation {
    /// The component that is called.
    pub prepared: LinkedComponent,
    /// The exported interface that holds the function; `None` for a function of the world itself.
    pub interface: Option<String>,
    /// The exported function that is called.
    pub function: String,
    /// Its arguments.
    pub args: Vec<Val>,
    /// Whether it returns a value.
    pub returns: bool,
    /// The limits of the call.
    pub limits: Limits,
    /// The workspace, when granted.
    pub workspace: Option<Preopen>,
    /// What its imports work with.
    pub context: Context,
}

/// The result of an invocation.
#[derive(Debug)]
pub struct InvocationResult {
    /// What the function returned: one value or none.
    pub results: Vec<Val>,
    /// Fuel that was used.
    pub fuel_used: u64,
}

/// Aborts the guest when its caller is gone.
struct AbortGuestOnDrop(tokio::task::AbortHandle);

impl Drop for AbortGuestOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Engine {
    /// Makes the call. Dropping the future ends the guest and releases all that it held.
    ///
    /// Most calls are over in less time than it takes to hand them to another thread and to hear of their end. So a guest
    /// begins where it is called, for one tick of the clock at most; if it has not returned by then, or waits for
    /// something, it goes on where guests run. How many begin here at once is bounded, so that a thread is always left
    /// for timers and sockets.
    pub async fn call(self: &Arc<Self>, invocation: Invocation) -> Result<InvocationResult> {
        let guests = self.guests.as_ref().ok_or_else(ended)?;
        let engine = self.clone();
        let mut work = Box::pin(async move { engine.run(invocation).await });
        if let Ok(_permit) = self.beginning.try_acquire()
            && let Some(result) = poll_fn(|cx| Poll::Ready(begin(work.as_mut(), cx))).await
        {
            return result;
        }
        let task = guests.spawn(work);
        let _guard = AbortGuestOnDrop(task.abort_handle());
        match task.await {
            Ok(result) => result,
            Err(error) if error.is_cancelled() => Err(Error::cancelled("the call was cancelled")),
            Err(error) => Err(host_failed(&error)),
        }
    }

    async fn run(&self, invocation: Invocation) -> Result<InvocationResult> {
        let Invocation { prepared, interface, function, args, returns, limits, workspace, context } = invocation;
        let (deadline, log) = (context.deadline, context.log.clone());
        let overrun = || failure::deadline(&limits);
        let _slot = tokio::time::timeout_at(deadline.into(), self.live.acquire())
            .await
            .map_err(|_| failure::no_place(&limits))?
            .map_err(|_| ended())?;
        let mut store = self.store(&limits, workspace, context)?;
        // Epochs pass only while something runs.
        let _running = self.ticker.run();
        let work = async {
            let instance = prepared.pre.instantiate_async(&mut store).await?;
            let component = prepared.pre.component();
            let parent = match &interface {
                None => None,
                Some(name) => Some(component.get_export_index(None, name).ok_or_else(|| missing(name))?),
            };
            let index = component.get_export_index(parent.as_ref(), &function).ok_or_else(|| missing(&function))?;
            let export = instance.get_func(&mut store, index).ok_or_else(|| missing(&function))?;
            let mut results = vec![Val::Bool(false); usize::from(returns)];
            export.call_async(&mut store, &args, &mut results).await?;
            Ok::<_, wasmtime::Error>(results)
        };
        let ended = tokio::time::timeout_at(deadline.into(), work).await;
        match ended {
            // Too late, whatever it is: a host call that met the deadline has told the guest, which may have had time to
            // answer or to trap.
            Ok(_) if Instant::now() >= deadline => Err(overrun()),
            Ok(Ok(results)) => {
                let left = store.get_fuel().map_err(|error| Error::other(format!("{error:#}")))?;
                Ok(InvocationResult { results, fuel_used: limits.fuel.saturating_sub(left) })
            }
            Ok(Err(error)) => Err(failure::explain(&error, &limits, store.data().hit(), &log)),
            Err(_) => Err(overrun()),
        }
    }

    fn store(
        &self,
        limits: &Limits,
        workspace: Option<Preopen>,
        context: Context,
    ) -> Result<wasmtime::Store<StoreData>> {
        let deadline: Instant = context.deadline;
        let mut wasi = WasiCtx::builder();
        wasi.allow_tcp(false).allow_udp(false).allow_ip_name_lookup(false);
        wasi.stdout(context.log.stream("stdout")).stderr(context.log.stream("stderr"));
        if let Some(Preopen { path, write }) = workspace {
            let perms = if write { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
            wasi.preopened_dir(&path, "/workspace", perms)
                .map_err(|error| Error::other(format!("cannot open the workspace {}: {error:#}", path.display())))?;
        }
        let mut table = ResourceTable::new();
        table.set_max_capacity(size(limits.resources));
        let files = OpenFiles::new(size(limits.open_files));
        let data = StoreData { wasi: wasi.build(), table, context, files, limiter: Limiter::new(limits) };
        let mut store = wasmtime::Store::new(&self.engine, data);
        store.limiter(|data| &mut data.limiter);
        store.set_fuel(limits.fuel).map_err(|error| Error::other(format!("{error:#}")))?;
        store.set_hostcall_fuel(size(limits.host_call_bytes));
        store.set_max_component_handles(size(limits.resources));
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(move |_| {
            let over = Instant::now() >= deadline;
            Ok(if over { UpdateDeadline::Interrupt } else { UpdateDeadline::Yield(1) })
        });
        Ok(store)
    }
}

/// Polls once, and takes a panic for what a task takes it for. None when it is not done.
fn begin<T>(work: Pin<&mut impl Future<Output = Result<T>>>, cx: &mut task::Context<'_>) -> Option<Result<T>> {
    match catch_unwind(AssertUnwindSafe(|| work.poll(cx))) {
        Ok(Poll::Ready(result)) => Some(result),
        Ok(Poll::Pending) => None,
        Err(_) => Some(Err(host_failed(&"it panicked"))),
    }
}

fn host_failed(why: &dyn std::fmt::Display) -> Error {
    Error::other(format!("the host failed while the skill ran, which is its own mistake: {why}"))
}

fn missing(name: &str) -> wasmtime::Error {
    wasmtime::Error::msg(format!("the component does not export `{name}`"))
}
