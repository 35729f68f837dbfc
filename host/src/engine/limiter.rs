//! How an invocation is held to its [`Limits`].
//!
//! | limit | counted by | when it is passed |
//! | --- | --- | --- |
//! | deadline | the clock, over the whole call with its host calls | the guest is interrupted |
//! | fuel | Wasmtime, an instruction or so each; the same on every machine | the guest traps |
//! | memory | [`Limiter`], summed over every linear memory | `memory.grow` fails, as when a machine is full |
//! | table elements | [`Limiter`], summed over every table | `table.grow` fails |
//! | memories, tables, instances | Wasmtime | instantiation fails |
//! | bytes per host call | Wasmtime, what it must allocate for one call's arguments | the guest traps |
//! | resources | the resource table | the guest traps |
//! | open files | `capabilities::OpenFiles` | opening fails with `quota` |
//! | effects | the broker, where each begins | the import fails with `quota-exceeded` |
//! | log bytes | the log sink | the rest is dropped and counted |
//!
//! Memory is summed because Wasmtime's own limit is per memory, and a component may have many. A refused growth is
//! remembered: guests meet it as a failed allocation and usually trap on something else, and whoever reads the
//! error wants the cause.

use wasmtime::ResourceLimiter;

use crate::skills::Limits;

/// A limit that was reached, by its name in `skill.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitHit {
    Memory,
    TableElements,
    OpenFiles,
}

/// Holds a store to its [`Limits`].
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_left: usize,
    elements_left: usize,
    memories: usize,
    tables: usize,
    instances: usize,
    /// What was refused last.
    pub(crate) hit: Option<LimitHit>,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory_left: size(limits.memory_bytes()),
            elements_left: size(limits.table_elements),
            memories: size(limits.memories),
            tables: size(limits.tables),
            instances: size(limits.instances),
            hit: None,
        }
    }
}

/// A limit as this machine counts: beyond its address space there is nothing to limit.
pub(super) fn size(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

fn take(left: &mut usize, current: usize, desired: usize) -> bool {
    match left.checked_sub(desired.saturating_sub(current)) {
        Some(rest) => {
            *left = rest;
            true
        }
        None => false,
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        // Growth beyond the memory's own maximum fails anyway, and would stay charged here.
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let allowed = take(&mut self.memory_left, current, desired);
        if !allowed {
            self.hit = Some(LimitHit::Memory);
        }
        Ok(allowed)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let allowed = take(&mut self.elements_left, current, desired);
        if !allowed {
            self.hit = Some(LimitHit::TableElements);
        }
        Ok(allowed)
    }

    fn instances(&self) -> usize {
        self.instances
    }

    fn tables(&self) -> usize {
        self.tables
    }

    fn memories(&self) -> usize {
        self.memories
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn memory_is_summed_over_memories() {
        let mut limiter = Limiter::new(&Limits { memory_mib: 3, ..Limits::default() });
        assert!(limiter.memory_growing(0, 2 * MIB, None).unwrap());
        assert!(limiter.memory_growing(0, MIB, None).unwrap());
        assert!(!limiter.memory_growing(MIB, MIB + 1, None).unwrap());
        assert_eq!(limiter.hit, Some(LimitHit::Memory));
    }

    #[test]
    fn growth_beyond_a_memorys_own_maximum_is_not_charged() {
        let mut limiter = Limiter::new(&Limits { memory_mib: 3, ..Limits::default() });
        assert!(!limiter.memory_growing(0, 2 * MIB, Some(MIB)).unwrap());
        assert_eq!(limiter.hit, None);
        assert!(limiter.memory_growing(0, 3 * MIB, None).unwrap());
    }
}
