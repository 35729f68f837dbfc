//! The other hosts, where this one is one of several.

use skillhost_api::error::{Error, Result};
use skillhost_api::types::{Check, HostList};

use super::Host;

/// What a host knows of those that it works with.
pub(crate) trait Others: Send + Sync {
    /// All of them, and this one.
    fn hosts(&self) -> HostList;

    /// What `doctor` says of them.
    fn checks(&self) -> Vec<Check>;
}

impl Host {
    /// What this host is to know of others.
    pub(super) fn others(&self) -> Result<&dyn Others> {
        self.others.get().map(|others| &**others).ok_or_else(|| {
            Error::unavailable(
                "this host works alone: `[cluster]` in skillhost.toml says with which others it would work as one",
            )
        })
    }
}
