//! How a skill's code runs: one configuration, one linker, a fresh store for every call.
//!
//! - Guests run on a runtime of their own. A guest that computes is interrupted every few milliseconds and lets others
//!   have their turn, but on a shared runtime even that would hold up timers and sockets. Only a call's first
//!   milliseconds are spent where it was made ([`Engine::call`]).
//! - A component is compiled once, by one caller, while others wait for it; the code is kept on disk ([`cache`]).
//! - A call gets a new store and a new instance, and both go when it ends, however it ends: nothing is left between calls.

mod cache;
pub mod compile;
mod config;
mod failure;
mod invocation;
mod limiter;
mod linking;
pub mod locate;
mod ticker;
mod trace;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use lru::LruCache;
use parking_lot::Mutex;
use skillhost_api::error::{Error, Result};
use tokio::sync::{OnceCell, Semaphore, watch};
use wasmtime::PoolingAllocatorMetrics;
use wasmtime::component::{Component, InstancePre, Linker};

use crate::capabilities::{self, Context};
use crate::digest::sha256;
use crate::private_dir::PrivateDir;
pub use crate::skills::Limits;
use crate::subprocess::ProcessBounds;
use cache::Cache;
use compile::Compiler;
pub use config::{Allocation, config as wasmtime_config};
pub use invocation::{ComponentReader, ImportContext, Invocation, InvocationResult, Preopen, StoreData};
pub use linking::describe;
use ticker::Ticker;
use trace::Trace;

/// How many components stay ready in memory; the one used longest ago goes first.
const MAX_READY: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Runs components.
pub struct Engine {
    engine: wasmtime::Engine,
    allocation: Allocation,
    linker: Linker<StoreData<Context>>,
    ticker: Ticker,
    cache: Arc<Cache>,
    ready: Mutex<LruCache<String, Arc<ComponentSlot>>>,
    live: Arc<Semaphore>,
    /// One compile at a time: each uses every core.
    compiling: Semaphore,
    /// The program that finds where in its source a component trapped.
    program: Option<PathBuf>,
    /// One such lookup at a time.
    locating: Semaphore,
    guests: Option<tokio::runtime::Runtime>,
    /// Guests that may begin on the caller's runtime at once: one less than it has threads, where it has several.
    beginning: Semaphore,
}

/// Resources of the engine that are in use. Slots are the pool's; without a pool they are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineUsage {
    /// Invocations.
    pub invocations: usize,
    /// Slots of core instances.
    pub instances: usize,
    /// Slots of linear memories.
    pub memories: usize,
    /// Slots of tables.
    pub tables: usize,
    /// Slots of stacks.
    pub stacks: usize,
}

/// The place of a component that is ready, or will be.
#[derive(Default)]
struct ComponentSlot {
    linked: OnceCell<LinkedComponent>,
    /// Whether it has to be compiled, which takes a while.
    compiling: watch::Sender<bool>,
}

/// A component that is compiled and linked: all but its instance.
pub struct LinkedComponent<C: 'static = Context> {
    pre: InstancePre<StoreData<C>>,
    /// Whether it says which line of its source an instruction comes from.
    has_lines: bool,
}

// Not derived: what its imports work with need not be one that can be cloned.
impl<C: 'static> Clone for LinkedComponent<C> {
    fn clone(&self) -> Self {
        Self { pre: self.pre.clone(), has_lines: self.has_lines }
    }
}

impl Engine {
    /// Makes the engine; compiled code is kept in `cache`. `program`, a `skillhost`, compiles in a process of its own,
    /// held to `bounds`; without one, this process does, and nothing bounds it.
    pub(crate) fn open(cache: PrivateDir, program: Option<PathBuf>, bounds: ProcessBounds) -> anyhow::Result<Self> {
        let (engine, allocation) = config::engine()?;
        let linker = linking::linker(&engine)?;
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
        let guests = tokio::runtime::Builder::new_multi_thread()
            .thread_name("guest")
            .worker_threads(threads)
            .enable_all()
            .build()
            .context("cannot start the threads that run skills")?;
        Ok(Self {
            ticker: Ticker::start(&engine).context("cannot start the thread that interrupts skills")?,
            cache: Arc::new(Cache::new(cache, program.clone().map(|program| Compiler { program, bounds }))),
            ready: Mutex::new(LruCache::new(MAX_READY)),
            live: Arc::new(Semaphore::new(usize::try_from(config::MAX_LIVE)?)),
            compiling: Semaphore::new(1),
            program,
            locating: Semaphore::new(1),
            guests: Some(guests),
            beginning: Semaphore::new(
                tokio::runtime::Handle::current().metrics().num_workers().saturating_sub(1).max(1),
            ),
            engine,
            allocation,
            linker,
        })
    }

    /// One for a program that is no host: where the host of this state directory keeps compiled code.
    pub(crate) fn open_in(state: &PrivateDir, program: PathBuf) -> Result<Self> {
        Self::open(state.cache("compiled")?, Some(program), compile::BOUNDS)
            .map_err(|error| Error::other(format!("the engine cannot be had: {error:#}")))
    }

    /// How instances get their memory.
    pub fn allocation(&self) -> Allocation {
        self.allocation
    }

    /// The component with this digest, if it is ready.
    pub fn ready(&self, digest: &str) -> Option<LinkedComponent> {
        self.ready.lock().get(digest)?.linked.get().cloned()
    }

    /// The component with this digest, compiled and linked. `bytes` is asked only when it is not ready; what it gives must
    /// have that digest.
    pub async fn prepare<B>(&self, digest: &str, bytes: B) -> Result<LinkedComponent>
    where
        B: AsyncFnOnce() -> Result<Vec<u8>>,
    {
        let slot = self.slot(digest);
        let prepared = slot.linked.get_or_try_init(async || {
            let compiles = || {
                slot.compiling.send_replace(true);
            };
            let (component, has_lines) = self.compiled(digest, bytes().await?, compiles).await?;
            link(&self.linker, &component, has_lines)
        });
        Ok(prepared.await?.clone())
    }

    /// The same with other imports than the host's own: `define` puts them into a linker that has WASI. It is linked anew each
    /// time.
    pub(crate) async fn prepare_with<C: ImportContext>(
        &self,
        digest: &str,
        bytes: Vec<u8>,
        define: impl FnOnce(&mut Linker<StoreData<C>>) -> wasmtime::Result<()>,
    ) -> Result<LinkedComponent<C>> {
        let (component, has_lines) = self.compiled(digest, bytes, || {}).await?;
        let mut linker = Linker::new(&self.engine);
        let defined = wasmtime_wasi::p2::add_to_linker_async(&mut linker)
            .and_then(|()| capabilities::filesystem::add_to_linker(&mut linker))
            .and_then(|()| define(&mut linker));
        defined.map_err(|error| Error::other(format!("the imports cannot be defined: {error:#}")))?;
        link(&linker, &component, has_lines)
    }

    /// The component of these bytes, from the cache or compiled now, which is told before; and whether it has lines of its source.
    async fn compiled(&self, digest: &str, bytes: Vec<u8>, compiles: impl FnOnce()) -> Result<(Component, bool)> {
        let bytes: Arc<[u8]> = bytes.into();
        let (engine, cache, of, digest) = (self.engine.clone(), self.cache.clone(), bytes.clone(), digest.to_owned());
        let known = aside(move || Ok((cache.compiled(&engine, &digest), locate::has_lines(&of), digest)));
        let (compiled, has_lines, digest) = known.await?;
        let component = match compiled {
            Some(component) => component,
            None => {
                compiles();
                let _turn = self.compiling.acquire().await.map_err(|_| ended())?;
                let (engine, cache) = (self.engine.clone(), self.cache.clone());
                aside(move || cache.compile(&engine, &digest, &bytes)).await?
            }
        };
        Ok((component, has_lines))
    }

    /// Compiles the component of these bytes, so that its first call need not.
    pub(crate) async fn compile_ahead(&self, bytes: Vec<u8>) -> Result<()> {
        let digest = sha256(&bytes);
        self.compiled(&digest, bytes, || {}).await.map(drop)
    }

    /// Waits until the component with this digest is being compiled, by whomever.
    pub async fn compiling(&self, digest: &str) {
        let mut compiling = self.slot(digest).compiling.subscribe();
        // Its sender is in the slot, which is kept here.
        let _ = compiling.wait_for(|compiling| *compiling).await;
    }

    fn slot(&self, digest: &str) -> Arc<ComponentSlot> {
        self.ready.lock().get_or_insert_ref(digest, Arc::default).clone()
    }

    /// What invocations hold now.
    pub fn live(&self) -> EngineUsage {
        let pool = self.engine.pooling_allocator_metrics();
        let slots = |count: fn(&PoolingAllocatorMetrics) -> usize| pool.as_ref().map_or(0, count);
        EngineUsage {
            invocations: usize::try_from(config::MAX_LIVE).unwrap_or(usize::MAX) - self.live.available_permits(),
            instances: slots(|pool| usize::try_from(pool.core_instances()).unwrap_or(usize::MAX)),
            memories: slots(PoolingAllocatorMetrics::memories),
            tables: slots(PoolingAllocatorMetrics::tables),
            stacks: slots(PoolingAllocatorMetrics::stacks),
        }
    }

    /// Adds places in the source to a trace, where they can be had.
    async fn locate(&self, trace: &mut Trace, component: ComponentReader) {
        let (Some(program), Ok(_turn)) = (self.program.clone(), self.locating.acquire().await) else { return };
        let offsets = trace.offsets();
        match aside(move || locate::locate(&program, &component()?, &offsets)).await {
            Ok(places) => trace.set_places(places),
            Err(error) => tracing::warn!("a trap is told without its place: {error}"),
        }
    }
}

fn link<C: 'static>(
    linker: &Linker<StoreData<C>>,
    component: &Component,
    has_lines: bool,
) -> Result<LinkedComponent<C>> {
    // What does not link was refused when it was described, as far as that could be told without its code.
    let pre = linker.instantiate_pre(component).map_err(|error| {
        Error::invalid_argument(format!("the component imports what this host does not have: {error:#}"))
    })?;
    Ok(LinkedComponent { pre, has_lines })
}

/// Does work that waits, or takes long.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::other(format!("the host failed: {error}")))?
}

fn ended() -> Error {
    Error::unavailable("the host is ending")
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A runtime must not be dropped where it would have to wait for its threads.
        if let Some(guests) = self.guests.take() {
            guests.shutdown_background();
        }
    }
}
