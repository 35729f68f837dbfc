//! What one agent may hold at once: sandboxes, cores, memory.
//!
//! Each is taken *before* the launch, in one step under one lock, and comes back when the [`Reservation`] is dropped.
//! Whoever holds the sandbox holds the reservation, so it comes back on every path: a failed launch, a cancelled
//! one, a stop, a death. Checking first and counting after the launch would let launches that run side by side pass together.
//!
//! A skill's sandboxes are stopped after its answer was given, so its next call may come before their share does. It waits
//! for those that are leaving, and for no others: what is refused is what the agent would have to give up.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};
use tokio::sync::Notify;

use crate::config::QuotaLimits;

/// Cores are counted in thousandths: a sum of fractions comes back to exactly nothing.
type MilliCpus = u64;

#[derive(Debug, Default, Clone, Copy)]
struct Used {
    sandboxes: u32,
    cpus: MilliCpus,
    memory_mib: u64,
}

/// The counts of every agent.
#[derive(Debug)]
pub(crate) struct Quota {
    limits: QuotaLimits,
    used: Arc<Mutex<HashMap<Caller, Used>>>,
    leaving: Arc<StoppingSandboxes>,
}

/// Sandboxes of each agent that are being stopped with nobody waiting for it.
#[derive(Debug, Default)]
struct StoppingSandboxes {
    counts: Mutex<HashMap<Caller, usize>>,
    left: Notify,
}

/// Counts one sandbox as being stopped until this is dropped.
#[derive(Debug)]
pub(crate) struct StoppingGuard {
    leaving: Arc<StoppingSandboxes>,
    caller: Caller,
}

impl Drop for StoppingGuard {
    fn drop(&mut self) {
        let mut counts = self.leaving.counts.lock();
        if let Some(count) = counts.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
        drop(counts);
        self.leaving.left.notify_waiters();
    }
}

/// A share that is taken; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Reservation {
    used: Arc<Mutex<HashMap<Caller, Used>>>,
    caller: Caller,
    share: Used,
}

impl Quota {
    pub(crate) fn new(limits: QuotaLimits) -> Self {
        Self { limits, used: Arc::default(), leaving: Arc::default() }
    }

    /// Says that one of the agent's sandboxes is being stopped, for as long as the answer lives.
    pub(crate) fn leave(&self, caller: &Caller) -> StoppingGuard {
        let mut counts = self.leaving.counts.lock();
        *counts.entry(caller.clone()).or_default() += 1;
        StoppingGuard { leaving: self.leaving.clone(), caller: caller.clone() }
    }

    fn some_leave(&self, caller: &Caller) -> bool {
        self.leaving.counts.lock().contains_key(caller)
    }

    /// [`Self::reserve`], and when that is refused, again after each of the agent's sandboxes that are leaving.
    pub(crate) async fn reserve_soon(&self, caller: &Caller, cpus: f64, memory_mib: u64) -> Result<Reservation> {
        loop {
            let mut left = std::pin::pin!(self.leaving.left.notified());
            // From here on none that leaves is missed.
            left.as_mut().enable();
            // Before the count is asked for: what leaves in between has given its share back.
            let some_leave = self.some_leave(caller);
            match self.reserve(caller, cpus, memory_mib) {
                Err(_) if some_leave => left.await,
                other => return other,
            }
        }
    }

    /// Takes one sandbox of this size, or says which limit stands in the way.
    pub(crate) fn reserve(&self, caller: &Caller, cpus: f64, memory_mib: u64) -> Result<Reservation> {
        let share = share(cpus, memory_mib);
        let mut all = self.used.lock();
        let used = all.get(caller).copied().unwrap_or_default();
        let remedy = "stop one that is no longer needed, or raise [quota] in skillhost.toml";
        if used.sandboxes >= self.limits.sandboxes {
            return Err(Error::quota_exceeded(format!(
                "the agent has {} of {} sandboxes already: {remedy}",
                used.sandboxes, self.limits.sandboxes
            )));
        }
        // What is asked for was not checked yet: a sum that cannot even be counted is past every limit.
        let allowed = milli(self.limits.cpus);
        let cpus = used.cpus.checked_add(share.cpus);
        if cpus.is_none_or(|cpus| cpus > allowed) {
            return Err(Error::quota_exceeded(format!(
                "the agent's sandboxes would have {} cores, and it may have {}: {remedy}",
                cores(cpus.unwrap_or(MilliCpus::MAX)),
                self.limits.cpus
            )));
        }
        let memory_mib = used.memory_mib.checked_add(share.memory_mib);
        if memory_mib.is_none_or(|memory_mib| memory_mib > self.limits.memory_mib) {
            return Err(Error::quota_exceeded(format!(
                "the agent's sandboxes would have {} MiB of memory, and it may have {}: {remedy}",
                memory_mib.unwrap_or(u64::MAX),
                self.limits.memory_mib
            )));
        }
        Ok(self.take(&mut all, caller, share))
    }

    /// Counts a sandbox that is there already, whatever the limits say: one that outlived the host that launched it.
    pub(crate) fn adopt(&self, caller: &Caller, cpus: f64, memory_mib: u64) -> Reservation {
        let mut all = self.used.lock();
        self.take(&mut all, caller, share(cpus, memory_mib))
    }

    /// How many sandboxes are taken, by all agents together.
    pub(crate) fn taken(&self) -> usize {
        let all = self.used.lock();
        all.values().map(|used| used.sandboxes as usize).sum()
    }

    fn take(&self, all: &mut HashMap<Caller, Used>, caller: &Caller, share: Used) -> Reservation {
        let used = all.entry(caller.clone()).or_default();
        // As much as can be counted: what is given back is what was taken.
        let share = Used {
            sandboxes: share.sandboxes.min(u32::MAX - used.sandboxes),
            cpus: share.cpus.min(MilliCpus::MAX - used.cpus),
            memory_mib: share.memory_mib.min(u64::MAX - used.memory_mib),
        };
        used.sandboxes += share.sandboxes;
        used.cpus += share.cpus;
        used.memory_mib += share.memory_mib;
        Reservation { used: self.used.clone(), caller: caller.clone(), share }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.used.lock();
        if let Some(used) = all.get_mut(&self.caller) {
            used.sandboxes -= self.share.sandboxes;
            used.cpus -= self.share.cpus;
            used.memory_mib -= self.share.memory_mib;
            if used.sandboxes == 0 {
                all.remove(&self.caller);
            }
        }
    }
}

fn share(cpus: f64, memory_mib: u64) -> Used {
    Used { sandboxes: 1, cpus: milli(cpus), memory_mib }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the launch's own check")]
fn milli(cpus: f64) -> MilliCpus {
    (cpus * 1000.0).round() as MilliCpus
}

#[allow(clippy::cast_precision_loss, reason = "thousandths of cores of one machine")]
fn cores(milli: MilliCpus) -> f64 {
    milli as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use skillhost_api::error::ErrorKind;

    #[test]
    fn each_limit_bites_and_what_is_dropped_comes_back() {
        let quota = Quota::new(QuotaLimits { sandboxes: 2, cpus: 1.0, memory_mib: 100 });
        let me = Caller::default();
        let first = quota.reserve(&me, 0.1, 50).unwrap();
        for (cpus, memory, what) in [(1.0, 10, "cores"), (0.1, 51, "MiB")] {
            let error = quota.reserve(&me, cpus, memory).unwrap_err();
            assert_eq!(error.kind, ErrorKind::QuotaExceeded);
            assert!(error.message.contains(what), "{error}");
        }
        let second = quota.reserve(&me, 0.9, 50).unwrap();
        assert!(quota.reserve(&me, 0.0, 0).unwrap_err().message.contains("2 of 2 sandboxes"));
        let other = Caller { agent: "other".into(), ..me.clone() };
        quota.reserve(&other, 1.0, 100).unwrap();
        drop((first, second));
        quota.reserve(&me, 1.0, 100).unwrap();
    }

    #[test]
    fn a_size_that_cannot_be_counted_is_refused_and_counts_for_nothing() {
        let boundless = QuotaLimits { sandboxes: 9, cpus: f64::INFINITY, memory_mib: u64::MAX };
        for limits in [QuotaLimits::default(), boundless] {
            let (quota, me) = (Quota::new(limits), Caller::default());
            let one = quota.reserve(&me, 1.0, 1).unwrap();
            for (cpus, memory_mib) in [(1.0, u64::MAX), (f64::INFINITY, 1), (f64::MAX, 1)] {
                let error = quota.reserve(&me, cpus, memory_mib).unwrap_err();
                assert_eq!(error.kind, ErrorKind::QuotaExceeded, "{cpus} {memory_mib}");
            }
            // One that is there already is counted as far as that goes, and gone without a trace.
            drop(quota.adopt(&me, f64::INFINITY, u64::MAX));
            let two = quota.reserve(&me, 1.0, 1).unwrap();
            drop((one, two));
            assert_eq!(quota.taken(), 0);
        }
    }

    #[tokio::test]
    async fn what_is_leaving_is_waited_for_and_nothing_else() {
        let quota = Quota::new(QuotaLimits { sandboxes: 1, ..QuotaLimits::default() });
        let (me, other) = (Caller::default(), Caller { agent: "other".into(), ..Caller::default() });
        let (share, leave) = (quota.reserve(&me, 1.0, 1).unwrap(), quota.leave(&other));
        assert!(quota.reserve_soon(&me, 1.0, 1).await.is_err(), "another agent's sandbox brings this one nothing");
        drop(leave);
        let leave = quota.leave(&me);
        let soon = quota.reserve_soon(&me, 1.0, 1);
        let gone = async move {
            tokio::task::yield_now().await;
            drop(share);
            drop(leave);
        };
        let (soon, ()) = tokio::join!(soon, gone);
        let _taken = soon.unwrap();
        assert!(quota.reserve_soon(&me, 1.0, 1).await.is_err());
    }

    #[test]
    fn launches_side_by_side_never_pass_together() {
        let quota = Quota::new(QuotaLimits { sandboxes: 4, ..QuotaLimits::default() });
        let granted: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..32).map(|_| scope.spawn(|| quota.reserve(&Caller::default(), 0.1, 1))).collect();
            tries.into_iter().filter_map(|one| one.join().unwrap().ok()).collect()
        });
        assert_eq!(granted.len(), 4);
    }
}
