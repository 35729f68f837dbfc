//! Moving trees over a link: a directory with everything in it, or one file.
//!
//! The operation is asked for, ended and answered over the link like any other. The tree itself goes over a socket of its
//! own ([`skillhost_protocol::stream`]), from one thread here to one process there with nobody in between.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use skillhost_protocol::{FileDone, FileOp, User};
use tokio::task::JoinHandle;

use super::exec::{Channel, Link};
use crate::error::{Error, Result};

impl Link {
    /// Begins to make the tree at `path`, from what is sent on the transfer's socket.
    pub fn tree_in(&self, user: User, path: &str) -> Result<Transfer> {
        Transfer::begin(self, FileOp::TreeIn { path: path.into() }, user)
    }

    /// Begins to send the tree at `path` on the transfer's socket.
    pub fn tree_out(&self, user: User, path: &str) -> Result<Transfer> {
        Transfer::begin(self, FileOp::TreeOut { path: path.into() }, user)
    }
}

/// This end of a tree's socket, for a thread that may block on it.
#[derive(Debug)]
pub struct TreeSocket {
    socket: OwnedFd,
    stopped: AtomicBool,
}

impl AsFd for TreeSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl TreeSocket {
    /// Whether the transfer is over for everybody but this thread, which is to end, too.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes whoever waits on it.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// A tree on its way. Dropped before its end, it ends the operation and the thread.
#[derive(Debug)]
pub struct Transfer {
    channel: Channel,
    socket: Arc<TreeSocket>,
}

impl Transfer {
    fn begin(link: &Link, op: FileOp, user: User) -> Result<Self> {
        let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(|error| Error::from(std::io::Error::from(error)).context("cannot make a socket for a copy"))?;
        let (channel, _) = link.file(op, user, Some(theirs))?;
        Ok(Self { channel, socket: Arc::new(TreeSocket { socket, stopped: AtomicBool::new(false) }) })
    }

    /// This end of the tree's socket.
    pub fn socket(&self) -> Arc<TreeSocket> {
        Arc::clone(&self.socket)
    }

    /// Waits for the operation, and for `work`, which moves the tree at this end: what both came to. `work` gives `None`
    /// when the other end has gone before the tree was whole.
    pub async fn finish<T>(mut self, mut work: JoinHandle<Result<Option<T>>>) -> Result<(FileDone, T)> {
        let joined = |work: Result<_, tokio::task::JoinError>| {
            work.map_err(|error| Error::other(format!("copying failed at the host's end: {error}"))).flatten()
        };
        let done = self.channel.file_done();
        tokio::pin!(done);
        // The sandbox may refuse long before all was sent, and this end may fail long before all has come.
        let (done, worked) = tokio::select! {
            biased;
            done = &mut done => {
                if done.is_err() {
                    self.socket.stop();
                } else {
                    // What has come is there to be read, and nothing else comes.
                    let _ = shutdown(&self.socket, Shutdown::Both);
                }
                (done, joined((&mut work).await))
            }
            worked = &mut work => match joined(worked) {
                Err(error) => return Err(error),
                worked => (done.await, worked),
            }
        };
        let done = done?;
        match worked? {
            Some(moved) => Ok((done, moved)),
            None => Err(Error::sandbox_died("the tree that the sandbox sent was cut off")),
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.socket.stop();
    }
}
