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
mod ticker;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use lru::LruCache;
use parking_lot::Mutex;
use skillhost_api::error::{Error, Result};
use tokio::sync::{OnceCell, Semaphore};
use wasmtime::PoolingAllocatorMetrics;
use wasmtime::component::{Component, InstancePre, Linker};

use crate::capabilities;
use crate::private_dir::PrivateDir;
pub use crate::skills::Limits;
use crate::subprocess::ProcessBounds;
use cache::Cache;
use compile::Compiler;
pub use config::{Allocation, config as wasmtime_config};
pub use invocation::{Invocation, InvocationResult, Preopen};
use ticker::Ticker;

/// How many components stay ready in memory; the one used longest ago goes first.
const MAX_READY: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Runs components.
pub struct Engine {
    engine: wasmtime::Engine,
    allocation: Allocation,
    linker: Linker<invocation::StoreData>,
    ticker: Ticker,
    cache: Arc<Cache>,
    ready: Mutex<LruCache<String, Arc<OnceCell<LinkedComponent>>>>,
    live: Arc<Semaphore>,
    /// One compile at a time: each uses every core.
    compiling: Semaphore,
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

/// A component that is compiled and linked: all but its instance.
#[derive(Clone)]
pub struct LinkedComponent {
    pre: InstancePre<invocation::StoreData>,
}

impl Engine {
    /// Makes the engine; compiled code is kept in `cache`. `program`, a `skillhost`, compiles in a process of its own,
    /// held to `bounds`; without one, this process does, and nothing bounds it.
    pub(crate) fn open(cache: PrivateDir, program: Option<PathBuf>, bounds: ProcessBounds) -> anyhow::Result<Self> {
        let (engine, allocation) = config::engine()?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        capabilities::add_to_linker(&mut linker)?;
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2));
        let guests = tokio::runtime::Builder::new_multi_thread()
            .thread_name("guest")
            .worker_threads(threads)
            .enable_all()
            .build()
            .context("cannot start the threads that run skills")?;
        Ok(Self {
            ticker: Ticker::start(&engine).context("cannot start the thread that interrupts skills")?,
            cache: Arc::new(Cache::new(cache, program.map(|program| Compiler { program, bounds }))),
            ready: Mutex::new(LruCache::new(MAX_READY)),
            live: Arc::new(Semaphore::new(usize::try_from(config::MAX_LIVE)?)),
            compiling: Semaphore::new(1),
            guests: Some(guests),
            beginning: Semaphore::new(
                tokio::runtime::Handle::current().metrics().num_workers().saturating_sub(1).max(1),
            ),
            engine,
            allocation,
            linker,
        })
    }

    /// How instances get their memory.
    pub fn allocation(&self) -> Allocation {
        self.allocation
    }

    /// The component with this digest, compiled and linked. `bytes` is asked only when it is not ready; what it gives must
    /// have that digest.
    pub async fn prepare<B>(&self, digest: &str, bytes: B) -> Result<LinkedComponent>
    where
        B: AsyncFnOnce() -> Result<Vec<u8>>,
    {
        let cell = self.ready.lock().get_or_insert_ref(digest, Arc::default).clone();
        let prepared = cell.get_or_try_init(async || {
            let bytes = bytes().await?;
            let _turn = self.compiling.acquire().await.map_err(|_| ended())?;
            let (engine, cache, digest) = (self.engine.clone(), self.cache.clone(), digest.to_owned());
            let component = tokio::task::spawn_blocking(move || cache.component(&engine, &digest, &bytes))
                .await
                .map_err(|error| Error::other(format!("compiling failed: {error}")))??;
            self.link(&component)
        });
        Ok(prepared.await?.clone())
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

    fn link(&self, component: &Component) -> Result<LinkedComponent> {
        let pre = self.linker.instantiate_pre(component).map_err(|error| {
            Error::invalid_argument(format!("the component imports what this host does not have: {error:#}"))
        })?;
        Ok(LinkedComponent { pre })
    }
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
