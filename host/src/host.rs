//! The one door: opens state, config, catalogue, engine and broker, and answers calls.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::api::types::{Call, Event, HostStatus, Request, SkillList};
use crate::error::{Error, Result};

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
    /// Its name, as in flags and configuration.
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
    /// The configuration file, when one was named.
    pub config: Option<PathBuf>,
    /// The backend, when one was named.
    pub backend: Option<BackendChoice>,
    /// How long a background host process stays with nothing to do, when that was said.
    pub idle_timeout: Option<Duration>,
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

/// The host: everything behind the faces.
#[derive(Debug)]
pub struct Host {
    options: HostOptions,
}

impl Host {
    /// Opens everything that lasts. The caller holds the state directory's lock.
    pub async fn open(options: HostOptions) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { options }))
    }

    /// One call. Events and output go to `io`, input comes from it. Dropping the future cancels everything that the call started.
    pub async fn call(self: &Arc<Self>, call: Call, io: CallIo) -> Result<Value> {
        drop(io);
        let answer = match call.request {
            Request::ListSkills => serde_json::to_value(SkillList::default()),
            Request::HostStatus => serde_json::to_value(HostStatus {
                pid: std::process::id(),
                version: env!("CARGO_PKG_VERSION").into(),
                state_dir: self.options.state_dir.clone(),
                started_at_ms: 0,
                calls: 0,
                sandboxes: 0,
                backend: "none".into(),
            }),
            _ => return Err(Error::unavailable("this host cannot do that yet")),
        };
        answer.map_err(|error| Error::other(error.to_string()))
    }

    /// Whether it has calls under way or sandboxes: then it must not leave for idleness.
    pub fn busy(&self) -> bool {
        false
    }

    /// How long a background host process stays with nothing to do.
    pub fn idle_timeout(&self) -> Duration {
        self.options.idle_timeout.unwrap_or(Duration::from_secs(60))
    }

    /// Ends what runs and closes what is open.
    pub async fn shutdown(&self) {}
}
