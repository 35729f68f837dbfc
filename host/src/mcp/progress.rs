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
    /// What came too soon after what was told last.
    waits: Option<Told>,
}

/// One notification.
struct Told {
    progress: f64,
    total: Option<f64>,
    message: String,
}

impl Progress {
    pub(super) fn new(peer: Peer<RoleServer>, token: ProgressToken) -> Self {
        Self { peer, token, told: -1.0, told_at: None, output: 0.0, waits: None }
    }

    /// How long what waits has to wait; none when nothing does.
    pub(super) fn patience(&self) -> Option<Duration> {
        self.waits.as_ref()?;
        Some(self.told_at.map_or(Duration::ZERO, |at| BETWEEN.saturating_sub(at.elapsed())))
    }

    /// Tells of an event, or of output.
    pub(super) async fn heard(&mut self, piece: Output) {
        match piece {
            #[allow(clippy::cast_precision_loss, reason = "progress is a float there")]
            Output::Event(Event::Progress { done, total, message }) => {
                self.waits = Some(Told { progress: done as f64, total: total.map(|total| total as f64), message });
            }
            Output::Stdout(bytes) | Output::Stderr(bytes) => {
                #[allow(clippy::cast_precision_loss, reason = "progress is a float there")]
                let more = bytes.len() as f64;
                self.output += more;
                let before = self.waits.take().map(|waits| waits.message).unwrap_or_default();
                let message = last(before + &String::from_utf8_lossy(&bytes));
                self.waits = Some(Told { progress: self.output, total: None, message });
            }
            Output::Event(_) => return,
        }
        if self.patience().is_some_and(|patience| patience.is_zero()) {
            self.tell().await;
        }
    }

    /// Tells what waits.
    pub(super) async fn tell(&mut self) {
        let Some(Told { progress, total, message }) = self.waits.take() else { return };
        // It must go up.
        if progress <= self.told {
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

/// The end of a text, as much as one notification shows.
fn last(text: String) -> String {
    match text.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => text.get(text.ceil_char_boundary(more)..).unwrap_or_default().to_owned(),
        _ => text,
    }
}
