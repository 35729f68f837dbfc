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
CREATE TABLE IF NOT EXISTS board_entries (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    event INTEGER NOT NULL,
    used INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    room INTEGER NOT NULL,
    expires_at_ms INTEGER,
    created_at_ms INTEGER NOT NULL,
    updated_at_ms INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    updated_by TEXT NOT NULL,
    tags TEXT NOT NULL,
    metadata TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS board_entries_used ON board_entries (scope, room, used);
CREATE INDEX IF NOT EXISTS board_entries_expiry ON board_entries (expires_at_ms) WHERE expires_at_ms IS NOT NULL;
CREATE TABLE IF NOT EXISTS board_sessions (
    scope TEXT PRIMARY KEY,
    event INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    stream_entries INTEGER NOT NULL,
    stream_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS board_streams (
    exec_id TEXT PRIMARY KEY,
    container_id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    session TEXT NOT NULL,
    agent TEXT NOT NULL,
    started_at_ms INTEGER NOT NULL,
    chunks INTEGER NOT NULL,
    stdout_bytes INTEGER NOT NULL,
    stderr_bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS kept_skills (
    directory BLOB PRIMARY KEY,
    project BLOB,
    skill TEXT NOT NULL,
    component TEXT NOT NULL,
    manifest TEXT NOT NULL,
    approved INTEGER NOT NULL,
    reach TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS trust (
    project TEXT PRIMARY KEY,
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
";

/// The version of [`SCHEMA`].
const VERSION: i64 = 3;

/// What version 1 kept of the blackboard, taken over: the order of its events is that of its writes.
const FROM_VERSION_1: &str = "
INSERT INTO board_entries
    SELECT scope, key, version, place, 2 * place, length(CAST(key AS BLOB)) + length(CAST(value AS BLOB)) + 4, 0, NULL,
        created_at_ms, updated_at_ms, created_by, updated_by, '[]', '{}', value
    FROM (SELECT *, row_number() OVER (PARTITION BY scope ORDER BY updated_at_ms, key) AS place FROM blackboard);
INSERT INTO board_sessions
    SELECT scope, max(event), count(*), sum(bytes), 0, 0 FROM board_entries GROUP BY scope;
DROP TABLE blackboard;
";

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
        self.run_then(work, |value| value).await
    }

    /// The same; what `work` gave goes through `then` once it is committed. That happens on the database's own thread, in
    /// the order of the commits and before any later one, so it must not wait for anything.
    pub(crate) async fn run_then<T: 'static, U: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T> + Send + 'static,
        then: impl FnOnce(T) -> U + Send + 'static,
    ) -> Result<U> {
        let (send, receive) = oneshot::channel();
        let job: Job = Box::new(move |transaction| {
            let answer = work(transaction);
            Box::new(move |committed| {
                let answer = match (answer, committed) {
                    (Ok(value), Ok(())) => Ok(then(value)),
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

/// Does all of `work`, or nothing: what shares a transaction with it is not touched by its failure.
pub(crate) fn atomically<T>(
    transaction: &Transaction<'_>,
    work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    transaction.prepare_cached("SAVEPOINT job")?.execute([])?;
    let result = work(transaction);
    if result.is_err() {
        transaction.prepare_cached("ROLLBACK TO job")?.execute([])?;
    }
    transaction.prepare_cached("RELEASE job")?.execute([])?;
    result
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
    // All of it or nothing: what is interrupted here is done again.
    let taken_over = if version == 1 { FROM_VERSION_1 } else { "" };
    connection.execute_batch(&format!("BEGIN; {SCHEMA} {taken_over} PRAGMA user_version = {VERSION}; COMMIT;"))?;
    // One for each statement there is, so that none is compiled twice.
    connection.set_prepared_statement_cache_capacity(64);
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

    #[tokio::test]
    async fn what_fails_half_way_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("state.db"), Durability::Process).unwrap();
        let half = |t: &Transaction<'_>| {
            t.execute("INSERT INTO trust VALUES ('/p', 7)", [])?;
            t.execute("INSERT INTO nowhere VALUES (1)", [])
        };
        db.run(move |t| atomically(t, half)).await.unwrap_err();
        let left: u64 = db.run(|t| t.query_row("SELECT count(*) FROM trust", [], |row| row.get(0))).await.unwrap();
        assert_eq!(left, 0);
    }

    #[tokio::test]
    async fn what_follows_a_commit_has_its_order() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("state.db"), Durability::Process).unwrap();
        let (send, receive) = mpsc::channel();
        let writes = (0..500).map(|n| {
            let send = send.clone();
            let insert = "INSERT INTO trust VALUES (?1, 0)";
            // The number of rows is that of the commits so far.
            let work = move |t: &Transaction<'_>| {
                t.execute(insert, [n])?;
                t.query_row("SELECT count(*) FROM trust", [], |row| row.get::<_, u64>(0))
            };
            db.run_then(work, move |place| send.send(place).unwrap())
        });
        futures_util::future::try_join_all(writes).await.unwrap();
        assert_eq!(receive.try_iter().collect::<Vec<_>>(), (1..=500).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn an_earlier_blackboard_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(
            "CREATE TABLE blackboard (scope TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, version INTEGER NOT NULL,
                created_at_ms INTEGER NOT NULL, updated_at_ms INTEGER NOT NULL, created_by TEXT NOT NULL,
                updated_by TEXT NOT NULL, PRIMARY KEY (scope, key)) STRICT, WITHOUT ROWID;
            INSERT INTO blackboard VALUES ('s', 'b', '1', 4, 1, 9, 'x', 'y'), ('s', 'a', '22', 1, 2, 3, 'x', 'x');
            PRAGMA user_version = 1;",
        )
        .unwrap();
        drop(old);
        let db = Db::open(&path, Durability::Process).unwrap();
        let read = |t: &Transaction<'_>| {
            let session = "SELECT event, entries, bytes FROM board_sessions WHERE scope = 's'";
            let session = t.query_row(session, [], |row| <(u64, u64, u64)>::try_from(row))?;
            let entry = "SELECT version, event, value FROM board_entries WHERE scope = 's' AND key = 'b'";
            Ok((session, t.query_row(entry, [], |row| <(u64, u64, String)>::try_from(row))?))
        };
        let (session, entry) = db.run(read).await.unwrap();
        assert_eq!((session.0, session.1, entry), (2, 2, (4, 2, "1".to_owned())));
        assert_eq!(session.2, 3 + 2 * (1 + 4));
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
