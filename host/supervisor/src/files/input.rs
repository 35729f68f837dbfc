//! Standard input as a file operation's stream.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, poll};
use skillhost_protocol::{FileError, FileErrorKind};

use super::{Result, Who};
use crate::sys;

/// Reads standard input while it watches for TERM: a transfer that is ended has time to clean up after itself.
pub struct Input {
    signals: Option<OwnedFd>,
    buffer: Vec<u8>,
}

impl Input {
    pub fn new() -> Self {
        Self { signals: sys::signal_fd().ok(), buffer: vec![0; 256 * 1024] }
    }

    /// The next bytes; `None` at the end.
    pub fn read(&mut self, who: Who) -> Result<Option<&[u8]>> {
        let stdin = sys::standard(0);
        if let Some(signals) = &self.signals {
            let mut fds = [PollFd::from_borrowed_fd(stdin, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            let failed = |error| who.error("read", "the stream from the host", error);
            rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(failed)?;
            let [_, asked] = fds;
            if !asked.revents().is_empty() && sys::end_was_asked(signals, None) {
                let message = "the transfer was broken off; nothing was replaced".into();
                return Err(FileError { kind: FileErrorKind::Other, message });
            }
        }
        let len = rustix::io::retry_on_intr(|| rustix::io::read(stdin, &mut self.buffer))
            .map_err(|error| who.error("read", "the stream from the host", error))?;
        Ok(self.buffer.get(..len).filter(|bytes| !bytes.is_empty()))
    }
}
