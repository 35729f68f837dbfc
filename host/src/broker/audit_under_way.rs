//! Which records of the audit log say that something has begun and have no end yet. They are in the database, so that the end of what a
//! host died in the middle of is written by the next one.

use rusqlite::{OptionalExtension as _, Transaction};
use serde_json::Value;
use skillhost_api::types::AuditRecord;
use skillhost_api::units::now_ms;

use super::audit_chain::{FIELDS, read_record};

/// The outcome of what its host died in the middle of.
const INTERRUPTED: &str = "interrupted";
/// How many are ended at once.
const AT_ONCE: u32 = 100;

/// Remembers that the record of this number has no end.
pub(super) fn begin(transaction: &Transaction<'_>, number: u64) -> rusqlite::Result<()> {
    transaction.prepare_cached("INSERT INTO audit_under_way (seq) VALUES (?1)")?.execute([number]).map(drop)
}

/// Forgets that, for it has one.
pub(super) fn end(transaction: &Transaction<'_>, number: u64) -> rusqlite::Result<()> {
    transaction.prepare_cached("DELETE FROM audit_under_way WHERE seq = ?1")?.execute([number]).map(drop)
}

/// The same for all up to this number.
pub(super) fn forget_through(transaction: &Transaction<'_>, number: u64) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM audit_under_way WHERE seq <= ?1", [number]).map(drop)
}

/// The first records without an end, and the end of each. One that went for want of room has none.
pub(super) fn interrupted(transaction: &Transaction<'_>) -> rusqlite::Result<Vec<(u64, Option<AuditRecord>)>> {
    let mut statement = transaction.prepare("SELECT seq FROM audit_under_way ORDER BY seq LIMIT ?1")?;
    let numbers = statement.query_map([AT_ONCE], |row| row.get::<_, u64>(0))?.collect::<rusqlite::Result<Vec<_>>>()?;
    let begun = format!("SELECT {FIELDS}, detail FROM audit WHERE seq = ?1");
    let mut statement = transaction.prepare(&begun)?;
    let mut end = |number| {
        let record = statement.query_row([number], |row| {
            let detail: String = row.get("detail")?;
            read_record(row, serde_json::from_str(&detail).unwrap_or(Value::Null))
        });
        let end = |begun| AuditRecord { seq: 0, at_ms: now_ms(), outcome: INTERRUPTED.into(), ..begun };
        Ok((number, record.optional()?.map(end)))
    };
    numbers.into_iter().map(&mut end).collect()
}
