//! The blackboard: keyed, versioned values that the agents of a session share.
//!
//! Embedded in the host's database. A write is acknowledged when it survives the death of every process, and every
//! write of a key raises its version by one.

mod glob;

use rusqlite::{OptionalExtension as _, Row, params};
use serde_json::Value;

pub(crate) use glob::matches;

use crate::api::types::BlackboardEntry;
use crate::caller::Caller;
use crate::db::Db;
use crate::error::{Error, Result};
use crate::units::now_ms;

/// The longest key, in bytes.
pub(crate) const MAX_KEY: usize = 256;
/// The longest value, in bytes of JSON text.
pub(crate) const MAX_VALUE: usize = 1024 * 1024;
/// The most entries of one session.
pub(crate) const MAX_ENTRIES: u64 = 10_000;
/// The most entries that one listing gives.
pub(crate) const MAX_LISTED: usize = 1_000;

/// The store.
#[derive(Debug, Clone)]
pub(crate) struct Blackboard {
    db: Db,
}

impl Blackboard {
    pub(crate) fn new(db: Db) -> Self {
        Self { db }
    }

    /// Writes a value; the answer is the entry with its new version.
    pub(crate) async fn publish(&self, caller: &Caller, key: &str, value: Value) -> Result<BlackboardEntry> {
        check_key(key)?;
        let text = value.to_string();
        if text.len() > MAX_VALUE {
            return Err(Error::too_large(format!(
                "the value of `{key}` has {} bytes of JSON, and at most {MAX_VALUE} are kept: publish a summary, or write a file",
                text.len()
            )));
        }
        let (scope, agent, key, now) = (caller.session_key(), caller.agent.clone(), key.to_owned(), now_ms());
        let written = self
            .db
            .run(move |transaction| {
                let count: u64 = transaction
                    .prepare_cached("SELECT count(*) FROM blackboard WHERE scope = ?1 AND key <> ?2")?
                    .query_row(params![scope, key], |row| row.get(0))?;
                if count >= MAX_ENTRIES {
                    return Ok(None);
                }
                transaction
                    .prepare_cached(
                        "INSERT INTO blackboard VALUES (?1, ?2, ?3, 1, ?4, ?4, ?5, ?5)
                         ON CONFLICT (scope, key) DO UPDATE SET
                             value = excluded.value, version = version + 1,
                             updated_at_ms = excluded.updated_at_ms, updated_by = excluded.updated_by
                         RETURNING key, value, version, created_at_ms, updated_at_ms, created_by, updated_by",
                    )?
                    .query_row(params![scope, key, text, now, agent], read)
                    .map(Some)
            })
            .await?;
        written.ok_or_else(|| {
            Error::quota_exceeded(format!("the session's blackboard holds its {MAX_ENTRIES} entries already"))
        })
    }

    /// Reads a value.
    pub(crate) async fn get(&self, caller: &Caller, key: &str) -> Result<Option<BlackboardEntry>> {
        check_key(key)?;
        let (scope, key) = (caller.session_key(), key.to_owned());
        self.db
            .run(move |transaction| {
                transaction.prepare_cached(&select("key = ?2"))?.query_row(params![scope, key], read).optional()
            })
            .await
    }

    /// The entries whose key matches `pattern` and passes `allowed`, by key; at most [`MAX_LISTED`].
    pub(crate) async fn list(
        &self,
        caller: &Caller,
        pattern: &str,
        allowed: impl Fn(&str) -> bool + Send + 'static,
    ) -> Result<Vec<BlackboardEntry>> {
        let (scope, pattern) = (caller.session_key(), pattern.to_owned());
        self.db
            .run(move |transaction| {
                let mut statement = transaction.prepare_cached(&select("true ORDER BY key"))?;
                let mut rows = statement.query(params![scope])?;
                let mut found = Vec::new();
                while let Some(row) = rows.next()?
                    && found.len() < MAX_LISTED
                {
                    let key: String = row.get(0)?;
                    if matches(&pattern, &key) && allowed(&key) {
                        found.push(read(row)?);
                    }
                }
                Ok(found)
            })
            .await
    }
}

fn select(condition: &str) -> String {
    format!(
        "SELECT key, value, version, created_at_ms, updated_at_ms, created_by, updated_by
         FROM blackboard WHERE scope = ?1 AND {condition}"
    )
}

fn read(row: &Row<'_>) -> rusqlite::Result<BlackboardEntry> {
    let text: String = row.get(1)?;
    Ok(BlackboardEntry {
        key: row.get(0)?,
        value: serde_json::from_str(&text).unwrap_or(Value::String(text)),
        version: row.get(2)?,
        created_at_ms: row.get(3)?,
        updated_at_ms: row.get(4)?,
        created_by: row.get(5)?,
        updated_by: row.get(6)?,
    })
}

/// Checks a key: 1 to [`MAX_KEY`] bytes of non-empty parts separated by `:`, without glob characters, whitespace or
/// control characters.
pub(crate) fn check_key(key: &str) -> Result<()> {
    let why = if key.is_empty() || key.len() > MAX_KEY {
        format!("a key has 1 to {MAX_KEY} bytes")
    } else if key.split(':').any(str::is_empty) {
        "a key neither starts nor ends with `:` and has no empty part".to_owned()
    } else if let Some(found) =
        key.chars().find(|c| matches!(c, '*' | '?' | '[' | ']') || c.is_whitespace() || c.is_control())
    {
        format!("a key has no {found:?}")
    } else {
        return Ok(());
    };
    Err(Error::invalid_argument(format!("the blackboard key {key:?} is not usable: {why}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::db::Durability;
    use crate::error::ErrorKind;

    fn board() -> (tempfile::TempDir, Blackboard) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(&dir.path().join("state.db"), Durability::Process).unwrap();
        (dir, Blackboard::new(db))
    }

    #[tokio::test]
    async fn versions_go_up_and_sessions_are_apart() {
        let (_dir, board) = board();
        let (me, other) = (Caller::default(), Caller { session: "other".into(), ..Caller::default() });
        assert_eq!(board.publish(&me, "a:b", json!({"n": 1})).await.unwrap().version, 1);
        let second = board.publish(&Caller { agent: "two".into(), ..me.clone() }, "a:b", json!(2)).await.unwrap();
        assert_eq!((second.version, second.created_by.as_str(), second.updated_by.as_str()), (2, "default", "two"));
        assert_eq!(board.get(&me, "a:b").await.unwrap().unwrap().value, json!(2));
        assert_eq!(board.get(&other, "a:b").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_listing_gives_what_matches_and_is_allowed() {
        let (_dir, board) = board();
        let me = Caller::default();
        for key in ["s:a", "s:b", "s:b:c", "t:a"] {
            board.publish(&me, key, Value::Null).await.unwrap();
        }
        let keys = |entries: Vec<BlackboardEntry>| entries.into_iter().map(|e| e.key).collect::<Vec<_>>();
        assert_eq!(keys(board.list(&me, "s:*", |_| true).await.unwrap()), ["s:a", "s:b"]);
        assert_eq!(keys(board.list(&me, "**", |key| key != "s:a").await.unwrap()), ["s:b", "s:b:c", "t:a"]);
    }

    #[tokio::test]
    async fn what_is_too_large_is_refused() {
        let (_dir, board) = board();
        let error = board.publish(&Caller::default(), "k", Value::String("x".repeat(MAX_VALUE))).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::TooLarge);
    }

    #[test]
    fn bad_keys_are_refused() {
        for key in ["", ":a", "a:", "a::b", "a*", "a b", "a\n", &"x".repeat(257)] {
            assert!(check_key(key).is_err(), "{key:?}");
        }
        check_key("shell:stream:a-1:000001").unwrap();
    }
}
