//! Which connections there are, and which of them gives its place to another.
//!
//! Whoever can connect can hold connections without saying anything. So one that comes when all places are taken is not made
//! to wait for those: the oldest that has never sent a request which was let in is closed for it, and if there is none, the
//! oldest that waits for its next request. Only where all are being answered does it wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// One connection, as others see it.
pub(super) struct HttpConnection {
    /// How many requests of it are under way.
    busy: AtomicUsize,
    /// How many of them have no whole answer yet.
    unanswered: AtomicUsize,
    /// One of its requests was let in.
    known: AtomicBool,
    /// It is to be closed, unless a request has come meanwhile.
    leave: Notify,
    /// Told when it is idle.
    idle: Arc<Notify>,
}

impl HttpConnection {
    /// A request has come; until what this gives is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        self.busy.fetch_add(1, Ordering::Relaxed);
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        Busy { connection: Arc::clone(self), answered: false }
    }

    /// Whether no request of it is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// Whether all that its requests ask for is done, and has only to be sent.
    pub(super) fn is_answered(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) == 0
    }

    /// Waits until its place is wanted and it is idle. For the task alone in which its requests begin.
    pub(super) async fn gives_way(&self) {
        loop {
            self.leave.notified().await;
            if self.is_idle() {
                return;
            }
            // Another one has to.
            self.idle.notify_one();
        }
    }
}

/// A request of a connection, from its head until its answer is sent.
pub(super) struct Busy {
    connection: Arc<HttpConnection>,
    answered: bool,
}

impl Busy {
    /// The request is let in.
    pub(super) fn let_in(&self) {
        self.connection.known.store(true, Ordering::Relaxed);
    }

    /// Its answer is there, whole.
    pub(super) fn answered(&mut self) {
        if !std::mem::replace(&mut self.answered, true) {
            self.connection.unanswered.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.answered();
        self.connection.busy.fetch_sub(1, Ordering::Relaxed);
        self.connection.idle.notify_one();
    }
}

/// All connections, oldest first.
#[derive(Default)]
pub(super) struct Connections {
    all: BTreeMap<u64, Arc<HttpConnection>>,
    next: u64,
    idle: Arc<Notify>,
}

impl Connections {
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// One more, and the number under which it is known here.
    pub(super) fn add(&mut self) -> (u64, Arc<HttpConnection>) {
        let connection = Arc::new(HttpConnection {
            busy: 0.into(),
            unanswered: 0.into(),
            known: false.into(),
            leave: Notify::new(),
            idle: Arc::clone(&self.idle),
        });
        let number = self.next;
        self.next += 1;
        self.all.insert(number, Arc::clone(&connection));
        (number, connection)
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, number: u64) {
        self.all.remove(&number);
    }

    /// What is told when one that had something to do may give way.
    pub(super) fn idle(&self) -> Arc<Notify> {
        Arc::clone(&self.idle)
    }

    /// Has one give way, if one can.
    pub(super) fn make_room(&self) {
        let mut idle = self.all.values().filter(|connection| connection.is_idle());
        let never_let_in = idle.clone().find(|connection| !connection.known.load(Ordering::Relaxed));
        if let Some(connection) = never_let_in.or_else(|| idle.next()) {
            connection.leave.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn the_oldest_that_said_nothing_gives_way_then_the_oldest_that_waits() {
        let mut all = Connections::default();
        let (_, served) = all.add();
        served.begin().let_in();
        let (_, busy) = all.add();
        let request = busy.begin();
        let (first, silent) = all.add();
        let (second, younger) = all.add();
        let gave_way = |connection: &Arc<HttpConnection>| connection.gives_way().now_or_never().is_some();
        all.idle().notified().await;
        all.make_room();
        assert!(gave_way(&silent) && !gave_way(&younger) && !gave_way(&served) && !gave_way(&busy));
        all.remove(first);
        all.make_room();
        assert!(gave_way(&younger));
        all.remove(second);
        all.make_room();
        assert!(gave_way(&served) && !gave_way(&busy));
        all.remove(0);
        all.make_room();
        assert!(!gave_way(&busy), "it is being answered");
        drop(request);
        assert!(all.idle().notified().now_or_never().is_some(), "who waits for room is told");
    }

    #[tokio::test]
    async fn one_whose_request_came_meanwhile_stays_and_says_so() {
        let mut all = Connections::default();
        let (_, connection) = all.add();
        all.make_room();
        let _request = connection.begin();
        assert!(connection.gives_way().now_or_never().is_none());
        assert!(all.idle().notified().now_or_never().is_some());
    }
}
