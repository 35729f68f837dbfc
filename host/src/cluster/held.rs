//! The sessions whose home this host is, as far as it was asked for them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use skillhost_api::caller::Caller;
use skillhost_api::error::Error;
use tokio::sync::watch;

/// As many are remembered without a call under way.
const MOST: usize = 100_000;

/// One of them.
#[derive(Debug)]
struct HeldSession {
    /// Of its home's record: this host has it until there is another one.
    revision: u64,
    /// The term of the lease in which that was seen to be so.
    term: u64,
    caller: Caller,
    calls: Arc<watch::Sender<HeldCalls>>,
}

/// The calls of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HeldCalls {
    under_way: usize,
    /// No more are let in: it is going elsewhere.
    closed: bool,
    /// Those under way are to end.
    ended: bool,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct HeldSessions(Mutex<HashMap<String, HeldSession>>);

/// Whether a session is one of them.
pub(super) enum HeldOrNot {
    Here(HeldPlace),
    /// It is being moved away.
    Leaving,
    /// Not that this host knew, in this term.
    Unknown,
}

/// A call of a session whose home this host is; until it is dropped the session stays.
pub(super) struct HeldPlace {
    pub(super) term: u64,
    calls: Arc<watch::Sender<HeldCalls>>,
}

impl HeldSessions {
    /// It is here from now on.
    pub(super) fn add(&self, key: &str, caller: &Caller, revision: u64, term: u64) {
        let mut held = self.0.lock();
        match held.get_mut(key) {
            // HeldCalls of an earlier term are still ending.
            Some(session) if session.revision == revision => session.term = term,
            _ => {
                let session = HeldSession { revision, term, caller: caller.clone(), calls: Arc::default() };
                held.insert(key.to_owned(), session);
                if held.len() > MOST {
                    // Whoever comes for one of the others has the servers asked again.
                    held.retain(|other, session| other == key || Arc::strong_count(&session.calls) > 1);
                }
            }
        }
    }

    /// Lets a call in, of who knows the home by this revision, if they say which.
    pub(super) fn enter(&self, key: &str, revision: Option<u64>, term: u64) -> HeldOrNot {
        let held = self.0.lock();
        let Some(session) = held.get(key).filter(|session| session.term == term) else { return HeldOrNot::Unknown };
        if revision.is_some_and(|revision| revision != session.revision) {
            return HeldOrNot::Unknown;
        }
        if session.calls.borrow().closed {
            return HeldOrNot::Leaving;
        }
        session.calls.send_modify(|calls| calls.under_way += 1);
        HeldOrNot::Here(HeldPlace { term, calls: Arc::clone(&session.calls) })
    }

    /// Whether it is here with this revision, in whichever term that was seen.
    pub(super) fn has(&self, key: &str, revision: u64) -> bool {
        self.0.lock().get(key).is_some_and(|session| session.revision == revision)
    }

    /// It is not here any more, unless with this revision.
    pub(super) fn remove_unless(&self, key: &str, revision: u64) {
        self.0.lock().retain(|held, session| held != key || session.revision == revision);
    }

    /// Whose sessions those are that were here in an earlier term, and may have gone elsewhere since.
    pub(super) fn before(&self, term: u64) -> Vec<Caller> {
        self.0.lock().values().filter(|session| session.term != term).map(|session| session.caller.clone()).collect()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl HeldPlace {
    /// Waits until the session is taken away under its calls.
    pub(super) async fn taken_away(&self) -> Error {
        let mut calls = self.calls.subscribe();
        let _ = calls.wait_for(|calls| calls.ended).await;
        Error::unavailable(
            "the session was moved to another host while the call was under way: what it did there is kept, call again",
        )
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        self.calls.send_modify(|calls| calls.under_way -= 1);
    }
}
