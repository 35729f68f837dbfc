//! Where sessions have their homes: asked, chosen, and taken over from a host that is gone.
//!
//! A session's record in the shared bucket names its home, and the record's revision is the *fencing token*: it is written only in
//! the place of the revision that was read, and a home answers for the one revision that it took the session with. What is read is
//! read from the servers' leader; what is remembered of it is only ever where to ask first.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};

use super::directory::{Directory, Vitality};
use super::held::{HeldPlace, HeldSessions};
use super::lease::Lease;
use super::nats::{Kept, SharedBucket};
use super::placement::least_busy;
use super::wire::HomeRecord;
use crate::host::Host;

/// Homes of sessions that are remembered.
const REMEMBERED: NonZero<usize> = NonZero::new(65_536).unwrap();
/// How often a home is looked for that others keep changing.
const TRIES: usize = 5;

/// Where a session has its home.
pub(super) enum Home {
    /// Here; the call is let in.
    Here(HeldPlace),
    At(KnownHome),
}

/// A session's home on another host, as far as is known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownHome {
    pub(super) host: String,
    pub(super) revision: u64,
}

pub(super) struct Homes {
    host: Arc<Host>,
    own: String,
    bucket: SharedBucket,
    directory: Arc<Directory>,
    lease: Arc<Lease>,
    pub(super) held: HeldSessions,
    remembered: Mutex<LruCache<String, KnownHome>>,
    /// Of each session that begins or ends to be here, whose turn it is: so none is cleared that has just begun.
    turns: Mutex<HashMap<String, Turn>>,
}

type Turn = Arc<tokio::sync::Mutex<()>>;

impl Homes {
    pub(super) fn new(
        host: Arc<Host>,
        own: String,
        bucket: SharedBucket,
        directory: Arc<Directory>,
        lease: Arc<Lease>,
    ) -> Self {
        let remembered = Mutex::new(LruCache::new(REMEMBERED));
        let (held, turns) = Default::default();
        Self { host, own, bucket, directory, lease, held, remembered, turns }
    }

    /// The home of the caller's session; a session that has none gets one, here if `prefers_here` and new ones are accepted.
    pub(super) async fn of(&self, caller: &Caller, prefers_here: bool) -> Result<Home> {
        let key = caller.session_key();
        let term = self.lease.term().ok_or_else(cut_off)?;
        if let Some(place) = self.held.enter(&key, None, term) {
            return Ok(Home::Here(place));
        }
        if let Some(known) = self.remembered.lock().get(&key)
            && self.directory.vitality(&known.host) == Vitality::Alive
        {
            return Ok(Home::At(known.clone()));
        }
        for _ in 0..TRIES {
            let (record, revision) = match self.read(&key).await? {
                (Some(record), revision) => (record, revision),
                (None, revision) => {
                    let host = self.choose(prefers_here)?;
                    let record = HomeRecord { host, first: true };
                    let Some(revision) = self.write(&key, &record, revision).await? else { continue };
                    (record, revision)
                }
            };
            if record.host != self.own && self.directory.is_gone(&record.host).await? {
                let host = self.choose(prefers_here)?;
                tracing::warn!(
                    "the host {} is gone; a session of it goes to {host}",
                    self.directory.name(&record.host)
                );
                // Whatever came of that is read.
                self.write(&key, &HomeRecord { host, first: false }, revision).await?;
                continue;
            }
            if record.host == self.own {
                self.take(caller, record.first, revision, term).await?;
                if let Some(place) = self.held.enter(&key, Some(revision), term) {
                    return Ok(Home::Here(place));
                }
                continue;
            }
            let home = KnownHome { host: record.host, revision };
            self.remembered.lock().put(key, home.clone());
            return Ok(Home::At(home));
        }
        Err(Error::unavailable("the session is being moved between hosts: try again"))
    }

    /// Lets a call in that another host sent here for this revision of its session's home; `None` where that is not, or no more, here.
    pub(super) async fn admit(&self, caller: &Caller, revision: u64) -> Result<Option<HeldPlace>> {
        let key = caller.session_key();
        let term = self.lease.term().ok_or_else(cut_off)?;
        if let Some(place) = self.held.enter(&key, Some(revision), term) {
            return Ok(Some(place));
        }
        let (record, now) = self.read(&key).await?;
        let Some(record) = record.filter(|record| record.host == self.own && now == revision) else {
            self.held.remove_unless(&key, now);
            return Ok(None);
        };
        self.take(caller, record.first, revision, term).await?;
        Ok(self.held.enter(&key, Some(revision), term))
    }

    /// After a lapse of the lease: what went elsewhere meanwhile ends here.
    pub(super) async fn settle(&self, term: u64) -> Result<()> {
        let mut callers = self.held.before(term);
        callers.extend(self.host.sessions_with_sandboxes());
        for caller in callers {
            let key = caller.session_key();
            let turn = self.turn(&key);
            let _turn = turn.lock().await;
            let (record, revision) = self.read(&key).await?;
            let elsewhere = record.is_some_and(|record| record.host != self.own);
            // What was here before this host was one of several has gone nowhere.
            if elsewhere && self.host.home_revision(&key).await?.is_some() {
                self.held.remove_unless(&key, revision);
                self.host.forget_session(&caller).await?;
            }
        }
        Ok(())
    }

    /// What was remembered was wrong.
    pub(super) fn forget(&self, caller: &Caller) {
        self.remembered.lock().pop(&caller.session_key());
    }

    fn turn(&self, key: &str) -> Turn {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(key.to_owned()).or_default())
    }

    async fn read(&self, key: &str) -> Result<(Option<HomeRecord>, u64)> {
        let Kept { value, revision } = self.bucket.read(key).await?;
        let record = value.map(|value| serde_json::from_slice(&value)).transpose();
        let record = record.map_err(|error| {
            Error::other(format!("what the cluster keeps of the session {key} cannot be read: {error}"))
        })?;
        Ok((record, revision))
    }

    async fn write(&self, key: &str, record: &HomeRecord, revision: u64) -> Result<Option<u64>> {
        let record = serde_json::to_vec(record).map_err(|error| Error::other(error.to_string()))?;
        self.bucket.replace(key, record.into(), revision).await
    }

    fn choose(&self, prefers_here: bool) -> Result<String> {
        let hosts = self.directory.hosts();
        let fits_here = || hosts.iter().any(|(id, host)| *id == self.own && host.accepts_sessions);
        if prefers_here && fits_here() {
            return Ok(self.own.clone());
        }
        least_busy(&hosts, &self.own).map(str::to_owned).ok_or_else(|| {
            Error::unavailable(
                "no host of the cluster accepts new sessions: `skillhost hosts` shows them; start one that does",
            )
        })
    }

    /// Begins to be the home of a session that the record of this revision says is here. What there is of it from another time, in
    /// which it had its home elsewhere since, goes first.
    async fn take(&self, caller: &Caller, first: bool, revision: u64, term: u64) -> Result<()> {
        let key = caller.session_key();
        let turn = self.turn(&key);
        let _turn = turn.lock().await;
        if !self.held.has(&key, revision) {
            let known = self.host.home_revision(&key).await?;
            if known != Some(revision) && !first {
                self.host.forget_session(caller).await?;
            }
            if known != Some(revision) {
                self.host.keep_home_revision(&key, revision).await?;
            }
            self.remembered.lock().pop(&key);
        }
        self.held.add(&key, caller, revision, term);
        Ok(())
    }
}

/// Why a host without a lease answers for no session.
pub(super) fn cut_off() -> Error {
    Error::unavailable(
        "this host is cut off from its cluster, so it answers for no session until it is back: `skillhost doctor` says why",
    )
}
