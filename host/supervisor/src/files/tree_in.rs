//! Making a tree from a stream.
//!
//! The tree's own paths are looked at one component at a time, from a directory that is held open and through no
//! symbolic link: neither a stream nor whoever swaps a directory meanwhile puts anything outside.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use skillhost_protocol::content::{self, Copying};
use skillhost_protocol::socket::StreamError;
use skillhost_protocol::stream::{TreeItem, TreeReceiver};
use skillhost_protocol::tree::{EntryKind, TreeEntry};
use skillhost_protocol::{FileDone, FileError, FileErrorKind, ProtocolError};

use super::input::TermWatch;
use super::place::{self, Destination, PendingFile};
use super::{Notes, Result, UserId, done, invalid};

struct TreeBuilder<'a> {
    who: UserId,
    root: &'a Path,
    /// The root's directory, once the stream has said that the root is one.
    dir: Option<OwnedFd>,
    file: Option<PendingFile>,
    began: bool,
    files: u64,
    bytes: u64,
}

pub fn perform(who: UserId, root: &Path, socket: OwnedFd) -> Result<FileDone> {
    let mut builder = TreeBuilder { who, root, dir: None, file: None, began: false, files: 0, bytes: 0 };
    let watch = TermWatch::new();
    let mut tree = TreeReceiver::new(socket);
    loop {
        match tree.item().map_err(broken)? {
            Some(TreeItem::Entry(entry)) => builder.entry(entry)?,
            Some(TreeItem::Data(data)) => builder.data(data)?,
            Some(TreeItem::Hole(len)) => builder.hole(len)?,
            Some(TreeItem::Content { file, len }) => builder.content(&file, len, &watch)?,
            Some(TreeItem::End) => break,
            None => {
                watch.wait(who, tree.socket())?;
                let more = tree.fill().map_err(|error| match error {
                    StreamError::Io(error) => who.error("read", "the stream from the host", error),
                    StreamError::Protocol(error) => broken(error),
                })?;
                if !more {
                    return Err(broken(ProtocolError("it was cut off".into())));
                }
            }
        }
    }
    if !builder.began {
        return Err(broken(ProtocolError("it is empty".into())));
    }
    builder.finish_file()?;
    Ok(done(root, builder.files, builder.bytes, Notes::default()))
}

fn broken(error: ProtocolError) -> FileError {
    FileError { kind: FileErrorKind::Other, message: format!("the tree that the host sent is none: {}", error.0) }
}

impl TreeBuilder<'_> {
    fn entry(&mut self, entry: TreeEntry) -> Result<()> {
        self.finish_file()?;
        let components = entry.components().map_err(broken)?;
        let place = match components.split_last() {
            None if self.began => return Err(broken(ProtocolError("a second root".into()))),
            None => {
                self.began = true;
                match entry.kind {
                    EntryKind::Dir => {
                        self.dir = Some(place::open_root(self.who, self.root)?);
                        return Ok(());
                    }
                    EntryKind::File => place::resolve(self.who, self.root)?,
                    EntryKind::Symlink { .. } => return Err(invalid("a tree's root cannot be a link".into())),
                }
            }
            Some((name, above)) => self.place(name, above, &entry.path)?,
        };
        match entry.kind {
            EntryKind::Dir => drop(place.directory(self.who, entry.mode)?),
            EntryKind::File => self.file = Some(place.open(self.who, entry.mode)?),
            EntryKind::Symlink { target } => place.link(self.who, OsStr::from_bytes(&target))?,
        }
        Ok(())
    }

    fn place(&self, name: &[u8], above: &[&[u8]], path: &[u8]) -> Result<Destination> {
        let failed = |error: std::io::Error| self.who.error("write", self.root.display(), error);
        let root = self.dir.as_ref().ok_or_else(|| broken(ProtocolError("entries beneath no directory".into())))?;
        let mut dir = root.try_clone().map_err(failed)?;
        let mut at = self.root.to_owned();
        for part in above {
            at.push(OsStr::from_bytes(part));
            dir = Destination::new(dir, OsStr::from_bytes(part), at.clone()).directory(self.who, 0o755)?;
        }
        Ok(Destination::new(dir, OsStr::from_bytes(name), self.root.join(OsStr::from_bytes(path))))
    }

    fn data(&mut self, data: &[u8]) -> Result<()> {
        let target = self.file.as_mut().ok_or_else(|| broken(ProtocolError("bytes of no file".into())))?;
        target.file.write_all(data).map_err(|error| self.who.error("write", self.root.display(), error))?;
        self.bytes += data.len() as u64;
        Ok(())
    }

    fn hole(&mut self, len: u64) -> Result<()> {
        let target = self.file.as_ref().ok_or_else(|| broken(ProtocolError("a hole of no file".into())))?;
        content::put_hole(&target.file, len).map_err(|error| self.who.error("write", self.root.display(), error))?;
        self.bytes += len;
        Ok(())
    }

    /// Copies what the host has passed: here, so that the sandbox pays for what is written and its user's rights hold.
    fn content(&mut self, file: &OwnedFd, len: u64, watch: &TermWatch) -> Result<()> {
        let target = self.file.as_ref().ok_or_else(|| broken(ProtocolError("content of no file".into())))?;
        let mut copying = Copying::new(file.as_fd(), target.file.as_fd(), len);
        loop {
            watch.check(self.who)?;
            match copying.step().map_err(|error| self.who.error("write", self.root.display(), error))? {
                0 => return Ok(()),
                len => self.bytes += len,
            }
        }
    }

    fn finish_file(&mut self) -> Result<()> {
        if let Some(target) = self.file.take() {
            target.commit(self.who)?;
            self.files += 1;
        }
        Ok(())
    }
}
