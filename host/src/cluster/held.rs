//! The sessions whose home this host is, as far as it was asked for them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use skillhost_api::caller::Caller;

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
    /// Each call under way has it, too.
    calls: Arc<()>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct HeldSessions(Mutex<HashMap<String, HeldSession>>);

/// A call of a session whose home this host is.
pub(super) struct HeldPlace {
    /// The term of the lease in which it was let in.
    pub(super) term: u64,
    _call: Arc<()>,
}

impl HeldSessions {
    /// It is here from now on.
    pub(super) fn add(&self, key: &str, caller: &Caller, revision: u64, term: u64) {
        let mut held = self.0.lock();
        let session = HeldSession { revision, term, caller: caller.clone(), calls: Arc::default() };
        held.insert(key.to_owned(), session);
        if held.len() > MOST {
            // Whoever comes for one of the others has the servers asked again.
            held.retain(|other, session| other == key || Arc::strong_count(&session.calls) > 1);
        }
    }

    /// Lets a call in, of who knows the home by this revision, if they say which; `None` where the session is not here, as far as this
    /// host has seen in this term.
    pub(super) fn enter(&self, key: &str, revision: Option<u64>, term: u64) -> Option<HeldPlace> {
        let held = self.0.lock();
        let session = held.get(key).filter(|session| session.term == term)?;
        let meant = revision.is_none_or(|revision| revision == session.revision);
        meant.then(|| HeldPlace { term, _call: Arc::clone(&session.calls) })
    }

    /// Whether it is here with this revision, in whichever term that was seen.
    pub(super) fn has(&self, key: &str, revision: u64) -> bool {
        self.0.lock().get(key).is_some_and(|session| session.revision == revision)
    }

    /// It is not here any more, unless with this revision.
    pub(super) fn remove_unless(&self, key: &str, revision: u64) {
        let mut held = self.0.lock();
        if held.get(key).is_some_and(|session| session.revision != revision) {
            held.remove(key);
        }
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
