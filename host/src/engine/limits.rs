//! What one invocation may use, and the limiter that holds it to that.
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
//! | log bytes | the log sink | the rest is dropped and counted |
//!
//! Memory is summed because Wasmtime's own limit is per memory, and a component may have many. A refused growth is
//! remembered: guests meet it as a failed allocation and usually trap on something else, and whoever reads the
//! error wants the cause.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wasmtime::ResourceLimiter;

const MIB: usize = 1024 * 1024;

/// What one invocation may use. Every field has a default, and every one is enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Wall time of the whole call, host calls included.
    pub deadline: Duration,
    /// Bytes of all linear memories together.
    pub memory_bytes: usize,
    /// Units of fuel: about one for each WebAssembly instruction.
    pub fuel: u64,
    /// Elements of all tables together.
    pub table_elements: usize,
    /// Linear memories.
    pub memories: usize,
    /// Tables.
    pub tables: usize,
    /// Core instances.
    pub instances: usize,
    /// Bytes that one host call may make the host allocate for its arguments.
    pub host_call_bytes: usize,
    /// Live resources (containers, processes, streams).
    pub resources: usize,
    /// Bytes of log, standard output and standard error together.
    pub log_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(30),
            memory_bytes: 64 * MIB,
            fuel: 10_000_000_000,
            table_elements: 100_000,
            memories: 16,
            tables: 32,
            instances: 64,
            host_call_bytes: 16 * MIB,
            resources: 1_000,
            log_bytes: MIB,
        }
    }
}

/// A limit that bit, by the name that it has in `skill.toml`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hit {
    Memory,
    TableElements,
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
    pub(crate) hit: Option<Hit>,
}

impl Limiter {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            memory_left: limits.memory_bytes,
            elements_left: limits.table_elements,
            memories: limits.memories,
            tables: limits.tables,
            instances: limits.instances,
            hit: None,
        }
    }
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
            self.hit = Some(Hit::Memory);
        }
        Ok(allowed)
    }

    fn table_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let allowed = take(&mut self.elements_left, current, desired);
        if !allowed {
            self.hit = Some(Hit::TableElements);
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

    #[test]
    fn memory_is_summed_over_memories() {
        let mut limiter = Limiter::new(&Limits { memory_bytes: 3 * MIB, ..Limits::default() });
        assert!(limiter.memory_growing(0, 2 * MIB, None).unwrap());
        assert!(limiter.memory_growing(0, MIB, None).unwrap());
        assert!(!limiter.memory_growing(MIB, MIB + 1, None).unwrap());
        assert_eq!(limiter.hit, Some(Hit::Memory));
    }

    #[test]
    fn growth_beyond_a_memorys_own_maximum_is_not_charged() {
        let mut limiter = Limiter::new(&Limits { memory_bytes: 3 * MIB, ..Limits::default() });
        assert!(!limiter.memory_growing(0, 2 * MIB, Some(MIB)).unwrap());
        assert_eq!(limiter.hit, None);
        assert!(limiter.memory_growing(0, 3 * MIB, None).unwrap());
    }
}
