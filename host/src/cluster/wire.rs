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
    /// Whether its operator is taking it out of use.
    pub(super) draining: bool,
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
