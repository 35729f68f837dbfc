//! The writes that wait for the database's thread, in their order.
//!
//! One that nobody waits for may come a little later, with the next one that somebody does: two in one transaction cost little
//! more than one, and the thread is not woken for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// How long one that nobody waits for is held back at most.
const BEHIND: Duration = Duration::from_millis(10);

/// When a write is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteTurn {
    /// As soon as those before it are.
    Next,
    /// With the next one, or 10 ms later.
    Behind,
}

/// What waits, as both ends see it.
struct WaitingWrites<Job> {
    state: Mutex<WriteQueueState<Job>>,
    changed: Condvar,
    /// How many are held back at most.
    most: usize,
}

struct WriteQueueState<Job> {
    jobs: VecDeque<Job>,
    /// When it is time for them; none where there are none.
    due: Option<Instant>,
    /// Nobody puts any in any more.
    closed: bool,
    /// Nobody takes any out any more.
    ended: bool,
}

/// The end that writes are put into; when it is dropped, what waits is still made.
pub(super) struct WriteSender<Job>(Arc<WaitingWrites<Job>>);

/// The end that they are taken from.
pub(super) struct WriteQueue<Job>(Arc<WaitingWrites<Job>>);

/// A queue that holds back at most so many.
pub(super) fn queue<Job>(most: usize) -> (WriteSender<Job>, WriteQueue<Job>) {
    let state = WriteQueueState { jobs: VecDeque::new(), due: None, closed: false, ended: false };
    let waiting = Arc::new(WaitingWrites { state: Mutex::new(state), changed: Condvar::new(), most });
    (WriteSender(waiting.clone()), WriteQueue(waiting))
}

impl<Job> std::fmt::Debug for WriteSender<Job> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteSender").finish_non_exhaustive()
    }
}

impl<Job> WriteSender<Job> {
    pub(super) fn send(&self, turn: WriteTurn, job: Job) {
        let Self(waiting) = self;
        let mut state = waiting.state.lock();
        if state.ended {
            // Whoever waits for it learns of that by its being dropped, which is their own code.
            drop(state);
            return;
        }
        state.jobs.push_back(job);
        let now = Instant::now();
        let wakes = match turn {
            WriteTurn::Behind if state.jobs.len() < waiting.most => {
                let is_first = state.due.is_none();
                state.due.get_or_insert(now + BEHIND);
                // Otherwise the thread knows when.
                is_first
            }
            _ => {
                state.due = Some(now);
                true
            }
        };
        drop(state);
        if wakes {
            waiting.changed.notify_one();
        }
    }
}

impl<Job> Drop for WriteSender<Job> {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl<Job> WriteQueueState<Job> {
    fn pop(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front();
        if self.jobs.is_empty() {
            self.due = None;
        }
        job
    }
}

impl<Job> WriteQueue<Job> {
    /// The first of a batch, once it is time for one; none when nobody can queue any more and all is done.
    pub(super) fn wait(&mut self) -> Option<Job> {
        let Self(waiting) = self;
        let mut state = waiting.state.lock();
        loop {
            match state.due {
                Some(due) if !state.closed && due > Instant::now() => {
                    let _ = waiting.changed.wait_until(&mut state, due);
                }
                Some(_) => return state.pop(),
                None if state.closed => return None,
                None => waiting.changed.wait(&mut state),
            }
        }
    }

    /// Another one for the same batch, if there is one now.
    pub(super) fn next(&mut self) -> Option<Job> {
        self.0.state.lock().pop()
    }
}

impl<Job> Drop for WriteQueue<Job> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.ended = true;
        let left = std::mem::take(&mut state.jobs);
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_comes_with_the_next_that_somebody_does_or_a_little_later() {
        use WriteTurn::{Behind, Next};
        let (send, mut queue) = queue(3);
        let of_one_batch = |queue: &mut WriteQueue<_>| {
            let mut jobs: Vec<_> = queue.wait().into_iter().collect();
            jobs.extend(std::iter::from_fn(|| queue.next()));
            jobs
        };
        for (turn, job) in [(Behind, 1), (Behind, 2), (Next, 3), (Next, 4), (Behind, 5)] {
            send.send(turn, job);
        }
        assert_eq!(of_one_batch(&mut queue), [1, 2, 3, 4, 5]);
        let began = Instant::now();
        send.send(Behind, 6);
        assert_eq!(of_one_batch(&mut queue), [6]);
        assert!(began.elapsed() >= BEHIND, "it waited for another");
        // No more than so many are held, and what a batch has left comes at once.
        (7..10).for_each(|job| send.send(Behind, job));
        assert_eq!((queue.wait(), queue.next()), (Some(7), Some(8)));
        send.send(Behind, 10);
        assert_eq!(of_one_batch(&mut queue), [9, 10]);
        send.send(Behind, 11);
        drop(send);
        assert_eq!((of_one_batch(&mut queue), queue.wait()), (vec![11], None));
    }

    #[test]
    fn what_nobody_will_make_is_dropped() {
        let (send, queue) = queue(3);
        let job = Arc::new(());
        send.send(WriteTurn::Next, job.clone());
        send.send(WriteTurn::Behind, job.clone());
        assert_eq!(Arc::strong_count(&job), 3);
        drop(queue);
        send.send(WriteTurn::Next, job.clone());
        assert_eq!(Arc::strong_count(&job), 1);
    }
}
