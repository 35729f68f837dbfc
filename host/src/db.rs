//! The embedded database: one file, one thread, one writer.
//!
//! Everything that lasts goes through one connection on one thread, so no lock is ever contended and a reader sees
//! what was written before it asked. Writes that arrive together share one transaction. A write is answered when
//! its transaction is committed to the write-ahead log: it survives the sudden death of every process. With
//! `durability = "power"` each commit also waits for the disk, and survives a power cut.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use anyhow::Context as _;
use rusqlite::{Connection, Transaction};
use tokio::sync::oneshot;

use crate::error::{Error, Result};

/// What a commit survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// The death of every process.
    #[default]
    Process,
    /// A power cut too.
    Power,
}

/// How many writes one transaction takes at most.
const BATCH: usize = 256;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    agent TEXT NOT NULL,
    skill TEXT,
    invocation_id TEXT,
    effect TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS blackboard (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    version INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trust (
    project TEXT PRIMARY KEY,
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// The version of [`SCHEMA`].
const VERSION: i64 = 1;

type Job = Box<dyn FnOnce(&Transaction<'_>) -> Reply + Send>;
/// Run after the commit, with whether it succeeded.
type Reply = Box<dyn FnOnce(std::result::Result<(), &str>)>;

/// The handle; clones share the thread, which ends with the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Db {
    jobs: mpsc::Sender<Job>,
}

impl Db {
    pub(crate) fn open(path: &Path, durability: Durability) -> anyhow::Result<Self> {
        let connection = connect(path, durability).with_context(|| {
            format!("cannot open the database {}; it is skillhost's own, move it away to start anew", path.display())
        })?;
        let (jobs, queue) = mpsc::channel();
        thread::Builder::new().name("database".into()).spawn(move || serve(connection, &queue))?;
        Ok(Self { jobs })
    }

    /// Runs `work` in a transaction and answers when that is committed.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (send, receive) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            let answer = work(transaction);
            Box::new(move |committed| {
                let answer = match (answer, committed) {
                    (Ok(value), Ok(())) => Ok(value),
                    (Err(error), _) => Err(failed(&error.to_string())),
                    (_, Err(error)) => Err(failed(error)),
                };
                // Nobody waits any more: the write stands all the same.
                let _ = send.send(answer);
            })
        });
        self.jobs.send(job).map_err(|_| failed("its thread has ended"))?;
        receive.await.map_err(|_| failed("its thread has ended"))?
    }
}

fn failed(why: &str) -> Error {
    Error::other(format!("the host's database failed: {why}; `skillhost doctor` looks at the state directory"))
}

fn connect(path: &Path, durability: Durability) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    let synchronous = match durability {
        Durability::Process => "off",
        Durability::Power => "full",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    anyhow::ensure!(version <= VERSION, "it was written by a later version of skillhost");
    connection.execute_batch(SCHEMA)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    Ok(connection)
}

fn serve(mut connection: Connection, queue: &mpsc::Receiver<Job>) {
    while let Ok(first) = queue.recv() {
        let mut replies = Vec::new();
        let committed = connection.transaction().and_then(|transaction| {
            replies.push(first(&transaction));
            while replies.len() < BATCH
                && let Ok(next) = queue.try_recv()
            {
                replies.push(next(&transaction));
            }
            transaction.commit()
        });
        let committed = committed.map_err(|error| error.to_string());
        for reply in replies {
            reply(committed.as_ref().copied().map_err(String::as_str));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_acknowledged_is_there_after_a_reopen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let db = Db::open(&path, Durability::Process).unwrap();
        db.run(|t| t.execute("INSERT INTO trust VALUES ('/p', 7)", [])).await.unwrap();
        // A second connection reads what the first has only acknowledged, not closed.
        let other = Db::open(&path, Durability::Process).unwrap();
        let at: u64 = other.run(|t| t.query_row("SELECT at_ms FROM trust", [], |row| row.get(0))).await.unwrap();
        assert_eq!(at, 7);
    }

    #[tokio::test]
    async fn a_failed_write_says_so_and_the_next_works() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("state.db"), Durability::Process).unwrap();
        let error = db.run(|t| t.execute("INSERT INTO nowhere VALUES (1)", [])).await.unwrap_err();
        assert!(error.message.contains("nowhere"), "{error}");
        db.run(|t| t.execute("INSERT INTO trust VALUES ('/p', 7)", [])).await.unwrap();
    }

    #[test]
    fn a_later_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        drop(Db::open(&path, Durability::Process).unwrap());
        Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
        let error = Db::open(&path, Durability::Process).unwrap_err();
        assert!(format!("{error:#}").contains("later version"), "{error:#}");
    }
}
