//! What makes sandboxes.
//!
//! A backend knows an engine and nothing of sessions, leases or callers: it builds what a [`SandboxSpec`] says, and
//! ends it. The conversation with the supervisor inside is the manager's; a backend only says which process the
//! supervisor is, as this host sees it, so that nobody else can pose as it.

pub mod docker;

use std::str::FromStr;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::spec::SandboxSpec;
use crate::error::{Error, Result};

/// The supervisor's name in a sandbox's control directory.
pub const SUPERVISOR_FILE: &str = "supervisor";
/// The socket's name in a sandbox's control directory.
pub use super::link::SOCKET_NAME as SOCKET_FILE;

/// An image's id in its engine, `sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageId(pub String);

/// What a backend says of itself when it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The engine and its version, in words.
    pub engine: String,
    /// What isolates its sandboxes, in a word or two.
    pub isolation: String,
    /// What a person should know; empty when all is well.
    pub notes: Vec<String>,
}

/// A sandbox that an engine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The engine's id.
    pub engine_id: String,
    /// The process id of its PID 1 as this host sees it.
    pub init_pid: i32,
    /// What isolates it, in a word or two.
    pub isolation: String,
    /// What the engine says that it could not do as asked.
    pub notes: Vec<String>,
}

/// A sandbox of this deployment that an engine has, running or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Our id, from its label.
    pub id: String,
    /// The engine's id.
    pub engine_id: String,
    /// Whether it runs.
    pub running: bool,
}

/// What makes sandboxes. Every call has a deadline of its own and fails with `unavailable` when the engine does not
/// answer by then. A call is awaited to its end by who makes it: none is dropped half way.
pub trait Backend: Send + Sync {
    /// Its name, `docker`.
    fn name(&self) -> &'static str;

    /// Asks the engine whether it can make sandboxes here.
    fn probe(&self) -> BoxFuture<'_, Result<Probe>>;

    /// The id of the image that `reference` names, if the engine has it.
    fn image<'a>(&'a self, reference: &'a str) -> BoxFuture<'a, Result<Option<ImageId>>>;

    /// Makes a sandbox and starts its supervisor. After an error nothing of it is left.
    fn launch<'a>(&'a self, spec: &'a SandboxSpec) -> BoxFuture<'a, Result<Running>>;

    /// Sees for itself that the running supervisor is confined as it was asked for; an engine's word is not enough.
    fn verify(&self, init_pid: i32) -> Result<()>;

    /// The process id of the sandbox's PID 1, if it runs.
    fn init_pid<'a>(&'a self, engine_id: &'a str) -> BoxFuture<'a, Result<Option<i32>>>;

    /// Ends and removes a sandbox: when this returns, no process of it is left. `grace` is what the supervisor gets to
    /// end by itself first. One that is gone already is fine.
    fn remove<'a>(&'a self, engine_id: &'a str, grace: Duration) -> BoxFuture<'a, Result<()>>;

    /// The sandboxes that bear the deployment's label.
    fn list<'a>(&'a self, deployment: &'a str) -> BoxFuture<'a, Result<Vec<Found>>>;
}

/// Which backend the operator wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Choice {
    /// The first that works here.
    #[default]
    Auto,
    /// A Docker-compatible engine.
    Docker,
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_lowercase().as_str() {
            "auto" => Ok(Self::Auto),
            "docker" => Ok(Self::Docker),
            _ => Err(Error::invalid_argument(format!("there is no backend {text:?}: use `auto` or `docker`"))),
        }
    }
}
