//! The way out where the database is damaged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use skillhost_api::error::{Error, Result};
use tokio::time::timeout;

use super::StateDir;
use crate::db::{self, Db};

/// How long a host process that leaves may take.
const LEAVING: Duration = Duration::from_secs(30);

/// Puts the damaged database of a state directory aside; the answer is where. Refuses when it is whole, or in use.
pub async fn recover(state_dir: &Path) -> Result<PathBuf> {
    let state = StateDir::open(state_dir)?
        .ok_or_else(|| Error::not_found(format!("there is no state directory {}", state_dir.display())))?;
    let _starting = state.start_lock().await?;
    if state.connect().await?.is_some() {
        return Err(Error::invalid_argument(
            "a host process has the database in use: `skillhost host stop` ends it first",
        ));
    }
    let _lock = timeout(LEAVING, state.host_lock())
        .await
        .map_err(|_| Error::unavailable("the host process that leaves takes too long: try again"))??;
    Db::put_aside(&state.path().join(db::FILE))
}
