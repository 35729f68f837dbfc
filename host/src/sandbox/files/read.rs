//! Reading a tree of the host, in a thread that may block.

use std::io::{self, Read as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::{Dir, File, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use rustix::fs::OFlags;
use skillhost_protocol::content;
use skillhost_protocol::socket::StreamError;
use skillhost_protocol::stream::TreeSender;

use super::super::link::{Entry, EntryKind, TreeSocket};
use super::{Budget, Notes, host_error, stays_inside};
use crate::error::{Error, Result};

const CHUNK: usize = 64 * 1024;
/// Deeper than that is no tree of anybody's, and every level holds a descriptor.
const MAX_DEPTH: usize = 100;

struct Walker {
    tree: TreeSender<Arc<TreeSocket>>,
    chunk: Vec<u8>,
    budget: Budget,
    notes: Notes,
}

/// Ends the walk: either with an error for the receiver, or because there is none any more.
enum Stop {
    Error(Error),
    NobodyListens,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<StreamError> for Stop {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Io(error)
                if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) =>
            {
                Self::NobodyListens
            }
            StreamError::Io(error) => Self::Error(Error::from(error).context("cannot send to the sandbox")),
            StreamError::Protocol(error) => Self::Error(Error::invalid_argument(error.0)),
        }
    }
}

/// Sends the tree at `from`: what it left out, or nothing when the sandbox listens no more.
pub(super) fn walk(host: &Dir, from: &Path, socket: Arc<TreeSocket>) -> Result<Option<Notes>> {
    let (budget, notes) = Default::default();
    let mut walker = Walker { tree: socket.sender(), chunk: vec![0; CHUNK], budget, notes };
    let sent = walker.root(host, from).and_then(|()| Ok(walker.tree.end()?));
    match sent {
        Ok(()) => Ok(Some(walker.notes)),
        Err(Stop::NobodyListens) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

fn open_regular(dir: &Dir, name: &Path) -> io::Result<(File, u32)> {
    // Neither waits for a pipe's writer nor wakes a device.
    let flags = i32::try_from((OFlags::NONBLOCK | OFlags::NOCTTY).bits()).unwrap_or(0);
    let file = dir.open_with(name, OpenOptions::new().read(true).custom_flags(flags))?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    Ok((file, metadata.mode()))
}

impl Walker {
    fn root(&mut self, host: &Dir, from: &Path) -> Result<(), Stop> {
        let from = if from.as_os_str().is_empty() { Path::new(".") } else { from };
        let failed = |error: io::Error| Stop::Error(host_error("read", from, &error));
        let metadata = host.metadata(from).map_err(failed)?;
        if metadata.is_dir() {
            let dir = host.open_dir(from).map_err(failed)?;
            self.entry(Vec::new(), EntryKind::Dir, metadata.mode())?;
            return self.walk(&dir, &mut PathBuf::new(), 0);
        }
        if !metadata.is_file() {
            let path = from.display();
            return Err(Error::invalid_argument(format!("{path} on the host is neither a file nor a directory")).into());
        }
        let (file, mode) = open_regular(host, from).map_err(failed)?;
        self.entry(Vec::new(), EntryKind::File, mode)?;
        self.file(file, from)
    }

    fn walk(&mut self, dir: &Dir, at: &mut PathBuf, depth: usize) -> Result<(), Stop> {
        let failed = |at: &Path, error: &io::Error| Stop::Error(host_error("read", at, error));
        let mut names = Vec::new();
        for entry in dir.entries().map_err(|error| failed(at, &error))? {
            names.push(entry.map_err(|error| failed(at, &error))?.file_name());
        }
        names.sort();
        for name in names {
            at.push(&name);
            match self.visit(dir, Path::new(&name), at, depth) {
                Ok(()) => {}
                Err(Trouble::Entry(error)) => self.leave_out(at, &error.to_string()),
                Err(Trouble::Stop(stop)) => return Err(stop),
            }
            at.pop();
        }
        Ok(())
    }

    fn visit(&mut self, dir: &Dir, name: &Path, at: &mut PathBuf, depth: usize) -> Result<(), Trouble> {
        let metadata = dir.symlink_metadata(name)?;
        let path = at.as_os_str().as_bytes().to_vec();
        if metadata.is_dir() {
            if depth >= MAX_DEPTH {
                self.leave_out(at, "it is too deep");
                return Ok(());
            }
            let below = dir.open_dir(name)?;
            self.entry(path, EntryKind::Dir, metadata.mode())?;
            self.walk(&below, at, depth + 1)?;
        } else if metadata.is_symlink() {
            let target = dir.read_link_contents(name)?.into_os_string().into_vec();
            if stays_inside(&path, &target) {
                self.entry(path, EntryKind::Symlink { target }, metadata.mode())?;
            } else {
                self.leave_out(at, "it is a symbolic link that leads elsewhere");
            }
        } else if metadata.is_file() {
            let (file, mode) = open_regular(dir, name)?;
            self.entry(path, EntryKind::File, mode)?;
            self.file(file, at)?;
        } else {
            self.leave_out(at, "it is a device, a socket or a pipe");
        }
        Ok(())
    }

    fn leave_out(&mut self, at: &Path, why: &str) {
        self.notes.add(format!("left out {}: {why}", at.display()));
    }

    fn entry(&mut self, path: Vec<u8>, kind: EntryKind, mode: u32) -> Result<(), Stop> {
        self.budget.entry()?;
        Ok(self.tree.entry(&Entry { path, kind, mode: mode & 0o777 })?)
    }

    fn file(&mut self, mut file: File, path: &Path) -> Result<(), Stop> {
        if let Some(len) = content::worth_passing(&file) {
            self.budget.has_room(len)?;
            if self.tree.content(&file, len)? {
                return Ok(self.budget.bytes(len)?);
            }
        }
        loop {
            match file.read(&mut self.chunk) {
                Ok(0) => return Ok(()),
                Ok(len) => {
                    self.budget.bytes(len as u64)?;
                    self.tree.data(self.chunk.get(..len).unwrap_or_default())?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(host_error("read", path, &error).into()),
            }
        }
    }
}

/// What went wrong with one entry: itself, which is noted, or the whole walk.
enum Trouble {
    Entry(io::Error),
    Stop(Stop),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Entry(error)
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}
