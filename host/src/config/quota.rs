//! `[quota]`.

use serde::Deserialize;

/// What one agent may hold at once.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct QuotaLimits {
    /// Sandboxes (default 4).
    pub sandboxes: u32,
    /// Cores over all of them (default 4).
    pub cpus: f64,
    /// Memory over all of them, in MiB (default 8192).
    pub memory_mib: u64,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        Self { sandboxes: 4, cpus: 4.0, memory_mib: 8192 }
    }
}
