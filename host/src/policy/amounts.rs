//! How much of each thing that is counted against a share.

use serde::{Deserialize, Serialize};
use skillhost_api::error::{Error, Result};

use crate::config::SharedQuota;

/// What is counted. Cores are counted in thousandths: a sum of fractions comes back to exactly nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Sandboxes,
    MilliCpus,
    MemoryMib,
    Processes,
    Invocations,
    Commands,
}

impl Counted {
    pub(super) const ALL: [Self; 6] =
        [Self::Sandboxes, Self::MilliCpus, Self::MemoryMib, Self::Processes, Self::Invocations, Self::Commands];

    /// The refusal of more than there may be.
    pub(super) fn refusal(self, (who, table): (&str, &str), held: u64, sum: Option<u64>, limit: u64) -> Error {
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
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Amounts(pub(super) [u64; Counted::ALL.len()]);

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

    /// The same and so many more of calls and of commands, where any are wanted.
    #[cfg(feature = "cluster")]
    pub(crate) fn with_more_calls(self, more: u64) -> Self {
        self.with(
            Self([0, 0, 0, 0, more, more]),
            |wanted, more| if wanted > 0 { wanted.saturating_add(more) } else { 0 },
        )
    }

    pub(super) fn limits(quota: &SharedQuota) -> Self {
        let SharedQuota { sandboxes, cpus, memory_mib, processes, invocations, commands, .. } = quota;
        let limits = [*sandboxes, cpus.map(milli), *memory_mib, *processes, *invocations, *commands];
        Self(limits.map(|limit| limit.unwrap_or(u64::MAX)))
    }

    pub(super) fn bounds_anything(&self) -> bool {
        self.0.iter().any(|limit| *limit != u64::MAX)
    }

    /// Each of both.
    pub(crate) fn plus(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    /// What is left of each without the other.
    pub(crate) fn less(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    /// The same of what the limits bound, and `rest` of all else.
    pub(crate) fn of_what_is_bounded(self, limits: Self, rest: u64) -> Self {
        self.with(limits, |one, limit| if limit == u64::MAX { rest } else { one })
    }

    /// The smaller of each.
    #[cfg(feature = "cluster")]
    pub(crate) fn least(self, other: Self) -> Self {
        self.with(other, u64::min)
    }

    /// The larger of each.
    #[cfg(feature = "cluster")]
    pub(crate) fn most(self, other: Self) -> Self {
        self.with(other, u64::max)
    }

    fn with(mut self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(one, other)| *one = of(*one, other));
        self
    }

    /// Whether each is as much as the other's, or more.
    #[cfg(feature = "cluster")]
    pub(crate) fn covers(self, other: Self) -> bool {
        self.most(other) == self
    }

    /// Refuses more than there may be.
    pub(super) fn check(self, asked: Self, limits: Self, whose: (&str, &str)) -> Result<()> {
        for ((counted, held, asked), limit) in self.zip(asked).zip(limits.0) {
            // What is asked for was not checked yet: a sum that cannot even be counted is past every limit.
            let sum = held.checked_add(asked);
            if asked > 0 && sum.is_none_or(|sum| sum > limit) {
                return Err(counted.refusal(whose, held, sum, limit));
            }
        }
        Ok(())
    }

    /// What would be held of all that is asked for, where that is more than there may be.
    pub(super) fn beyond(self, asked: Self, limits: Self) -> Option<Self> {
        let wanted = self.with(asked, |held, asked| if asked > 0 { held.saturating_add(asked) } else { 0 });
        let all = wanted.0.iter().zip(limits.0);
        all.clone().any(|(wanted, limit)| *wanted > limit).then_some(wanted)
    }

    pub(super) fn zip(self, other: Self) -> impl Iterator<Item = (Counted, u64, u64)> {
        Counted::ALL.into_iter().zip(self.0).zip(other.0).map(|((counted, one), other)| (counted, one, other))
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded by the launch's own check")]
fn milli(cpus: f64) -> u64 {
    (cpus * 1000.0).round() as u64
}

#[allow(clippy::cast_precision_loss, reason = "thousandths of cores of one machine")]
fn cores(milli: u64) -> f64 {
    milli as f64 / 1000.0
}
