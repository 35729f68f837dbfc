//! Descriptors that are waited for.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits for what happens to this one, which is not made non-blocking for that.
pub(crate) fn watched(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    #[allow(unsafe_code)]
    // SAFETY: an `OwnedFd` keeps its one descriptor open until it is dropped, and always gives that one.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
