//! What a call says on its way, as progress notifications.

use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::service::Peer;

use crate::api::types::Event;
use crate::host::Output;

/// The least time between two notifications: more of them tell nobody more, and a skill can make thousands.
const BETWEEN: Duration = Duration::from_millis(50);
/// How much of a command's output one notification shows.
const SHOWN: usize = 1_000;

/// Who wants to know, and what was told.
pub(super) struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    told: f64,
    told_at: Option<Instant>,
    output: f64,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, told: -1.0, told_at: None, output: 0.0 }
    }

    /// Tells of an event, or of output.
    pub(super) async fn heard(&mut self, piece: Output) {
        match piece {
            #[allow(clippy::cast_precision_loss, reason = "progress is a float there")]
            Output::Event(Event::Progress { done, total, message }) => {
                self.tell(done as f64, total.map(|total| total as f64), message).await;
            }
            Output::Stdout(bytes) | Output::Stderr(bytes) => {
                #[allow(clippy::cast_precision_loss, reason = "progress is a float there")]
                let more = bytes.len() as f64;
                self.output += more;
                let start = bytes.len().saturating_sub(SHOWN);
                let message = String::from_utf8_lossy(bytes.get(start..).unwrap_or_default()).into_owned();
                self.tell(self.output, None, message).await;
            }
            Output::Event(_) => {}
        }
    }

    async fn tell(&mut self, progress: f64, total: Option<f64>, message: String) {
        let is_last = total.is_some_and(|total| progress >= total);
        let too_soon = self.told_at.is_some_and(|at| at.elapsed() < BETWEEN);
        // It must go up.
        if progress <= self.told || (too_soon && !is_last) {
            return;
        }
        (self.told, self.told_at) = (progress, Some(Instant::now()));
        let mut param = ProgressNotificationParam::new(self.token.clone(), progress);
        if let Some(total) = total {
            param = param.with_total(total);
        }
        if !message.is_empty() {
            param = param.with_message(message);
        }
        // A client that left ends the call by leaving.
        let _ = self.peer.notify_progress(param).await;
    }
}
