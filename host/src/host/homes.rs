//! What a host keeps of the sessions that it is the home of, where it is one of several.

use rusqlite::OptionalExtension as _;
use skillhost_api::caller::Caller;
use skillhost_api::error::Result;

use super::{Host, Others};
use crate::config::ClusterConfig;

impl Host {
    /// The others that this host is to work with.
    pub(crate) fn cluster(&self) -> Option<&ClusterConfig> {
        self.config.cluster.as_ref()
    }

    /// Has it answer what is asked about the others; once.
    pub(crate) fn know_others(&self, others: Box<dyn Others>) {
        let _ = self.others.set(others);
    }

    /// The random name of the state directory.
    pub(crate) fn deployment(&self) -> String {
        self.broker.sandboxes().deployment().to_owned()
    }

    /// With which revision of its record this host was the home of a session last.
    pub(crate) async fn home_revision(&self, session: &str) -> Result<Option<u64>> {
        let session = session.to_owned();
        let read = self.db.run(move |transaction| {
            transaction
                .query_row("SELECT revision FROM session_homes WHERE session = ?1", [session], |row| row.get(0))
                .optional()
        });
        read.await
    }

    /// Remembers it.
    pub(crate) async fn keep_home_revision(&self, session: &str, revision: u64) -> Result<()> {
        let session = session.to_owned();
        let kept = self.db.run(move |transaction| {
            transaction.execute(
                "INSERT INTO session_homes (session, revision) VALUES (?1, ?2)
                 ON CONFLICT (session) DO UPDATE SET revision = excluded.revision",
                (session, revision),
            )
        });
        kept.await.map(drop)
    }

    /// Whose sessions have sandboxes.
    pub(crate) fn sessions_with_sandboxes(&self) -> Vec<Caller> {
        self.broker.sandboxes().list().into_iter().map(|sandbox| sandbox.owner).collect()
    }

    /// Ends and removes what there is of a session: its sandboxes, its blackboard, its workspace.
    pub(crate) async fn forget_session(&self, caller: &Caller) -> Result<()> {
        self.broker.forget_session(caller).await
    }
}
