//! Writes records to the audit log, and shows them to whoever follows it.

use std::sync::Arc;

use rusqlite::Transaction;
use skillhost_api::error::{ErrorKind, Result};
use skillhost_api::types::AuditRecord;
use tokio::sync::{broadcast, oneshot};

use super::audit_size::{LogSize, SizeChange};
use super::audit_under_way as begun;
use crate::db::{self, Db, WriteTurn, atomically};

/// How many records a follower may lag behind before it misses some.
const FOLLOW_BUFFER: usize = 1_024;

/// A record to be written, and what else it means.
#[derive(Debug, Clone)]
pub(super) struct NewRecord {
    pub(super) record: AuditRecord,
    /// The one that said that its effect had begun.
    pub(super) ended: Option<u64>,
    pub(super) is_under_way: bool,
}

impl From<AuditRecord> for NewRecord {
    /// Of what is over, and was never begun.
    fn from(record: AuditRecord) -> Self {
        Self { record, ended: None, is_under_way: false }
    }
}

/// Where records go; clones are the same.
#[derive(Debug, Clone)]
pub(super) struct AuditWriter {
    pub(super) db: Db,
    pub(super) size: Arc<LogSize>,
    live: broadcast::Sender<AuditRecord>,
}

impl AuditWriter {
    pub(super) fn new(db: Db, size: LogSize) -> Self {
        Self { db, size: Arc::new(size), live: broadcast::channel(FOLLOW_BUFFER).0 }
    }

    pub(super) fn follow(&self) -> broadcast::Receiver<AuditRecord> {
        self.live.subscribe()
    }

    /// Writes records, all of them or none; the answer are their numbers, once they last.
    pub(super) async fn write(&self, records: Vec<NewRecord>) -> Result<Vec<u64>> {
        let (send, receive) = oneshot::channel();
        self.put(WriteTurn::Here, records, move |written| {
            // Nobody waits any more: they stand all the same.
            let _ = send.send(written);
        });
        receive.await.unwrap_or_else(|_| Err(db::ended()))
    }

    /// The same, in their turn; `done` has the answer, where they are written.
    pub(super) fn put(
        &self,
        turn: WriteTurn,
        records: Vec<NewRecord>,
        done: impl FnOnce(Result<Vec<u64>>) + Send + 'static,
    ) {
        let records: Arc<[NewRecord]> = records.into();
        let (writer, again) = (self.clone(), records.clone());
        self.attempt(turn, records, move |written| match written {
            // The disk has just filled up, and the database has a reserve from now on.
            Err(full) if full.kind == ErrorKind::Unavailable => writer.attempt(WriteTurn::Next, again, done),
            written => done(written),
        });
    }

    fn attempt(
        &self,
        turn: WriteTurn,
        records: Arc<[NewRecord]>,
        done: impl FnOnce(Result<Vec<u64>>) + Send + 'static,
    ) {
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
        let live = self.live.clone();
        self.db.queue(turn, work, move |written: Result<Vec<(u64, SizeChange)>>| {
            let number = |(seq, change): (u64, SizeChange)| {
                change.committed();
                seq
            };
            let numbers = written.map(|written| written.into_iter().map(number).collect::<Vec<_>>());
            // Most often nobody follows.
            if let Ok(numbers) = &numbers
                && live.receiver_count() > 0
            {
                for (NewRecord { record, .. }, seq) in records.iter().zip(numbers) {
                    // Whoever followed may have left.
                    let _ = live.send(AuditRecord { seq: *seq, ..record.clone() });
                }
            }
            done(numbers);
        });
    }
}
