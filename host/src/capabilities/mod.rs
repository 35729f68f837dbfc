//! What guests may import. Each interface of the WIT package has one file here; each call goes to the broker.
//! [`filesystem`] and [`network`] are the parts of WASI that are ours.
//!
//! Host work runs on the host's own runtime, not on the one that runs guests: a guest that computes cannot delay a
//! sandbox's answer to another. Every call ends at the invocation's deadline, and is aborted when the invocation goes.

mod blackboard;
#[cfg(feature = "cli")]
pub(crate) mod by_name;
mod files;
pub(crate) mod filesystem;
mod last_words;
mod log;
mod network;
mod output_stream;
mod sandbox;
mod scripts;
mod shell;

use std::sync::Arc;
use std::time::Instant;

use skillhost_api::error::{Error, ErrorKind, Result};
use wasmtime::component::{HasData, Linker, ResourceTable, ResourceTableError};

use crate::broker::Broker;
use crate::policy::Actor;
use crate::skills::imports::{INTERFACES, ImportKind};
use bindings::skillhost::skill::types::{self, Conflict, Error as WitError};
pub use blackboard::Subscription;
pub use filesystem::{FilesystemAccess, FilesystemView, OpenFiles};
pub use last_words::LastWords;
pub use log::Log;
pub use network::NetworkRefusals;
pub use output_stream::ProgramOutput;
pub use sandbox::{GuestProcess, GuestSandbox};
pub use shell::GuestShell;

mod bindings {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "everything",
        imports: { default: async | trappable },
        trappable_error_type: { "skillhost:skill/types.error" => super::GuestError },
        additional_derives: [serde::Serialize, serde::Deserialize],
        with: {
            "skillhost:skill/sandbox.container": super::GuestSandbox,
            "skillhost:skill/sandbox.process": super::GuestProcess,
            "skillhost:skill/sandbox.shell": super::GuestShell,
            "skillhost:skill/blackboard.subscription": super::Subscription,
        },
    });
}

/// What an invocation's imports work with.
pub struct Context {
    pub(crate) broker: Arc<Broker>,
    pub(crate) actor: Arc<Actor>,
    pub(crate) log: Log,
    pub(crate) deadline: Instant,
    /// The host's own runtime.
    pub(crate) runtime: tokio::runtime::Handle,
}

/// The part of a store that the imports see.
pub struct View<'a> {
    pub(crate) context: &'a mut Context,
    pub(crate) table: &'a mut ResourceTable,
    pub(crate) network: &'a mut NetworkRefusals,
}

/// Gives the imports their part of a store.
pub trait CapabilitiesView: FilesystemAccess {
    /// That part.
    fn capabilities(&mut self) -> View<'_>;
}

struct HasCapabilities;

impl HasData for HasCapabilities {
    type Data<'a> = View<'a>;
}

/// Adds every interface of the package to a linker, which has WASI already, and puts our part of WASI in its place.
pub fn add_to_linker<T: CapabilitiesView + 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    use bindings::skillhost::skill;
    INTERFACES.iter().try_for_each(|row| match row.kind {
        ImportKind::Types => skill::types::add_to_linker::<T, HasCapabilities>(linker, T::capabilities),
        ImportKind::Log => skill::log::add_to_linker::<T, HasCapabilities>(linker, T::capabilities),
        ImportKind::Sandbox => skill::sandbox::add_to_linker::<T, HasCapabilities>(linker, T::capabilities),
        ImportKind::Files => skill::files::add_to_linker::<T, HasCapabilities>(linker, T::capabilities),
        ImportKind::Scripts => skill::scripts::add_to_linker::<T, HasCapabilities>(linker, T::capabilities),
        ImportKind::Blackboard => skill::blackboard::add_to_linker::<T, HasCapabilities>(linker, T::capabilities),
        ImportKind::WasiFilesystem => filesystem::add_to_linker(linker),
        ImportKind::WasiSockets => network::add_to_linker(linker),
        // As wasmtime-wasi has them.
        ImportKind::WasiCli | ImportKind::WasiClocks | ImportKind::WasiIo | ImportKind::WasiRandom => Ok(()),
    })
}

/// The failure of a capability's function.
#[derive(Debug)]
pub enum GuestError {
    /// The guest is told of it.
    Told(Error),
    /// The guest is ended: it named what it does not have, or has too much.
    Trap(wasmtime::Error),
}

impl From<Error> for GuestError {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

impl From<ResourceTableError> for GuestError {
    fn from(error: ResourceTableError) -> Self {
        Self::Trap(error.into())
    }
}

impl types::Host for View<'_> {
    fn convert_error(&mut self, error: GuestError) -> wasmtime::Result<WitError> {
        match error {
            GuestError::Told(error) => Ok(error.into()),
            GuestError::Trap(error) => Err(error),
        }
    }
}

/// Aborts the task when dropped: the guest's call is gone.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Context {
    /// Runs `work` on the host's runtime until it is done, the deadline passes or the guest's call is gone.
    async fn on_host<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T, GuestError> {
        let deadline = self.deadline.into();
        let work = async move {
            tokio::time::timeout_at(deadline, work)
                .await
                .unwrap_or_else(|_| Err(Error::timed_out("the action's deadline passed during this call")))
        };
        let mut task = AbortOnDrop(self.runtime.spawn(work));
        match (&mut task.0).await {
            Ok(result) => Ok(result?),
            Err(error) => Err(Error::other(format!("the host failed in this call: {error}")).into()),
        }
    }

    /// The same, of work that is the broker's on behalf of this invocation.
    async fn brokered<T: Send + 'static, W: Future<Output = Result<T>> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Broker>, Arc<Actor>) -> W,
    ) -> Result<T, GuestError> {
        self.on_host(work(self.broker.clone(), self.actor.clone())).await
    }
}

impl From<Error> for WitError {
    fn from(error: Error) -> Self {
        let make = match error.kind {
            ErrorKind::Denied => Self::Denied,
            ErrorKind::QuotaExceeded => Self::QuotaExceeded,
            ErrorKind::Permission => Self::Permission,
            ErrorKind::InvalidArgument => Self::InvalidArgument,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::AlreadyExists => Self::AlreadyExists,
            ErrorKind::Conflict => match error.version {
                Some(version) => return Self::Conflict(Conflict { version, message: error.message }),
                // Version 0 would say that nothing is there.
                None => Self::Other,
            },
            ErrorKind::NotOwner => Self::NotOwner,
            ErrorKind::TimedOut => Self::TimedOut,
            ErrorKind::Cancelled => Self::Cancelled,
            ErrorKind::TooLarge => Self::TooLarge,
            ErrorKind::SandboxDied => Self::SandboxDied,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Other => Self::Other,
        };
        make(error.message)
    }
}
