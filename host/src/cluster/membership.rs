//! That this host is one of them: its record, which it writes again and again.

use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use skillhost_api::error::{Error, Result};
use skillhost_api::units::now_ms;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::Cluster;
use super::lease;
use super::nats::SharedBucket;
use super::wire::HostRecord;
use crate::config::ClusterConfig;
use crate::host::Host;
use crate::ids::random_hex;

/// Between two beats. Several are missed before a lease ends.
const BEAT: Duration = Duration::from_secs(2);

pub(super) struct Membership {
    /// The state directory's: the same after each start.
    id: String,
    run: String,
    name: String,
    accepts_sessions: bool,
    started_at_ms: u64,
    bucket: SharedBucket,
    /// Of this host's record, as it was last written.
    revision: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl Membership {
    pub(super) fn new(host: &Arc<Host>, config: &ClusterConfig, bucket: SharedBucket) -> Result<Self> {
        let name = match &config.host {
            Some(name) => name.clone(),
            None => machine_name(),
        };
        Ok(Self {
            id: host.deployment(),
            run: random_hex(8)?,
            name,
            accepts_sessions: config.accepts_sessions,
            started_at_ms: now_ms(),
            bucket,
            revision: AtomicU64::new(0),
            problem: Mutex::default(),
        })
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Why the last beat failed.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Writes the record. What an earlier process of this host left is replaced; what another one writes now is not.
    async fn write(&self, record: &HostRecord) -> Result<()> {
        let value = serde_json::to_vec(record).map_err(|error| Error::other(error.to_string()))?;
        let known = self.revision.load(Ordering::Relaxed);
        if known != 0
            && let Some(revision) = self.bucket.replace(&self.id, value.clone().into(), known).await?
        {
            self.revision.store(revision, Ordering::Relaxed);
            return Ok(());
        }
        // The first one, one after a lapse, or one whose acknowledgement was lost.
        let kept = self.bucket.read(&self.id).await?;
        let other = kept.value.and_then(|value| serde_json::from_slice::<HostRecord>(&value).ok());
        if let Some(other) = other.filter(|other| other.run != self.run && known != 0) {
            return Err(Error::conflict(
                kept.revision,
                format!(
                    "another host process, {}, works with a copy of this state directory: each host needs one of its own",
                    other.name
                ),
            ));
        }
        match self.bucket.replace(&self.id, value.into(), kept.revision).await? {
            Some(revision) => self.revision.store(revision, Ordering::Relaxed),
            None => return Err(Error::unavailable("another host process writes the record of this one")),
        }
        Ok(())
    }

    /// Takes the record away: others need not wait until it expires.
    pub(super) async fn leave(&self) {
        let revision = self.revision.load(Ordering::Relaxed);
        if let Err(error) = self.bucket.remove(&self.id, revision).await {
            tracing::warn!("the other hosts are not told that this one leaves: {error}");
        }
    }
}

impl Cluster {
    /// Says that this host is there, which renews its lease.
    pub(super) async fn beat(&self) -> Result<()> {
        let sent = lease::now();
        let this = &self.membership;
        let status = self.host.status();
        let record = HostRecord {
            name: this.name.clone(),
            run: this.run.clone(),
            version: status.version,
            accepts_sessions: this.accepts_sessions,
            sessions: self.homes.held.len(),
            sandboxes: status.sandboxes,
            cores: std::thread::available_parallelism().map_or(1, NonZero::get),
            started_at_ms: this.started_at_ms,
        };
        this.write(&record).await?;
        self.lease.renew(sent);
        Ok(())
    }

    /// Has what went elsewhere in a lapse of the lease end here, for as long as it is not dropped. Beside the beats, which wait for
    /// none of it.
    pub(super) async fn keep_settling(&self) {
        let mut settled = None;
        let mut looks = beats();
        loop {
            looks.tick().await;
            let Some(term) = self.lease.term().filter(|term| settled != Some(*term)) else { continue };
            match self.homes.settle(term).await {
                Ok(()) => settled = Some(term),
                Err(error) => tracing::warn!("what has gone to other hosts is not all ended here yet: {error}"),
            }
        }
    }

    /// The same as [`Cluster::beat`], for as long as it is not dropped.
    pub(super) async fn keep_beating(&self) {
        let mut beats = beats();
        loop {
            beats.tick().await;
            let problem = self.beat().await.err().map(|error| error.message);
            if let Some(problem) = &problem {
                tracing::warn!("this host's lease is not renewed: {problem}");
            }
            *self.membership.problem.lock() = problem;
            self.peers.forget_gone();
        }
    }
}

fn beats() -> Interval {
    let mut beats = interval(BEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beats
}

/// As the machine calls itself, in characters that a name can have.
fn machine_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fits = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' };
    let name: String = name.chars().map(fits).take(32).collect();
    if name.is_empty() { "host".into() } else { name }
}
