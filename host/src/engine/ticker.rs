//! The clock that interrupts guests: one thread per engine, asleep while nothing runs.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use wasmtime::Engine;

/// How often a running guest looks at its deadline and lets others run.
pub(crate) const TICK: Duration = Duration::from_millis(5);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    ended: bool,
}

/// Counts what runs; while that is not zero, the epoch goes up every [`TICK`].
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
}

impl Ticker {
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (ours, engine) = (shared.clone(), engine.weak());
        thread::Builder::new().name("epoch".into()).spawn(move || {
            loop {
                let mut state = ours.state.lock().unwrap_or_else(PoisonError::into_inner);
                while state.running == 0 && !state.ended {
                    state = ours.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                if state.ended {
                    return;
                }
                drop(state);
                thread::sleep(TICK);
                match engine.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => return,
                }
            }
        })?;
        Ok(Self { shared })
    }

    /// Keeps the clock going until the answer is dropped.
    pub(crate) fn run(&self) -> Running {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running += 1;
        if state.running == 1 {
            self.shared.changed.notify_one();
        }
        Running { shared: self.shared.clone() }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.shared.changed.notify_one();
    }
}

/// One thing that runs.
#[derive(Debug)]
pub(crate) struct Running {
    shared: Arc<Shared>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).running -= 1;
    }
}
