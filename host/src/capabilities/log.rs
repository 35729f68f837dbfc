//! `skillhost:skill/log`, and the one bounded log of an invocation.
//!
//! What a guest says through `log` and `progress` and what it writes to standard output and standard error goes to
//! one sink with one budget. Within it, nothing is lost; what is over it is dropped, counted, and said once at the
//! end. Sending never blocks the guest: what is in flight is bounded by the same budget.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{self, Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use skillhost_api::types::Event;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use super::View;
use super::bindings::skillhost::skill::log::{Host, Level};

/// Takes events as they come; must not block.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// What an event costs beside its text.
const OVERHEAD: usize = 64;
/// A line of output that does not end is cut into lines of this many bytes.
const MAX_LINE: usize = 8 * 1024;
/// How much of the last output is kept for the message of a trap.
const LAST_WORDS: usize = 2 * 1024;

/// The bounded log of one invocation.
#[derive(Clone)]
pub struct Log {
    shared: Arc<LogShared>,
}

struct LogShared {
    sink: EventSink,
    budget: AtomicUsize,
    dropped: AtomicU64,
    last_words: Mutex<Vec<u8>>,
}

impl Log {
    /// A log that takes `budget` bytes.
    pub fn new(sink: EventSink, budget: usize) -> Self {
        let (budget, dropped) = (AtomicUsize::new(budget), AtomicU64::new(0));
        Self { shared: Arc::new(LogShared { sink, budget, dropped, last_words: Mutex::default() }) }
    }

    fn send(&self, text: &str, event: impl FnOnce(String) -> Event) {
        let cost = text.len() + OVERHEAD;
        let paid = self.shared.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(cost));
        if paid.is_ok() {
            (self.shared.sink)(event(text.to_owned()));
        } else {
            self.shared.dropped.fetch_add(text.len() as u64, Ordering::Relaxed);
        }
    }

    /// Says how much was dropped, if anything was. Once, at the end.
    pub fn finish(&self) {
        let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            let message = format!("{dropped} more bytes of log were dropped: limits.log-bytes is used up");
            (self.shared.sink)(Event::Log { level: "warn".into(), message });
        }
    }

    /// The end of what the guest wrote to its standard error: what a panic said.
    pub fn last_words(&self) -> String {
        let kept = self.shared.last_words.lock();
        String::from_utf8_lossy(&kept).trim().to_owned()
    }

    /// A standard stream that writes here.
    pub fn stream(&self, name: &'static str) -> GuestOutput {
        GuestOutput { log: self.clone(), name, line: Arc::default() }
    }
}

/// Standard output or standard error of a guest: each line is a log event.
#[derive(Clone)]
pub struct GuestOutput {
    log: Log,
    name: &'static str,
    line: Arc<Mutex<Vec<u8>>>,
}

impl GuestOutput {
    fn take(&self, bytes: &[u8]) {
        if self.name == "stderr" {
            let mut kept = self.log.shared.last_words.lock();
            kept.extend_from_slice(bytes);
            let surplus = kept.len().saturating_sub(LAST_WORDS);
            kept.drain(..surplus);
        }
        let mut line = self.line.lock();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            line.extend_from_slice(piece);
            if line.len() >= MAX_LINE || line.ends_with(b"\n") {
                self.emit(&mut line);
            }
        }
    }

    fn emit(&self, line: &mut Vec<u8>) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim_end_matches(['\n', '\r']);
        self.log.send(text, |message| Event::Log { level: self.name.into(), message });
        line.clear();
    }
}

impl Drop for GuestOutput {
    fn drop(&mut self) {
        let mut line = self.line.lock();
        if !line.is_empty() {
            self.emit(&mut line);
        }
    }
}

impl IsTerminal for GuestOutput {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for GuestOutput {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for GuestOutput {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.take(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(64 * 1024)
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for GuestOutput {
    async fn ready(&mut self) {}
}

impl AsyncWrite for GuestOutput {
    fn poll_write(self: Pin<&mut Self>, _: &mut task::Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.take(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Host for View<'_> {
    async fn log(&mut self, level: Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            Level::Trace => "trace",
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        };
        self.context.log.send(&message, |message| Event::Log { level: level.into(), message });
        Ok(())
    }

    async fn progress(&mut self, done: u64, total: Option<u64>, message: String) -> wasmtime::Result<()> {
        self.context.log.send(&message, |message| Event::Progress { done, total, message });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_budget_is_dropped_and_counted() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = seen.clone();
        let log = Log::new(Arc::new(move |event| sink.lock().push(event)), 2 * (OVERHEAD + 4));
        log.stream("stdout").take(b"four\nfour\nlost");
        log.finish();
        let lines: Vec<String> = seen
            .lock()
            .iter()
            .map(|event| match event {
                Event::Log { level, message } => format!("{level}: {message}"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(lines[..2], ["stdout: four", "stdout: four"]);
        assert!(lines[2].starts_with("warn: 4 more bytes"), "{lines:?}");
        assert_eq!(lines.len(), 3);
    }
}
