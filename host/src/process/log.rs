//! The log of a background host process: bounded, so that it can run for a year.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use super::StateDir;
use crate::error::Result;

/// The log's name in the state directory. The one before it has `.1` behind it.
pub const LOG_FILE: &str = "host.log";

const PREVIOUS: &str = "host.log.1";

/// The size at which a log becomes the previous one.
const ROTATE_AT: u64 = 4 << 20;

/// What is logged where nobody says. The protocol's library calls it an error of the service when a client has left before its
/// answer; what fails on our side is in our own words.
const DEFAULT: &str = "warn,skillhost=info,rmcp::service=off";

/// The log file, begun anew when it is large.
pub(super) fn open(state: &StateDir) -> Result<File> {
    let file = state.append(LOG_FILE)?;
    if file.metadata()?.len() < ROTATE_AT {
        return Ok(file);
    }
    state.rename(LOG_FILE, PREVIOUS)?;
    state.append(LOG_FILE)
}

/// Sends what is traced to the log file of `state`, or to standard error.
pub(super) fn trace_to(state: Option<&Path>) -> Result<()> {
    let filter = EnvFilter::try_from_env("SKILLHOST_LOG").unwrap_or_else(|_| EnvFilter::new(DEFAULT));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false);
    // One that is set already is an embedder's or a test's, and stays.
    let _ = match state {
        Some(state) => builder.with_writer(Rotating::open(state)?).try_init(),
        None => builder.with_writer(io::stderr).try_init(),
    };
    // Standard error is the file as it was at the start, which a rotation moves away.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(())
}

struct Rotating {
    state: StateDir,
    file: Mutex<File>,
}

impl Rotating {
    fn open(path: &Path) -> Result<Self> {
        let state = StateDir::create(path)?;
        let file = Mutex::new(open(&state)?);
        Ok(Self { state, file })
    }
}

impl<'a> MakeWriter<'a> for Rotating {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Rotating {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if file.metadata()?.len() >= ROTATE_AT {
            *file = open(&self.state).map_err(|error| io::Error::other(error.message))?;
        }
        file.write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_stays_bounded_and_keeps_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let log = Rotating::open(&path).unwrap();
        let line = [b'x'; 64 << 10];
        for _ in 0..ROTATE_AT * 3 / line.len() as u64 {
            (&log).write_all(&line).unwrap();
        }
        (&log).write_all(b"the end\n").unwrap();
        let length = |name| std::fs::metadata(path.join(name)).unwrap().len();
        assert!(length(LOG_FILE) <= ROTATE_AT + line.len() as u64);
        assert!(length(PREVIOUS) <= ROTATE_AT + line.len() as u64);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 2);
        assert!(std::fs::read(path.join(LOG_FILE)).unwrap().ends_with(b"the end\n"));
    }
}
