//! `[audit]`: how much of the audit log is kept.

use serde::Deserialize;

use super::Size;

/// `[audit]`: settings of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Bytes of records (2MiB to 1024GiB; default 256MiB); beyond that the oldest go.
    pub max_bytes: Size,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self { max_bytes: Size(256 << 20) }
    }
}

impl AuditConfig {
    /// The key that is out of its range, and the range.
    pub(super) fn out_of_range(&self) -> Option<&'static str> {
        (!(2 << 20..=1 << 40).contains(&self.max_bytes.0)).then_some("max-bytes: 2MiB to 1024GiB")
    }
}
