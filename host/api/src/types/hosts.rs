//! The hosts of a cluster.

use serde::{Deserialize, Serialize};

/// Shows the hosts that work as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListHosts;

/// A host of the cluster, as it said of itself last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSummary {
    /// Its name.
    pub name: String,
    /// What it is known by: that of its state directory, the same after each start.
    pub id: String,
    /// Whether it is the one that answers.
    pub this: bool,
    /// skillhost's version.
    pub version: String,
    /// Whether new sessions may have their home there.
    pub accepts_sessions: bool,
    /// Sessions that it was asked for since it started, and is the home of.
    pub sessions: usize,
    /// Sandboxes that run there.
    pub sandboxes: usize,
    /// Its machine's cores.
    pub cores: usize,
    /// Since when it runs, milliseconds since 1970 by its own clock.
    pub started_at_ms: u64,
}

/// The hosts of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostList {
    /// Those that have been heard of lately, by name.
    pub hosts: Vec<HostSummary>,
    /// The number of `hosts`.
    pub count: usize,
}
