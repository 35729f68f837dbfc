//! The audit log: a record for every brokered effect, denials included.
//!
//! A record is written after the effect and before its answer is given: what a caller was told has happened is in the
//! log. Records hold sizes and digests, never contents.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rusqlite::{Row, Transaction, params};
use serde_json::Value;
use tokio::sync::broadcast;

use super::Actor;
use crate::api::types::AuditRecord;
use crate::db::Db;
use crate::error::{ErrorKind, Result};
use crate::units::now_ms;

/// How many records a follower may lag behind before it misses some.
const FOLLOW_BUFFER: usize = 1_024;

/// The audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    db: Db,
    live: broadcast::Sender<AuditRecord>,
    under_way: Arc<AtomicUsize>,
}

/// An effect that has no record yet.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Audit {
    pub(crate) fn new(db: Db) -> Self {
        Self { db, live: broadcast::channel(FOLLOW_BUFFER).0, under_way: Arc::default() }
    }

    /// Counts an effect until its record is written.
    pub(super) fn under_way(&self) -> UnderWay {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(self.under_way.clone())
    }

    /// How many effects have begun and have no record yet.
    pub(crate) fn effects(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Writes a record; returns when it lasts.
    pub(crate) async fn record(
        &self,
        actor: &Actor,
        effect: &'static str,
        outcome: std::result::Result<(), ErrorKind>,
        detail: Value,
    ) -> Result<()> {
        let outcome = match outcome {
            Ok(()) => "ok",
            Err(kind) => kind.name(),
        };
        let mut record = AuditRecord {
            seq: 0,
            at_ms: now_ms(),
            tenant: actor.caller.tenant.clone(),
            session: actor.caller.session.clone(),
            agent: actor.caller.agent.clone(),
            skill: actor.skill.clone(),
            invocation_id: actor.invocation_id.clone(),
            effect: effect.into(),
            outcome: outcome.into(),
            detail,
        };
        let row = record.clone();
        record.seq = self.db.run(move |transaction| insert(transaction, &row)).await?;
        // Nobody follows: that is no failure.
        let _ = self.live.send(record);
        Ok(())
    }

    /// The last `lines` records, oldest first.
    pub(crate) async fn tail(&self, lines: u32) -> Result<Vec<AuditRecord>> {
        self.db
            .run(move |transaction| {
                let mut statement = transaction.prepare_cached(
                    "SELECT seq, at_ms, tenant, session, agent, skill, invocation_id, effect, outcome, detail
                     FROM audit ORDER BY seq DESC LIMIT ?1",
                )?;
                let mut records = statement.query_map([lines], read)?.collect::<rusqlite::Result<Vec<_>>>()?;
                records.reverse();
                Ok(records)
            })
            .await
    }

    /// Records as they come.
    pub(crate) fn follow(&self) -> broadcast::Receiver<AuditRecord> {
        self.live.subscribe()
    }
}

fn insert(transaction: &Transaction<'_>, record: &AuditRecord) -> rusqlite::Result<u64> {
    transaction
        .prepare_cached(
            "INSERT INTO audit (at_ms, tenant, session, agent, skill, invocation_id, effect, outcome, detail)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?
        .execute(params![
            record.at_ms,
            record.tenant,
            record.session,
            record.agent,
            record.skill,
            record.invocation_id,
            record.effect,
            record.outcome,
            record.detail.to_string(),
        ])?;
    u64::try_from(transaction.last_insert_rowid())
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, transaction.last_insert_rowid()))
}

fn read(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let detail: String = row.get(9)?;
    Ok(AuditRecord {
        seq: row.get(0)?,
        at_ms: row.get(1)?,
        tenant: row.get(2)?,
        session: row.get(3)?,
        agent: row.get(4)?,
        skill: row.get(5)?,
        invocation_id: row.get(6)?,
        effect: row.get(7)?,
        outcome: row.get(8)?,
        detail: serde_json::from_str(&detail).unwrap_or(Value::String(detail)),
    })
}
