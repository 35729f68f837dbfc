//! What waits for its owner, and what was done.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What waits for the machine's owner to approve it, or was approved and has not happened yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// `ap_` and 12 hexadecimal digits.
    pub id: String,
    /// The agent that asks.
    pub agent: String,
    /// Its session.
    pub session: String,
    /// The skill that asks, when one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skill: Option<String>,
    /// What kind of effect, as in the audit log.
    pub effect: String,
    /// What is to happen, cut after 4096 characters.
    pub what: String,
    /// Whether the owner has said yes.
    pub approved: bool,
}

/// What waits for approval, oldest first.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ApprovalList {
    /// Each.
    pub approvals: Vec<Approval>,
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
