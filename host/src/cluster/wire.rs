//! What hosts say to one another, beside the frames of their streams.

use serde::{Deserialize, Serialize};
use skillhost_api::types::Call;

/// What a host says of itself with each beat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HostRecord {
    /// The name that its operator gave it, or its machine's.
    pub(super) name: String,
    /// The process: another one for each start.
    pub(super) run: String,
    pub(super) version: String,
    /// Whether new sessions may have their home there.
    pub(super) accepts_sessions: bool,
    /// Sessions that it was asked for since it started, and is the home of.
    pub(super) sessions: usize,
    pub(super) sandboxes: usize,
    pub(super) cores: usize,
    pub(super) started_at_ms: u64,
}

/// Where a session has its home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HomeRecord {
    /// The host's id.
    pub(super) host: String,
    /// Nothing was known of the session before: what that host has of it, from a time before it was one of several or after the servers
    /// have lost what they kept, is the session's.
    pub(super) first: bool,
}

impl HostRecord {
    /// Whether it can be shown as it is: it comes from the network.
    pub(super) fn is_plain(&self) -> bool {
        let plain = |text: &str| (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_graphic());
        plain(&self.name) && plain(&self.version)
    }
}

/// Asks for a stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenStream {
    /// Where the asker listens.
    pub(super) from: String,
}

/// Where the host that was asked for one listens.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenedStream {
    pub(super) at: String,
}

/// A call on its way to the home of its session.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoutedCall<C = Call> {
    /// The revision of the session's home, as the asker knows it.
    pub(super) home: u64,
    pub(super) call: C,
}
