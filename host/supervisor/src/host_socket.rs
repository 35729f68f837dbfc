//! How the host gets at a supervisor, and how it is known to be the host.
//!
//! Where the host's files are seen in the sandbox, the supervisor connects to a socket of the host's. Where they are not,
//! it listens itself, on a socket in a directory that nobody but uid 0 can enter, and the engine lets the host in:
//! as `supervisor bridge`, uid 0 ([`crate::bridge`]). No command ever has that uid. Both ends look at the directory and at
//! each other; the directory is what holds everywhere, since gVisor tells everybody who asks that the peer is like themselves.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use crate::sys;

/// Who waits to be let in; there is one host.
const BACKLOG: i32 = 4;
/// For uid 0 alone.
const PRIVATE: u32 = 0o700;

/// What is around a supervisor, and so whom it takes orders from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// A sandbox of its own: whoever has a process id here is inside, and no master.
    Sandbox,
    /// This machine: its host, and the process that ends it, have process ids like everybody.
    Host { host: i32, parent: i32 },
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// Refuses a socket whose directory anybody but uid 0 can enter, and so put a socket of their own in.
pub fn check(path: &Path) -> io::Result<()> {
    let dir = directory(path);
    let meta = dir.symlink_metadata()?;
    match meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o7777 == PRIVATE {
        true => Ok(()),
        false => Err(io::Error::other(format!("{} is not closed to others", dir.display()))),
    }
}

/// The socket between a supervisor and its host, by which side listens on it.
pub enum HostSocket {
    /// The host listens at this path.
    Outside(PathBuf),
    /// The host comes here.
    Inside(OwnedFd),
}

impl HostSocket {
    /// Listens at `path`, whose directory becomes, or is, closed to everybody but us.
    pub fn inside(path: &Path) -> io::Result<Self> {
        // An engine may not have closed it as it was told.
        fs::set_permissions(directory(path), fs::Permissions::from_mode(PRIVATE))?;
        check(path)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self::Inside(socket))
    }

    /// Whether it is we who have to go there.
    pub fn is_outside(&self) -> bool {
        matches!(self, Self::Outside(_))
    }

    /// The socket that becomes readable when a host connects.
    pub fn listener(&self) -> Option<&OwnedFd> {
        match self {
            Self::Outside(_) => None,
            Self::Inside(socket) => Some(socket),
        }
    }

    /// The host's connection; `None` when who came is not the host.
    pub fn open(&self, around: Confinement) -> io::Result<Option<OwnedFd>> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match self {
            Self::Outside(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                // Only the host is outside of our pid namespace. Whoever is inside has no business with us.
                let host = match around {
                    Confinement::Sandbox => 0,
                    Confinement::Host { host, .. } => host,
                };
                Ok((sys::peer(&socket)?.pid == host).then_some(socket))
            }
            Self::Inside(listener) => {
                let socket = accept_with(listener, flags)?;
                Ok((sys::peer(&socket)?.uid == 0).then_some(socket))
            }
        }
    }
}
