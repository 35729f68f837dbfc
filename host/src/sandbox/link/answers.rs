//! Whether the supervisor answers.
//!
//! The deadlines of what runs in a sandbox are kept by its supervisor, and one that is frozen (its container is paused, its
//! process is stopped, it gets no processor time) keeps none. So every renewal of the lease is answered, renewals come more
//! often while anything is under way, and when nothing at all has come for [`HelloConfig::silence`](super::HelloConfig), whoever
//! waits is told that the sandbox does not answer. A transfer is never cut for being long: the supervisor answers meanwhile.
//!
//! Such a sandbox is not ended: it is refused new work until it is heard of again. What was given up is killed then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use skillhost_api::error::{Error, Result};
use skillhost_protocol::ToSupervisor;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::connection::{LinkShared, millis};

/// What is known of the other end's answers.
#[derive(Debug)]
pub(super) struct Answers {
    /// What the sandbox is called.
    sandbox: String,
    lease: Duration,
    silence: Duration,
    /// Something has come since the last look.
    heard: AtomicBool,
    silent: watch::Sender<bool>,
    /// Renewals that were sent, and that were answered.
    asked: AtomicU64,
    answered: watch::Sender<u64>,
}

impl Answers {
    pub fn new(sandbox: String, lease: Duration, silence: Duration) -> Self {
        Self {
            sandbox,
            lease,
            silence,
            heard: AtomicBool::new(false),
            silent: watch::Sender::new(false),
            asked: AtomicU64::new(0),
            answered: watch::Sender::new(0),
        }
    }

    /// Something has come.
    pub fn hear(&self) {
        self.heard.store(true, Ordering::Relaxed);
        if self.are_missing() {
            tracing::info!("the sandbox {} answers again", self.sandbox);
            self.silent.send_replace(false);
        }
    }

    /// A renewal was answered.
    pub fn renewed(&self) {
        self.answered.send_modify(|count| *count += 1);
    }

    /// Whether the sandbox does not answer.
    pub fn are_missing(&self) -> bool {
        *self.silent.borrow()
    }

    /// Changes with [`Self::are_missing`].
    pub fn watch(&self) -> watch::Receiver<bool> {
        self.silent.subscribe()
    }

    /// What is to be said of a sandbox that does not answer.
    pub fn missing(&self) -> Error {
        Error::unavailable(format!(
            "the sandbox {} does not answer: nothing has come from its supervisor for {:?}, so it is paused, stopped or gets \
             no processor time; let it go on and try again, or stop it",
            self.sandbox, self.silence
        ))
    }
}

impl LinkShared {
    /// Renews the lease. The number of the renewal, which is answered once as many have been.
    fn renew(&self) -> Result<u64> {
        let number = self.answers.asked.fetch_add(1, Ordering::Relaxed) + 1;
        self.send(0, &ToSupervisor::Lease { ms: millis(self.answers.lease) })?;
        Ok(number)
    }

    /// Waits until the supervisor has taken all that was sent before; fails when it does not answer.
    pub(super) async fn confirm(&self) -> Result<()> {
        let (mut answered, mut silent, mut closed) =
            (self.answers.answered.subscribe(), self.answers.watch(), self.closed());
        if self.answers.are_missing() {
            return Err(self.answers.missing());
        }
        let number = self.renew()?;
        // The senders are this connection's own, so none of these waits ends for want of one.
        tokio::select! {
            biased;
            _ = answered.wait_for(|count| *count >= number) => Ok(()),
            _ = closed.wait_for(Option::is_some) => Err(self.died()),
            _ = silent.wait_for(|silent| *silent) => Err(self.answers.missing()),
        }
    }
}

/// Renews the lease, and watches for the answers.
pub(super) async fn keep_up(shared: Arc<LinkShared>) {
    let answers = &shared.answers;
    let (lease, silence) = (answers.lease / 3, answers.silence);
    let tick = (silence / 5).min(lease);
    let mut ticks = interval(tick);
    // Time in which this process itself did not run is counted once at most.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut renew_at, mut asked, mut quiet) = (Instant::now(), false, Duration::ZERO);
    loop {
        ticks.tick().await;
        let heard = answers.heard.swap(false, Ordering::Relaxed) || shared.has_unread();
        if heard {
            (asked, quiet) = (false, Duration::ZERO);
        } else if asked {
            quiet += tick;
            if quiet >= silence && !answers.are_missing() {
                tracing::warn!("the sandbox {} does not answer", answers.sandbox);
                answers.silent.send_replace(true);
            }
        }
        let due = Instant::now() >= renew_at;
        // One that does not answer has a renewal waiting already, and is not sent more than it can ever take.
        let wants = due || (!heard && !asked && shared.is_waited_for());
        if wants && !answers.are_missing() {
            if shared.renew().is_err() {
                return;
            }
            asked = true;
            if due {
                renew_at = Instant::now() + lease;
            }
        }
    }
}
