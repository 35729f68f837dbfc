//! Sandboxes made in advance, so that a launch need not wait for an engine.
//!
//! A warm sandbox is a whole one: its container runs, its supervisor is connected, its confinement was looked at. What it
//! lacks is a session: its workspace is a directory of nobody's, and no command has ever run in it. A launch that asks for
//! just what it is gives it the session's name by renaming that directory, which the mount follows, and its environment and
//! wall time by a message. So it serves a session that has no workspace yet; with one, the launch is an ordinary one.
//!
//! One is handed out once, and removed after use like any other: nothing of a session is ever there for another. They are
//! counted in an agent's quota from the launch on; before, their number is the operator's (`[pool]`). The host's record is
//! written when one is handed out, so those of a host that died are nobody's, and go.

mod fill;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use super::link::Link;
use super::sandbox_dir::SandboxDir;
use super::spec::SandboxInfo;

/// How many are kept ready.
#[derive(Debug, Clone, Default)]
pub struct PoolConfig {
    /// The number of sandboxes kept ready, by role.
    pub sizes: BTreeMap<String, usize>,
    /// Processes of each; a launch that asks for another number is an ordinary one.
    pub pids: u32,
}

/// Those that are ready.
#[derive(Default)]
pub(super) struct Pool {
    ready: Mutex<HashMap<String, VecDeque<PooledSandbox>>>,
    taken: Arc<Notify>,
    ending: watch::Sender<bool>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// A sandbox that was launched in advance.
pub(super) struct PooledSandbox {
    info: SandboxInfo,
    place: SandboxDir,
    link: Link,
}

impl Pool {
    fn ready(&self) -> MutexGuard<'_, HashMap<String, VecDeque<PooledSandbox>>> {
        self.ready.lock()
    }

    /// How many are ready, by role.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        self.ready().iter().map(|(role, warm)| (role.clone(), warm.len())).collect()
    }

    fn count(&self, role: &str) -> usize {
        self.ready().get(role).map_or(0, VecDeque::len)
    }
}
