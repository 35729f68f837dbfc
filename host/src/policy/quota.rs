//! What an agent, a session and a tenant may hold at once: sandboxes with their cores, memory and processes, calls of skills, commands.
//!
//! Each is taken *before* the effect, of all holders in one step under one lock, and comes back when the [`Reservation`] is dropped.
//! Whoever holds the sandbox holds the reservation, so it comes back on every path: a failed launch, a cancelled
//! one, a stop, a death. Checking first and counting after the launch would let launches that run side by side pass together.
//!
//! A skill's sandboxes are stopped after its answer was given, so its next call may come before their share does. It waits
//! for those that are leaving, and for no others: what is refused is what the agent would have to give up.

use std::collections::HashMap;
use std::sync::Arc;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{NotUntil, RateLimiter};
use parking_lot::Mutex;
use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};

use super::stopping::{StoppingGuard, StoppingSandboxes};
use crate::config::{QuotaLimits, SharedQuota};

/// What is counted. Cores are counted in thousandths: a sum of fractions comes back to exactly nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counted {
    Sandboxes,
    MilliCpus,
    MemoryMib,
    Processes,
    Invocations,
    Commands,
}

impl Counted {
    const ALL: [Self; 6] =
        [Self::Sandboxes, Self::MilliCpus, Self::MemoryMib, Self::Processes, Self::Invocations, Self::Commands];

    /// The refusal of more than there may be.
    fn refusal(self, whose: Holding, held: u64, sum: Option<u64>, limit: u64) -> Error {
        let (who, table) = (whose.name(), whose.table());
        let sum = sum.unwrap_or(u64::MAX);
        Error::quota_exceeded(match self {
            Self::Sandboxes => format!(
                "the {who} has {held} of {limit} sandboxes already: stop one that is no longer needed, or raise {table} in skillhost.toml"
            ),
            Self::MilliCpus => format!(
                "the {who}'s sandboxes would have {} cores, and it may have {}: stop one that is no longer needed, or raise {table} in skillhost.toml",
                cores(sum),
                cores(limit)
            ),
            Self::MemoryMib | Self::Processes => format!(
                "the {who}'s sandboxes would have {sum} {}, and it may have {limit}: stop one that is no longer needed, or raise {table} in skillhost.toml",
                if self == Self::MemoryMib { "MiB of memory" } else { "processes" },
            ),
            Self::Invocations | Self::Commands => format!(
                "the {who} has {held} of {limit} {} under way already: wait until one has ended, or raise {table} in skillhost.toml",
                if self == Self::Invocations { "calls of skills" } else { "commands" },
            ),
        })
    }
}

/// How much of each.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Amounts([u64; Counted::ALL.len()]);

impl Amounts {
    /// A sandbox of this size.
    pub(crate) fn of_sandbox(cpus: f64, memory_mib: u64, processes: u64) -> Self {
        Self([1, milli(cpus), memory_mib, processes, 0, 0])
    }

    /// A call of a skill.
    pub(crate) fn of_invocation() -> Self {
        Self([0, 0, 0, 0, 1, 0])
    }

    /// A command.
    pub(crate) fn of_command() -> Self {
        Self([0, 0, 0, 0, 0, 1])
    }

    fn limits(quota: &SharedQuota) -> Self {
        let SharedQuota { sandboxes, cpus, memory_mib, processes, invocations, commands, .. } = quota;
        let limits = [*sandboxes, cpus.map(milli), *memory_mib, *processes, *invocations, *commands];
        Self(limits.map(|limit| limit.unwrap_or(u64::MAX)))
    }

    fn bounds_anything(&self) -> bool {
        self.0.iter().any(|limit| *limit != u64::MAX)
    }

    fn zip(self, other: Self) -> impl Iterator<Item = (Counted, u64, u64)> {
        Counted::ALL.into_iter().zip(self.0).zip(other.0).map(|((counted, one), other)| (counted, one, other))
    }
}

/// Whose share it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Holding {
    Agent,
    Session,
    Tenant,
}

impl Holding {
    const ALL: [Self; 3] = [Self::Agent, Self::Session, Self::Tenant];

    fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Session => "session",
            Self::Tenant => "tenant",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Self::Agent => "[quota]",
            Self::Session => "[quota.session]",
            Self::Tenant => "[quota.tenant]",
        }
    }

    fn holder(self, caller: &Caller) -> ShareHolder {
        let name = |name: &String| Some(name.clone());
        let (session, agent) = match self {
            Self::Agent => (name(&caller.session), name(&caller.agent)),
            Self::Session => (name(&caller.session), None),
            Self::Tenant => (None, None),
        };
        ShareHolder { tenant: caller.tenant.clone(), session, agent }
    }
}

/// One agent, all agents of a session, or all of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ShareHolder {
    tenant: String,
    session: Option<String>,
    agent: Option<String>,
}

type Holders = Arc<Mutex<HashMap<ShareHolder, Amounts>>>;
type CommandRate<C> =
    RateLimiter<ShareHolder, DefaultKeyedStateStore<ShareHolder>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// The counts of every holder.
pub(crate) struct Quota<C: Clock = DefaultClock> {
    /// Those that bound anything.
    limits: Vec<(Holding, Amounts)>,
    rates: [Option<CommandRate<C>>; Holding::ALL.len()],
    holders: Holders,
    leaving: Arc<StoppingSandboxes>,
    clock: C,
}

/// A share that is taken; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Reservation {
    holders: Holders,
    taken: Vec<(ShareHolder, Amounts)>,
}

impl Quota {
    pub(crate) fn new(limits: QuotaLimits) -> Self {
        Self::with_clock(limits, DefaultClock::default())
    }
}

impl<C: Clock + Clone> Quota<C> {
    fn with_clock(limits: QuotaLimits, clock: C) -> Self {
        let all = [limits.of_an_agent(), limits.session, limits.tenant];
        let rates = all.each_ref().map(|quota| {
            let rate = governor::Quota::per_second(quota.command_rate?);
            Some(RateLimiter::new(rate, DefaultKeyedStateStore::default(), clock.clone()))
        });
        let limits = Holding::ALL.into_iter().zip(all.each_ref().map(Amounts::limits));
        let limits = limits.filter(|(_, limits)| limits.bounds_anything()).collect();
        Self { limits, rates, holders: Arc::default(), leaving: Arc::default(), clock }
    }

    /// Says that one of the agent's sandboxes is being stopped, for as long as the answer lives.
    pub(crate) fn leave(&self, caller: &Caller) -> StoppingGuard {
        self.leaving.enter(caller)
    }

    /// [`Self::reserve`], and when that is refused, again after each of the agent's sandboxes that are leaving.
    pub(crate) async fn reserve_soon(&self, caller: &Caller, amounts: Amounts) -> Result<Reservation> {
        loop {
            let mut left = std::pin::pin!(self.leaving.left.notified());
            // From here on none that leaves is missed.
            left.as_mut().enable();
            // Before the count is asked for: what leaves in between has given its share back.
            let some_leave = self.leaving.are_any(caller);
            match self.reserve(caller, amounts) {
                Err(_) if some_leave => left.await,
                other => return other,
            }
        }
    }

    /// Takes so much, or says which limit stands in the way.
    pub(crate) fn reserve(&self, caller: &Caller, amounts: Amounts) -> Result<Reservation> {
        let mut all = self.holders.lock();
        for (whose, limits) in &self.limits {
            let held = all.get(&whose.holder(caller)).copied().unwrap_or_default();
            for ((counted, held, asked), limit) in held.zip(amounts).zip(limits.0) {
                // What is asked for was not checked yet: a sum that cannot even be counted is past every limit.
                let sum = held.checked_add(asked);
                if asked > 0 && sum.is_none_or(|sum| sum > limit) {
                    return Err(counted.refusal(*whose, held, sum, limit));
                }
            }
        }
        Ok(self.take(&mut all, caller, amounts))
    }

    /// Takes a command that begins now: one of those under way, and of those in this second.
    pub(crate) fn begin_command(&self, caller: &Caller) -> Result<Reservation> {
        let share = self.reserve(caller, Amounts::of_command())?;
        for (whose, rate) in Holding::ALL.into_iter().zip(&self.rates) {
            let Some(rate) = rate else { continue };
            rate.check_key(&whose.holder(caller)).map_err(|until: NotUntil<_>| {
                let wait = until.wait_time_from(self.clock.now());
                Error::quota_exceeded(format!(
                    "the {} has begun as many commands in this second as it may: try again in {} ms, or raise `command-rate` under {} \
                     in skillhost.toml",
                    whose.name(),
                    wait.as_millis() + 1,
                    whose.table()
                ))
            })?;
            // Who has begun nothing for a while is forgotten.
            if rate.len() > FORGET_RATES {
                rate.retain_recent();
            }
        }
        Ok(share)
    }

    /// Counts a sandbox that is there already, whatever the limits say: one that outlived the host that launched it.
    pub(crate) fn adopt(&self, caller: &Caller, amounts: Amounts) -> Reservation {
        let mut all = self.holders.lock();
        self.take(&mut all, caller, amounts)
    }

    /// How many sandboxes are taken, by all agents together.
    pub(crate) fn taken(&self) -> usize {
        let all = self.holders.lock();
        let agents = all.iter().filter(|(holder, _)| holder.agent.is_some());
        let [sandboxes, ..] = agents.fold([0; Counted::ALL.len()], |mut sum, (_, held)| {
            sum.iter_mut().zip(held.0).for_each(|(sum, held)| *sum += held);
            sum
        });
        usize::try_from(sandboxes).unwrap_or(usize::MAX)
    }

    fn take(&self, all: &mut HashMap<ShareHolder, Amounts>, caller: &Caller, amounts: Amounts) -> Reservation {
        let take = |(whose, _): &(Holding, Amounts)| {
            let holder = whose.holder(caller);
            let held = all.entry(holder.clone()).or_default();
            let mut taken = Amounts::default();
            for ((held, asked), taken) in held.0.iter_mut().zip(amounts.0).zip(&mut taken.0) {
                // As much as can be counted: what is given back is what was taken.
                *taken = asked.min(u64::MAX - *held);
                *held += *taken;
            }
            (holder, taken)
        };
        Reservation { holders: self.holders.clone(), taken: self.limits.iter().map(take).collect() }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut all = self.holders.lock();
        for (holder, taken) in &self.taken {
            if let Some(held) = all.get_mut(holder) {
                held.0.iter_mut().zip(taken.0).for_each(|(held, taken)| *held -= taken);
                if *held == Amounts::default() {
                    all.remove(holder);
                }
            }
        }
    }
}

/// How many holders' rates are remembered before those are forgotten that have begun nothing for a while.
const FORGET_RATES: usize = 1_024;

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the launch's own check")]
fn milli(cpus: f64) -> u64 {
    (cpus * 1000.0).round() as u64
}

#[allow(clippy::cast_precision_loss, reason = "thousandths of cores of one machine")]
fn cores(milli: u64) -> f64 {
    milli as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use governor::clock::FakeRelativeClock;
    use skillhost_api::error::ErrorKind;

    fn of_size(cpus: f64, memory_mib: u64) -> Amounts {
        Amounts::of_sandbox(cpus, memory_mib, 10)
    }

    #[test]
    fn each_limit_bites_and_what_is_dropped_comes_back() {
        let quota = Quota::new(QuotaLimits { sandboxes: 2, cpus: 1.0, memory_mib: 100, ..QuotaLimits::default() });
        let me = Caller::default();
        let first = quota.reserve(&me, of_size(0.1, 50)).unwrap();
        for (cpus, memory, what) in [(1.0, 10, "cores"), (0.1, 51, "MiB")] {
            let error = quota.reserve(&me, of_size(cpus, memory)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::QuotaExceeded);
            assert!(error.message.contains(what), "{error}");
        }
        let second = quota.reserve(&me, of_size(0.9, 50)).unwrap();
        assert!(quota.reserve(&me, of_size(0.0, 0)).unwrap_err().message.contains("2 of 2 sandboxes"));
        let other = Caller { agent: "other".into(), ..me.clone() };
        quota.reserve(&other, of_size(1.0, 100)).unwrap();
        drop((first, second));
        quota.reserve(&me, of_size(1.0, 100)).unwrap();
    }

    #[test]
    fn a_size_that_cannot_be_counted_is_refused_and_counts_for_nothing() {
        let boundless =
            QuotaLimits { sandboxes: 9, cpus: f64::INFINITY, memory_mib: u64::MAX, ..QuotaLimits::default() };
        for limits in [QuotaLimits::default(), boundless] {
            let (quota, me) = (Quota::new(limits), Caller::default());
            let one = quota.reserve(&me, of_size(1.0, 1)).unwrap();
            for (cpus, memory_mib) in [(1.0, u64::MAX), (f64::INFINITY, 1), (f64::MAX, 1)] {
                let error = quota.reserve(&me, of_size(cpus, memory_mib)).unwrap_err();
                assert_eq!(error.kind, ErrorKind::QuotaExceeded, "{cpus} {memory_mib}");
            }
            // One that is there already is counted as far as that goes, and gone without a trace.
            drop(quota.adopt(&me, of_size(f64::INFINITY, u64::MAX)));
            let two = quota.reserve(&me, of_size(1.0, 1)).unwrap();
            drop((one, two));
            assert_eq!(quota.taken(), 0);
        }
    }

    #[tokio::test]
    async fn what_is_leaving_is_waited_for_and_nothing_else() {
        let quota = Quota::new(QuotaLimits { sandboxes: 1, ..QuotaLimits::default() });
        let (me, other) = (Caller::default(), Caller { agent: "other".into(), ..Caller::default() });
        let (share, leave) = (quota.reserve(&me, of_size(1.0, 1)).unwrap(), quota.leave(&other));
        assert!(
            quota.reserve_soon(&me, of_size(1.0, 1)).await.is_err(),
            "another agent's sandbox brings this one nothing"
        );
        drop(leave);
        let leave = quota.leave(&me);
        let soon = quota.reserve_soon(&me, of_size(1.0, 1));
        let gone = async move {
            tokio::task::yield_now().await;
            drop(share);
            drop(leave);
        };
        let (soon, ()) = tokio::join!(soon, gone);
        let _taken = soon.unwrap();
        assert!(quota.reserve_soon(&me, of_size(1.0, 1)).await.is_err());
    }

    #[test]
    fn launches_side_by_side_never_pass_together() {
        let quota = Quota::new(QuotaLimits { sandboxes: 4, ..QuotaLimits::default() });
        let granted: Vec<_> = std::thread::scope(|scope| {
            let tries: Vec<_> =
                (0..32).map(|_| scope.spawn(|| quota.reserve(&Caller::default(), of_size(0.1, 1)))).collect();
            tries.into_iter().filter_map(|one| one.join().unwrap().ok()).collect()
        });
        assert_eq!(granted.len(), 4);
    }

    /// How many of these pass when all of them are asked for at once.
    fn at_once(
        quota: &Quota,
        asks: usize,
        amounts: Amounts,
        caller: impl Fn(usize) -> Caller + Sync,
    ) -> Vec<Reservation> {
        let (barrier, caller) = (&std::sync::Barrier::new(asks), &caller);
        std::thread::scope(|scope| {
            let ask = move |number| {
                let me = caller(number);
                barrier.wait();
                quota.reserve(&me, amounts).ok()
            };
            let asked: Vec<_> = (0..asks).map(|number| scope.spawn(move || ask(number))).collect();
            asked.into_iter().filter_map(|one| one.join().unwrap()).collect()
        })
    }

    #[test]
    fn each_share_is_exact_when_all_ask_at_once_and_comes_back_whole() {
        let agent = |number: usize| Caller { agent: format!("agent{number}"), ..Caller::default() };
        let session = |number: usize| Caller { session: format!("session{number}"), ..Caller::default() };
        let one = |_| Caller::default();
        let some = |limit| SharedQuota { sandboxes: limit, ..SharedQuota::default() };
        type Who = Box<dyn Fn(usize) -> Caller + Sync>;
        let size = Amounts::of_sandbox(0.5, 64, 10);
        let usual = QuotaLimits { sandboxes: 1000, cpus: 1000.0, memory_mib: 1 << 20, ..QuotaLimits::default() };
        let cases: [(QuotaLimits, Amounts, Who); 8] = [
            (QuotaLimits { sandboxes: 4, ..usual.clone() }, size, Box::new(one)),
            (QuotaLimits { cpus: 2.0, ..usual.clone() }, size, Box::new(one)),
            (QuotaLimits { memory_mib: 256, ..usual.clone() }, size, Box::new(one)),
            (QuotaLimits { processes: Some(40), ..usual.clone() }, size, Box::new(one)),
            (QuotaLimits { invocations: Some(4), ..usual.clone() }, Amounts::of_invocation(), Box::new(one)),
            (QuotaLimits { commands: 4, ..usual.clone() }, Amounts::of_command(), Box::new(one)),
            (QuotaLimits { session: some(Some(4)), ..usual.clone() }, size, Box::new(agent)),
            (QuotaLimits { tenant: some(Some(4)), ..usual }, size, Box::new(session)),
        ];
        for (limits, amounts, who) in cases {
            let quota = Quota::new(limits.clone());
            for _ in 0..3 {
                let held = at_once(&quota, 64, amounts, &who);
                assert_eq!(held.len(), 4, "{limits:?}");
                drop(held);
                assert!(quota.holders.lock().is_empty(), "something was not given back");
            }
        }
    }

    #[test]
    fn what_is_refused_for_one_holder_is_taken_from_none() {
        let limits = QuotaLimits {
            tenant: SharedQuota { sandboxes: Some(1), ..SharedQuota::default() },
            ..QuotaLimits::default()
        };
        let (quota, me) = (Quota::new(limits), Caller::default());
        let other = Caller { agent: "other".into(), ..me.clone() };
        let held = quota.reserve(&me, of_size(1.0, 1)).unwrap();
        let refused = quota.reserve(&other, of_size(1.0, 1)).unwrap_err();
        assert!(refused.message.contains("tenant") && refused.message.contains("[quota.tenant]"), "{refused}");
        assert_eq!(quota.taken(), 1);
        drop(held);
        assert!(quota.holders.lock().is_empty());
    }

    #[test]
    fn a_rate_is_exact_when_all_ask_at_once() {
        let rate = std::num::NonZeroU32::new(4);
        for limits in [
            QuotaLimits { command_rate: rate, ..QuotaLimits::default() },
            QuotaLimits {
                tenant: SharedQuota { command_rate: rate, ..SharedQuota::default() },
                ..QuotaLimits::default()
            },
        ] {
            let quota = Quota::with_clock(limits, FakeRelativeClock::default());
            let passed = std::thread::scope(|scope| {
                let asks: Vec<_> =
                    (0..64).map(|_| scope.spawn(|| quota.begin_command(&Caller::default()).is_ok())).collect();
                asks.into_iter().filter(|_| true).map(|one| one.join().unwrap()).filter(|passed| *passed).count()
            });
            assert_eq!(passed, 4);
            let refused = quota.begin_command(&Caller::default()).unwrap_err();
            assert!(refused.message.contains("command-rate"), "{refused}");
            quota.clock.advance(std::time::Duration::from_millis(250));
            quota.begin_command(&Caller::default()).unwrap();
            quota.begin_command(&Caller::default()).unwrap_err();
        }
    }
}
