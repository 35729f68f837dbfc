//! The audit log: a record for every brokered effect, denials included.
//!
//! A record is written after the effect and before its answer is given: what a caller was told has happened is in the
//! log. Records hold sizes and digests, never contents.
//!
//! The log is bounded: where a record has no room, the oldest go, and a record of the host's own says how many went.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rusqlite::{Row, Transaction, params};
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::Actor;
use crate::api::types::{AuditList, AuditRecord};
use crate::db::Db;
use crate::error::{ErrorKind, Result};
use crate::units::now_ms;

/// How many records a follower may lag behind before it misses some.
const FOLLOW_BUFFER: usize = 1_024;
/// The most bytes of records that one listing gives; the next one goes on before its first.
const PAGE: u64 = 8 << 20;
/// How much of a record's facts is read: more than any that this version writes.
const MAX_READ: u64 = 32 << 10;
/// What a record takes up besides its facts, about.
const OVERHEAD: u64 = 128;
/// The fewest free pages of the database that one record is sure to fit into.
const PAGES: u64 = 32;
/// How many of the oldest records go at once.
const DROPPED_AT_ONCE: u64 = 64;
/// Who makes the records of the log itself.
const HOST: &str = "host";
/// Of how many records that went one record tells.
const DROPS_TOLD: u64 = 10_000;

/// The audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    db: Db,
    live: broadcast::Sender<AuditRecord>,
    under_way: Arc<AtomicUsize>,
    size: Arc<Size>,
}

/// How much there is. It is counted on the database's thread alone.
#[derive(Debug)]
struct Size {
    max: u64,
    /// What is committed, and what the transaction under way has changed of it.
    bytes: AtomicU64,
    /// Records that went since a record told of it.
    untold: AtomicU64,
}

/// A change of the size, which is taken back unless it is committed.
struct Change {
    size: Arc<Size>,
    added: u64,
    dropped: u64,
}

impl Change {
    fn of(size: Arc<Size>, added: u64, dropped: u64) -> Self {
        size.shift(added, dropped);
        Self { size, added, dropped }
    }

    fn committed(mut self) {
        (self.added, self.dropped) = (0, 0);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.size.shift(self.dropped, self.added);
    }
}

/// An effect that has no record yet.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Audit {
    /// The log, of at most `max` bytes.
    pub(crate) async fn open(db: Db, max: u64) -> Result<Self> {
        let bytes = db
            .run(|transaction| {
                let count = "SELECT coalesce(sum(octet_length(detail) + ?1), 0) FROM audit";
                transaction.query_row(count, [OVERHEAD], |row| row.get(0))
            })
            .await?;
        // The first that goes is told at once.
        let size = Size { max, bytes: AtomicU64::new(bytes), untold: AtomicU64::new(DROPS_TOLD) };
        Ok(Self { db, live: broadcast::channel(FOLLOW_BUFFER).0, under_way: Arc::default(), size: Arc::new(size) })
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
        record.seq = match self.write(&record).await {
            // The disk has just filled up, and the database has a reserve from now on.
            Err(full) if full.kind == ErrorKind::Unavailable => self.write(&record).await?,
            written => written?,
        };
        // Nobody follows: that is no failure.
        let _ = self.live.send(record);
        Ok(())
    }

    /// Writes a record; the answer is its number.
    async fn write(&self, record: &AuditRecord) -> Result<u64> {
        let (row, size, disk) = (record.clone(), self.size.clone(), self.db.disk().clone());
        let work = move |transaction: &Transaction<'_>| {
            let dropped = size.make_room(transaction, disk.is_full())?;
            let (seq, bytes) = insert(transaction, &row)?;
            Ok((seq, Change::of(size, dropped.added + bytes, dropped.bytes)))
        };
        let then = |(seq, change): (u64, Change)| {
            change.committed();
            seq
        };
        self.db.run_then(work, then).await
    }

    /// Refuses where the file system of the state directory is full.
    pub(super) fn has_room(&self) -> Result<()> {
        self.db.disk().has_room()
    }

    /// The last `lines` records before `before`, oldest first, and no more than fit into an answer.
    pub(crate) async fn tail(&self, lines: u32, before: Option<u64>) -> Result<AuditList> {
        self.db.run(move |transaction| tail(transaction, lines, before)).await
    }

    /// Records as they come.
    pub(crate) fn follow(&self) -> broadcast::Receiver<AuditRecord> {
        self.live.subscribe()
    }
}

/// What went to make room.
#[derive(Default)]
struct Dropped {
    bytes: u64,
    /// The bytes of the record that tells of it.
    added: u64,
}

impl Size {
    fn shift(&self, added: u64, dropped: u64) {
        let bytes = self.bytes.load(Ordering::Relaxed);
        self.bytes.store((bytes + added).saturating_sub(dropped), Ordering::Relaxed);
    }

    /// Drops the oldest records where there is no room for one more: within the log's bound, or, on a disk that is full,
    /// within the database.
    fn make_room(&self, transaction: &Transaction<'_>, disk_is_full: bool) -> rusqlite::Result<Dropped> {
        let fits = self.bytes.load(Ordering::Relaxed) < self.max;
        let has_pages = || {
            let free = "PRAGMA freelist_count";
            transaction.prepare_cached(free)?.query_row([], |row| row.get::<_, u64>(0)).map(|free| free >= PAGES)
        };
        if fits && (!disk_is_full || has_pages()?) {
            return Ok(Dropped::default());
        }
        let (mut last, mut records, mut bytes) = (0u64, 0, 0);
        let mut statement = transaction.prepare_cached(
            "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?1)
             RETURNING seq, octet_length(detail) + ?2",
        )?;
        let mut rows = statement.query([DROPPED_AT_ONCE, OVERHEAD])?;
        while let Some(row) = rows.next()? {
            last = last.max(row.get(0)?);
            records += 1;
            bytes += row.get::<_, u64>(1)?;
        }
        let untold = self.untold.load(Ordering::Relaxed) + records;
        if records == 0 || untold < DROPS_TOLD {
            self.untold.store(untold, Ordering::Relaxed);
            return Ok(Dropped { bytes, added: 0 });
        }
        self.untold.store(0, Ordering::Relaxed);
        let told = AuditRecord {
            seq: 0,
            at_ms: now_ms(),
            tenant: HOST.into(),
            session: HOST.into(),
            agent: HOST.into(),
            skill: None,
            invocation_id: None,
            effect: "audit.drop".into(),
            outcome: "ok".into(),
            detail: json!({ "through": last, "max_bytes": self.max }),
        };
        Ok(Dropped { bytes, added: insert(transaction, &told)?.1 })
    }
}

/// Writes a record. The answer is its number, and how many bytes it counts.
fn insert(transaction: &Transaction<'_>, record: &AuditRecord) -> rusqlite::Result<(u64, u64)> {
    let detail = record.detail.to_string();
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
            detail,
        ])?;
    let seq = u64::try_from(transaction.last_insert_rowid())
        .map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, transaction.last_insert_rowid()))?;
    Ok((seq, detail.len() as u64 + OVERHEAD))
}

fn tail(transaction: &Transaction<'_>, lines: u32, before: Option<u64>) -> rusqlite::Result<AuditList> {
    // An earlier version bounded nothing: of what it left no more is read than is shown.
    let mut statement = transaction.prepare_cached(
        "SELECT seq, at_ms, tenant, session, agent, skill, invocation_id, effect, outcome,
             CASE WHEN octet_length(detail) > ?3 THEN substr(detail, 1, ?3 / 4) ELSE detail END, octet_length(detail)
         FROM audit WHERE seq < ?2 ORDER BY seq DESC LIMIT ?1",
    )?;
    let before = before.map_or(i64::MAX, |before| i64::try_from(before).unwrap_or(i64::MAX));
    let mut rows = statement.query(params![lines, before, MAX_READ])?;
    let (mut list, mut bytes) = (AuditList::default(), 0);
    while let Some(row) = rows.next()? {
        let record = read(row)?;
        bytes += row.get::<_, u64>(10)?.min(MAX_READ) + OVERHEAD;
        if bytes > PAGE {
            list.more = true;
            break;
        }
        list.records.push(record);
    }
    list.records.reverse();
    Ok(list)
}

fn read(row: &Row<'_>) -> rusqlite::Result<AuditRecord> {
    let (detail, length): (String, u64) = (row.get(9)?, row.get(10)?);
    let detail = match detail.len() as u64 == length {
        true => serde_json::from_str(&detail).unwrap_or(Value::String(detail)),
        false => format!("{detail}… ({length} bytes)").into(),
    };
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
        detail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caller::Caller;
    use crate::db::Durability;

    const MIB: u64 = 1 << 20;

    async fn log(path: &std::path::Path, max: u64) -> Audit {
        Audit::open(Db::open(path, Durability::Process).unwrap(), max).await.unwrap()
    }

    fn actor() -> Actor {
        Actor::owner(Caller::default())
    }

    #[tokio::test]
    async fn a_flood_of_records_drops_the_oldest_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let audit = log(&path, MIB).await;
        let detail = json!({ "path": "x".repeat(4000) });
        let flood = async || {
            let (actor, detail) = (actor(), detail.clone());
            let all = (0..1000).map(|_| audit.record(&actor, "files.read", Ok(()), detail.clone()));
            futures_util::future::try_join_all(all).await.unwrap();
        };
        flood().await;
        let after_one = std::fs::metadata(&path).unwrap().len();
        flood().await;
        let sum = |db: &Db| {
            let db = db.clone();
            async move {
                db.run(|t| t.query_row("SELECT sum(octet_length(detail)) FROM audit", [], |row| row.get::<_, u64>(0)))
                    .await
                    .unwrap()
            }
        };
        assert!((MIB / 2..=MIB).contains(&sum(&audit.db).await), "{}", sum(&audit.db).await);
        assert!(std::fs::metadata(&path).unwrap().len() <= after_one + MIB, "the file does not grow with what came");
        let kept = audit.tail(10_000, None).await.unwrap().records;
        assert_eq!(kept.last().unwrap().seq, 2001, "the newest is there");
        assert_eq!(
            audit.size.bytes.load(Ordering::Relaxed),
            kept.iter().map(|r| r.detail.to_string().len() as u64 + OVERHEAD).sum::<u64>()
        );
    }

    #[tokio::test]
    async fn what_was_dropped_is_told_when_it_begins_and_a_failed_write_counts_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(&dir.path().join("state.db"), 20_000).await;
        for _ in 0..100 {
            audit.record(&actor(), "files.read", Ok(()), json!({ "path": "x".repeat(100) })).await.unwrap();
        }
        let told: Vec<_> =
            audit.tail(1000, None).await.unwrap().records.into_iter().filter(|r| r.effect == "audit.drop").collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((told[0].agent.as_str(), &told[0].detail["max_bytes"]), ("host", &json!(20_000)));
        let before = audit.size.bytes.load(Ordering::Relaxed);
        audit.db.run(|t| t.execute_batch("ALTER TABLE audit RENAME TO away")).await.unwrap();
        audit.record(&actor(), "files.read", Ok(()), json!({})).await.unwrap_err();
        assert_eq!(audit.size.bytes.load(Ordering::Relaxed), before);
    }

    #[tokio::test]
    async fn large_records_of_an_earlier_version_are_shown_cut_and_paged_by_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let audit = log(&path, 1 << 40).await;
        let large = json!({ "path": "é".repeat(4_000_000) }).to_string();
        for _ in 0..20 {
            let large = large.clone();
            let insert = "INSERT INTO audit VALUES (NULL, 1, 't', 's', 'a', NULL, NULL, 'files.read', 'not-found', ?1)";
            audit.db.run(move |t| t.execute(insert, [large])).await.unwrap();
        }
        for _ in 0..1000 {
            audit.record(&actor(), "files.read", Ok(()), json!({ "path": "x".repeat(20_000) })).await.unwrap();
        }
        let (mut seen, mut before) = (Vec::new(), None);
        loop {
            let page = audit.tail(10_000, before).await.unwrap();
            assert!(serde_json::to_string(&page).unwrap().len() < 2 * PAGE as usize);
            before = page.records.first().map(|first| first.seq);
            seen.splice(0..0, page.records);
            if !page.more {
                break;
            }
        }
        assert_eq!(seen.iter().map(|record| record.seq).collect::<Vec<_>>(), (1..=1020).collect::<Vec<_>>());
        let cut = seen[0].detail.as_str().unwrap();
        assert!(cut.ends_with(&format!("… ({} bytes)", large.len())) && cut.len() < 40_000, "{} bytes", cut.len());
    }
}
