//! The audit log: a record for every brokered effect, denials included.
//!
//! A record is written before an effect, `begun`, and another after it and before its answer is given: what a caller was told has
//! happened is in the log, and so is what was never answered. What a host died in the middle of has its end, `interrupted`, from the
//! next one. That of an approval, and of trust, is written before it counts. Records say who did what to what, commands included;
//! of contents they hold sizes and digests. While records cannot be written, no effect begins.
//!
//! The log is bounded: where a record has no room, the oldest go, and a record of the host's own says how many went. Counted
//! are the bytes of each record's texts and [`OVERHEAD`]; the database's file has up to a page more for each large one. What is left
//! is still a chain ([`super::audit_chain`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

use rusqlite::{Transaction, params};
use serde_json::{Value, json};
use skillhost_api::error::{ErrorKind, Result};
use skillhost_api::types::{AuditHead, AuditList, AuditRecord, AuditVerification, BEGUN};
use skillhost_api::units::now_ms;
use tokio::sync::broadcast;

use super::audit_chain::{self, ChainCheck, ChainLink};
use super::audit_pages;
use super::audit_under_way as begun;
use crate::db::{Db, atomically};
use crate::failpoint::reach;
use crate::policy::Actor;

/// How many records a follower may lag behind before it misses some.
const FOLLOW_BUFFER: usize = 1_024;
/// What a record takes up besides its texts, about.
pub(super) const OVERHEAD: u64 = 128;
/// The bytes of a record's texts, as the database counts them.
macro_rules! texts {
    () => {
        "octet_length(tenant) + octet_length(session) + octet_length(agent) + coalesce(octet_length(skill), 0)
         + coalesce(octet_length(invocation_id), 0) + octet_length(effect) + octet_length(outcome) + octet_length(detail)"
    };
}
/// The most that a record which tells of drops counts.
const MAX_TOLD: u64 = 320;
/// The fewest free pages of the database that one record is sure to fit into.
const PAGES: u64 = 32;
/// How many of the oldest records go at once.
const DROPPED_AT_ONCE: u64 = 64;
/// Who makes the records of the log itself.
const HOST: &str = "host";
/// Of how many records that went one record tells.
const DROPS_TOLD: i64 = 10_000;

/// What a record says of its effect: where in it, and how it went.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RecordStep {
    /// It is allowed and about to be done.
    Begins,
    /// It was begun well, by the record of this number if there is one, and goes on.
    GoesOn { begun: Option<u64> },
    /// It is over, as the record of this number has begun it if there is one.
    Ends { begun: Option<u64>, outcome: std::result::Result<(), ErrorKind> },
}

impl RecordStep {
    /// What stands in its record.
    fn outcome(self) -> &'static str {
        match self {
            Self::Begins => BEGUN,
            Self::GoesOn { .. } | Self::Ends { outcome: Ok(()), .. } => "ok",
            Self::Ends { outcome: Err(kind), .. } => kind.name(),
        }
    }

    /// The number of the record that it ends.
    fn ended(self) -> Option<u64> {
        match self {
            Self::Begins => None,
            Self::GoesOn { begun } | Self::Ends { begun, .. } => begun,
        }
    }

    fn is_under_way(self) -> bool {
        matches!(self, Self::Begins | Self::GoesOn { .. })
    }
}

impl From<std::result::Result<(), ErrorKind>> for RecordStep {
    fn from(outcome: std::result::Result<(), ErrorKind>) -> Self {
        Self::Ends { begun: None, outcome }
    }
}

/// A record to be written, and what else it means.
#[derive(Debug, Clone)]
struct NewRecord {
    record: AuditRecord,
    /// The one that said that its effect had begun.
    ended: Option<u64>,
    is_under_way: bool,
}

/// The audit log.
#[derive(Debug)]
pub(crate) struct Audit {
    db: Db,
    live: broadcast::Sender<AuditRecord>,
    under_way: Arc<AtomicUsize>,
    size: Arc<LogSize>,
    /// Records that could not be written, and of which none tells yet.
    lost: AtomicU64,
}

/// The size of the log. It is counted on the database's thread alone.
#[derive(Debug)]
struct LogSize {
    max: u64,
    /// What is committed, and what the transaction under way has changed of it.
    bytes: AtomicI64,
    /// Records that went since a record told of it.
    untold: AtomicI64,
}

/// A change of the size, which is taken back unless it is committed.
struct SizeChange {
    size: Arc<LogSize>,
    by: Delta,
}

#[derive(Clone, Copy, Default)]
struct Delta {
    bytes: i64,
    untold: i64,
}

impl SizeChange {
    fn of(size: Arc<LogSize>, by: Delta) -> Self {
        size.shift(by);
        Self { size, by }
    }

    fn committed(mut self) {
        self.by = Delta::default();
    }
}

impl Drop for SizeChange {
    fn drop(&mut self) {
        self.size.shift(Delta { bytes: -self.by.bytes, untold: -self.by.untold });
    }
}

/// An effect that has no record yet.
pub(super) struct UnrecordedEffect(Arc<AtomicUsize>);

impl Drop for UnrecordedEffect {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Audit {
    /// The log, of at most `max` bytes.
    pub(crate) async fn open(db: Db, max: u64) -> Result<Self> {
        let bytes = db
            .run(|transaction| {
                let count = concat!("SELECT coalesce(sum(", texts!(), " + ?1), 0) FROM audit");
                transaction.query_row(count, [OVERHEAD], |row| row.get(0))
            })
            .await?;
        let mut adopted = None;
        while let Some(last) = db.run(move |transaction| audit_chain::adopt(transaction, adopted)).await? {
            adopted = Some(last);
        }
        // The first that goes is told at once.
        let size = LogSize { max, bytes: AtomicI64::new(bytes), untold: AtomicI64::new(DROPS_TOLD) };
        let (live, size) = (broadcast::channel(FOLLOW_BUFFER).0, Arc::new(size));
        Ok(Self { db, live, under_way: Arc::default(), size, lost: AtomicU64::new(0) })
    }

    /// Ends what an earlier host process died in the middle of.
    pub(crate) async fn end_interrupted(&self) -> Result<()> {
        loop {
            let left = self.db.run(|transaction| begun::interrupted(transaction)).await?;
            let Some((last, _)) = left.last() else { return Ok(()) };
            let (last, mut records) = (*last, Vec::with_capacity(left.len()));
            for (number, record) in left {
                // Of one that went for want of room nothing is known.
                let Some(record) = record else { continue };
                records.push(NewRecord { record, ended: Some(number), is_under_way: false });
            }
            self.write_all(records).await?;
            self.db.run(move |transaction| begun::forget_through(transaction, last)).await?;
        }
    }

    /// Refuses an effect while records that were lost are not told of: it writes that first.
    pub(super) async fn check_sink(&self) -> Result<()> {
        let lost = self.lost.load(Ordering::Relaxed);
        if lost == 0 {
            return Ok(());
        }
        let told = AuditRecord { effect: "audit.lost".into(), ..of_host(json!({ "records": lost })) };
        let told = NewRecord { record: told, ended: None, is_under_way: false };
        self.write_all(vec![told])
            .await
            .map_err(|error| error.context("the audit log cannot be written, and without a record nothing is done"))?;
        // More may have been lost meanwhile.
        self.lost.fetch_sub(lost, Ordering::Relaxed);
        Ok(())
    }

    /// How many records were lost that the log does not tell of yet.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts an effect until its record is written.
    pub(super) fn under_way(&self) -> UnrecordedEffect {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnrecordedEffect(self.under_way.clone())
    }

    /// How many effects have begun and have no record yet.
    pub(crate) fn effects(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Writes a record; returns its number when it lasts. One that cannot be written is lost, and no effect begins until the log tells of that.
    pub(crate) async fn record(
        &self,
        actor: &Actor,
        effect: &'static str,
        step: impl Into<RecordStep>,
        detail: Value,
    ) -> Result<u64> {
        let step = step.into();
        let mut record = record_of(actor, effect, Ok(()), detail);
        record.outcome = step.outcome().into();
        let written = self
            .write_all(vec![NewRecord { record, ended: step.ended(), is_under_way: step.is_under_way() }])
            .await
            .map(|numbers| numbers.first().copied().unwrap_or_default());
        // What was to begin did not, so nothing is missing from the log.
        if let (Err(error), false) = (&written, matches!(step, RecordStep::Begins)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
            tracing::error!(
                "the record of {effect} is lost, and no effect begins until the log can tell of it: {error}"
            );
        }
        written
    }

    /// Writes records of what is over, all of them or none; returns when they last.
    pub(super) async fn record_all(&self, records: Vec<AuditRecord>) -> Result<()> {
        let whole = |record| NewRecord { record, ended: None, is_under_way: false };
        self.write_all(records.into_iter().map(whole).collect()).await.map(drop)
    }

    async fn write_all(&self, records: Vec<NewRecord>) -> Result<Vec<u64>> {
        let records: Arc<[NewRecord]> = records.into();
        let numbers = match self.write(&records).await {
            // The disk has just filled up, and the database has a reserve from now on.
            Err(full) if full.kind == ErrorKind::Unavailable => self.write(&records).await?,
            written => written?,
        };
        // Most often nobody follows.
        if self.live.receiver_count() > 0 {
            for (NewRecord { record, .. }, seq) in records.iter().zip(&numbers) {
                // Whoever followed may have left.
                let _ = self.live.send(AuditRecord { seq: *seq, ..record.clone() });
            }
        }
        Ok(numbers)
    }

    /// Writes records; the answer is their numbers.
    async fn write(&self, records: &Arc<[NewRecord]>) -> Result<Vec<u64>> {
        let (rows, size, disk) = (records.clone(), self.size.clone(), self.db.disk().clone());
        let work = move |transaction: &Transaction<'_>| {
            // Nothing goes for a record that does not come.
            atomically(transaction, |transaction| {
                let put = |new: &NewRecord| {
                    let (seq, by) = size.put(transaction, &new.record, disk.is_full())?;
                    let change = SizeChange::of(size.clone(), by);
                    if let Some(ended) = new.ended {
                        begun::end(transaction, ended)?;
                    }
                    if new.is_under_way {
                        begun::begin(transaction, seq)?;
                    }
                    Ok((seq, change))
                };
                rows.iter().map(put).collect::<rusqlite::Result<Vec<_>>>()
            })
        };
        let then = |written: Vec<(u64, SizeChange)>| {
            let number = |(seq, change): (u64, SizeChange)| {
                change.committed();
                seq
            };
            written.into_iter().map(number).collect()
        };
        self.db.run_then(work, then).await
    }

    /// Refuses where the file system of the state directory is full.
    pub(super) fn has_room(&self) -> Result<()> {
        self.db.disk().has_room()
    }

    /// The last `lines` records before `before`, oldest first, and no more than fit into an answer.
    pub(crate) async fn tail(&self, lines: u32, before: Option<u64>) -> Result<AuditList> {
        self.db.read(move |transaction| audit_pages::tail(transaction, lines, before)).await
    }

    /// The same with the records that say that something has begun.
    pub(crate) async fn tail_all(&self, lines: u32, before: Option<u64>) -> Result<AuditList> {
        self.db.read(move |transaction| audit_pages::tail_all(transaction, lines, before)).await
    }

    /// The records after `after`, oldest first, as many as fit into an answer.
    pub(crate) async fn page(&self, after: u64) -> Result<AuditList> {
        self.db.read(move |transaction| audit_pages::page(transaction, after)).await
    }

    /// Whether all records are what was written, in its order; and, where a head was kept, whether that is one of them.
    pub(crate) async fn verify(&self, kept: Option<AuditHead>) -> Result<AuditVerification> {
        let mut check = ChainCheck::new(kept);
        loop {
            match self.db.read(move |transaction| check.go_on(transaction)).await? {
                Ok(found) => return Ok(found),
                Err(rest) => check = rest,
            }
        }
    }

    /// What stands for the newest record and for all before it; none where there is no record.
    pub(super) async fn head(&self) -> Result<Option<AuditHead>> {
        let head = self.db.run(|transaction| audit_chain::last(transaction).map(|last| last.head())).await?;
        Ok((head.seq > 0).then_some(head))
    }

    /// Records as they come.
    pub(crate) fn follow(&self) -> broadcast::Receiver<AuditRecord> {
        self.live.subscribe()
    }
}

impl LogSize {
    fn shift(&self, by: Delta) {
        self.bytes.fetch_add(by.bytes, Ordering::Relaxed);
        self.untold.fetch_add(by.untold, Ordering::Relaxed);
    }

    /// Writes a record, and drops the oldest where there is no room for it: within the log's bound, or, on a disk that is
    /// full, within the database.
    fn put(&self, transaction: &Transaction<'_>, row: &AuditRecord, is_full: bool) -> rusqlite::Result<(u64, Delta)> {
        let detail = row.detail.to_string();
        let mut by = Delta { bytes: length(row, &detail), untold: 0 };
        let most = i64::try_from(self.max.saturating_sub(MAX_TOLD)).unwrap_or(i64::MAX);
        let has_pages = || {
            let free = "PRAGMA freelist_count";
            transaction.prepare_cached(free)?.query_row([], |row| row.get::<_, u64>(0)).map(|free| free >= PAGES)
        };
        let mut through = None;
        while self.bytes.load(Ordering::Relaxed) + by.bytes > most || is_full && !has_pages()? {
            let (records, bytes, last) = drop_oldest(transaction)?;
            let Some(last) = last else { break };
            by = Delta { bytes: by.bytes - bytes, untold: by.untold + records };
            through = Some(last);
        }
        if let Some(through) = through {
            reach("audit.dropped");
            audit_chain::drop_through(transaction, &through)?;
            let untold = self.untold.load(Ordering::Relaxed) + by.untold;
            if untold >= DROPS_TOLD {
                by.untold -= untold;
                by.bytes += tell_dropped(transaction, &through, self.max)?;
            }
        }
        let seq = insert(transaction, row, &detail)?;
        reach("audit.inserted");
        Ok((seq, by))
    }
}

/// Drops some of the oldest: how many, their bytes, and the last one's place in the chain.
fn drop_oldest(transaction: &Transaction<'_>) -> rusqlite::Result<(i64, i64, Option<ChainLink>)> {
    let mut statement = transaction.prepare_cached(concat!(
        "DELETE FROM audit WHERE seq IN (SELECT seq FROM audit ORDER BY seq LIMIT ?1) RETURNING seq, hash, ",
        texts!(),
        " + ?2"
    ))?;
    let mut rows = statement.query([DROPPED_AT_ONCE, OVERHEAD])?;
    let (mut records, mut bytes, mut last) = (0, 0, None::<ChainLink>);
    while let Some(row) = rows.next()? {
        records += 1;
        bytes += row.get::<_, i64>(2)?;
        let link = ChainLink::of(row)?;
        // In whatever order they come.
        last = last.filter(|last| last.seq > link.seq).or(Some(link));
    }
    Ok((records, bytes, last))
}

/// Writes the record that tells of drops; the answer is what it counts.
fn tell_dropped(transaction: &Transaction<'_>, through: &ChainLink, max: u64) -> rusqlite::Result<i64> {
    let detail = json!({ "through": through.seq, "hash": through.head().hash, "max_bytes": max });
    let told = AuditRecord { effect: "audit.drop".into(), ..of_host(detail) };
    let detail = told.detail.to_string();
    insert(transaction, &told, &detail)?;
    Ok(length(&told, &detail))
}

/// A record of the log's own, which has no number yet.
fn of_host(detail: Value) -> AuditRecord {
    AuditRecord {
        seq: 0,
        at_ms: now_ms(),
        tenant: HOST.into(),
        session: HOST.into(),
        agent: HOST.into(),
        skill: None,
        invocation_id: None,
        effect: String::new(),
        outcome: "ok".into(),
        detail,
    }
}

/// A record that has no number yet.
pub(super) fn record_of(
    actor: &Actor,
    effect: &'static str,
    outcome: std::result::Result<(), ErrorKind>,
    detail: Value,
) -> AuditRecord {
    AuditRecord {
        seq: 0,
        at_ms: now_ms(),
        tenant: actor.caller.tenant.clone(),
        session: actor.caller.session.clone(),
        agent: actor.caller.agent.clone(),
        skill: actor.skill.clone(),
        invocation_id: actor.invocation_id.clone(),
        effect: effect.into(),
        outcome: outcome.map_or_else(ErrorKind::name, |()| "ok").into(),
        detail,
    }
}

/// What a record counts.
fn length(record: &AuditRecord, detail: &str) -> i64 {
    let AuditRecord { seq: _, at_ms: _, tenant, session, agent, skill, invocation_id, effect, outcome, detail: _ } =
        record;
    let texts =
        [Some(tenant), Some(session), Some(agent), skill.as_ref(), invocation_id.as_ref(), Some(effect), Some(outcome)];
    let length = texts.into_iter().flatten().map(String::len).sum::<usize>() + detail.len();
    i64::try_from(length as u64 + OVERHEAD).unwrap_or(i64::MAX)
}

/// Writes a record. The answer is its number.
fn insert(transaction: &Transaction<'_>, record: &AuditRecord, detail: &str) -> rusqlite::Result<u64> {
    let link = audit_chain::last(transaction)?.next(record, detail);
    transaction
        .prepare_cached(
            "INSERT INTO audit (seq, at_ms, tenant, session, agent, skill, invocation_id, effect, outcome, detail, hash)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            link.seq,
            record.at_ms,
            record.tenant,
            record.session,
            record.agent,
            record.skill,
            record.invocation_id,
            record.effect,
            record.outcome,
            detail,
            link.hash(),
        ])?;
    Ok(link.seq)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::audit_pages::PAGE;
    use crate::db::Durability;
    use skillhost_api::caller::Caller;

    const MIB: u64 = 1 << 20;

    async fn log(path: &std::path::Path, max: u64) -> Audit {
        Audit::open(Db::open(path, Durability::Process).unwrap(), max).await.unwrap()
    }

    /// What all that is there counts.
    async fn count(audit: &Audit) -> i64 {
        Audit::open(audit.db.clone(), MIB).await.unwrap().size.bytes.load(Ordering::Relaxed)
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
        let left = count(&audit).await;
        assert!((MIB as i64 / 2..=MIB as i64).contains(&left), "{left}");
        assert!(std::fs::metadata(&path).unwrap().len() <= after_one + MIB, "the file does not grow with what came");
        let kept = audit.tail(10_000, None).await.unwrap().records;
        assert_eq!(kept.last().unwrap().seq, 2001, "the newest is there");
        assert_eq!(audit.size.bytes.load(Ordering::Relaxed), left);
    }

    #[tokio::test]
    async fn whatever_records_are_made_of_they_stay_within_the_bound() {
        let dir = tempfile::tempdir().unwrap();
        const MAX: i64 = 40_000;
        let audit = log(&dir.path().join("state.db"), MAX as u64).await;
        // Small ones, and then such as need more room than as many of those have; short facts of a long name, too.
        let long = "n".repeat(2_000);
        let caller = Caller { agent: long.clone(), session: long.clone(), ..Caller::default() };
        let named = Actor { skill: Some(long.clone()), ..Actor::owner(caller) };
        for (by, length) in [(&actor(), 1), (&actor(), 30_000), (&named, 1), (&actor(), 1), (&named, 20_000)] {
            for _ in 0..150 {
                audit.record(by, "files.read", Ok(()), json!({ "path": "x".repeat(length) })).await.unwrap();
                let bytes = count(&audit).await;
                assert!(bytes <= MAX, "{bytes} after one of {length}");
                assert_eq!(audit.size.bytes.load(Ordering::Relaxed), bytes);
            }
        }
        // A smaller bound holds from the first record on.
        let audit = Audit::open(audit.db.clone(), 5_000).await.unwrap();
        audit.record(&actor(), "files.read", Ok(()), json!({})).await.unwrap();
        assert!(count(&audit).await <= 5_000);
    }

    #[tokio::test]
    async fn what_tells_of_drops_has_the_room_that_is_kept_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(&dir.path().join("state.db"), MIB).await;
        let told = audit.db.run(|transaction| {
            let mut through = audit_chain::last(transaction)?;
            through.seq = u64::MAX;
            tell_dropped(transaction, &through, u64::MAX)
        });
        let told = told.await.unwrap();
        assert!((1..=MAX_TOLD as i64).contains(&told), "{told}");
    }

    #[tokio::test]
    async fn nothing_is_dropped_for_a_record_that_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let audit = log(&dir.path().join("state.db"), 20_000).await;
        let record =
            async |length| audit.record(&actor(), "files.read", Ok(()), json!({ "path": "x".repeat(length) })).await;
        while audit.tail(1000, None).await.unwrap().records.iter().all(|record| record.effect != "audit.drop") {
            record(1_000).await.unwrap();
        }
        let counts = || (audit.size.bytes.load(Ordering::Relaxed), audit.size.untold.load(Ordering::Relaxed));
        let refuse = "CREATE TRIGGER refused BEFORE INSERT ON audit BEGIN SELECT RAISE(FAIL, 'refused'); END";
        audit.db.run(move |t| t.execute_batch(refuse)).await.unwrap();
        let (before, left) = (counts(), count(&audit).await);
        // It would have no room beside what is there.
        record(19_000).await.unwrap_err();
        assert_eq!((counts(), count(&audit).await), (before, left));
        audit.db.run(|t| t.execute_batch("DROP TRIGGER refused")).await.unwrap();
        record(19_000).await.unwrap();
        assert_eq!(counts().0, count(&audit).await);
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
            let insert =
                "INSERT INTO audit VALUES (NULL, 1, 't', 's', 'a', NULL, NULL, 'files.read', 'not-found', ?1, NULL)";
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
