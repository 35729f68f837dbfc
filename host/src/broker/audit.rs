//! The audit log: a record for every brokered effect, denials included.
//!
//! A record is written before an effect, `begun`, and another after it and before its answer is given: what a caller was told has
//! happened is in the log, and so is what was never answered. What a host died in the middle of has its end, `interrupted`, from the
//! next one. That of an approval, and of trust, is written before it counts. Records say who did what to what, commands included;
//! of contents they hold sizes and digests. While records cannot be written, no effect begins.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rusqlite::Transaction;
use serde_json::{Value, json};
use skillhost_api::error::{ErrorKind, Result};
use skillhost_api::types::{AuditHead, AuditList, AuditRecord, AuditVerification};
use tokio::sync::broadcast;

use super::audit_chain::{self, ChainCheck};
use super::audit_pages;
use super::audit_record::{RecordStep, of_host, record_of};
use super::audit_size::{self, LogSize, SizeChange};
use super::audit_under_way as begun;
use crate::db::{Db, atomically};
use crate::policy::Actor;

/// How many records a follower may lag behind before it misses some.
const FOLLOW_BUFFER: usize = 1_024;

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
    /// Held by who tells of them.
    telling: tokio::sync::Mutex<()>,
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
        let bytes = db.run(audit_size::bytes).await?;
        let mut adopted = None;
        while let Some(last) = db.run(move |transaction| audit_chain::adopt(transaction, adopted)).await? {
            adopted = Some(last);
        }
        let (live, size) = (broadcast::channel(FOLLOW_BUFFER).0, Arc::new(LogSize::new(max, bytes)));
        Ok(Self {
            db,
            live,
            under_way: Arc::default(),
            size,
            lost: AtomicU64::new(0),
            telling: tokio::sync::Mutex::default(),
        })
    }

    /// Ends what an earlier host process died in the middle of.
    pub(crate) async fn end_interrupted(&self) -> Result<()> {
        loop {
            let left = self.db.run(begun::interrupted).await?;
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
        if self.lost() == 0 {
            return Ok(());
        }
        let _telling = self.telling.lock().await;
        let lost = self.lost();
        if lost == 0 {
            // Somebody else has told of them meanwhile.
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
        let record = record_of(actor, effect, step, detail);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::audit_pages::PAGE;
    use crate::broker::audit_size::{MAX_TOLD, tell_dropped};
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
