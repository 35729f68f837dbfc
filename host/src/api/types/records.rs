//! What lasts: the blackboard and the audit log.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A blackboard value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BlackboardEntry {
    /// The key.
    pub key: String,
    /// Any JSON value.
    pub value: Value,
    /// One more with every write, from 1.
    pub version: u64,
    /// Milliseconds since 1970.
    pub created_at_ms: u64,
    /// Milliseconds since 1970.
    pub updated_at_ms: u64,
    /// The agent that created it.
    pub created_by: String,
    /// The agent that wrote it last.
    pub updated_by: String,
}

/// Blackboard values.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct BlackboardList {
    /// By key.
    pub entries: Vec<BlackboardEntry>,
    /// How many.
    pub count: usize,
}

/// One brokered effect, or its denial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// One more with every record, from 1.
    pub seq: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// The tenant.
    pub tenant: String,
    /// The session.
    pub session: String,
    /// The agent.
    pub agent: String,
    /// The skill, when one asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    /// The invocation, when a skill asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation_id: Option<String>,
    /// The effect: `sandbox.launch`, `sandbox.exec`, `files.copy-in`, `blackboard.publish` …
    pub effect: String,
    /// `ok`, or the error's kind.
    pub outcome: String,
    /// The effect's own facts (sizes, never contents).
    pub detail: Value,
}

/// Audit records.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AuditList {
    /// Oldest first.
    pub records: Vec<AuditRecord>,
}
