//! Moving files over a link, one path or one tree at a time.
//!
//! A file operation is an exec whose leader runs the supervisor's own code instead of a program: the same identity,
//! flow control and end. What is moved is never held whole, on either side.

use std::future::Future;

use bytes::{Bytes, BytesMut};
use skillhost_protocol::tree::{self, Entry, Record};
use skillhost_protocol::{FileDone, FileError, FileOp, FileStat, User};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::ExecEvent;
use super::connection::Item;
use super::exec::{Channel, ExecStdin, Link, file_result};
use crate::error::{Error, Result};

/// How much of a file is read before it is sent.
const CHUNK: usize = 256 * 1024;

impl Link {
    /// Reads a file: at most `max` bytes, and `too-large` when it has more.
    pub async fn read_file(&self, user: User, path: &str, max: Option<u64>) -> Result<FileRead> {
        let (channel, _) = self.file(FileOp::Read { path: path.into(), max }, user)?;
        Ok(FileRead { channel, done: None })
    }

    /// Replaces a file by what `from` yields, atomically; makes parent directories. `mode` is a new file's.
    ///
    /// Dropping the future, or a failure of `from`, leaves the file as it was.
    pub async fn write_file(
        &self,
        user: User,
        path: &str,
        mode: u32,
        mut from: impl AsyncRead + Unpin,
    ) -> Result<FileDone> {
        let (mut channel, mut stdin) = self.file(FileOp::Write { path: path.into(), mode }, user)?;
        let pump = async move {
            let mut buffer = BytesMut::with_capacity(CHUNK);
            loop {
                buffer.reserve(CHUNK);
                let read = from.read_buf(&mut buffer).await;
                let read = read.map_err(|error| Error::from(error).context("cannot read what is to be written"))?;
                if read == 0 {
                    stdin.close();
                    return Ok(());
                }
                if !stdin.write(buffer.split().freeze()).await? {
                    return Ok(());
                }
            }
        };
        drive(&mut channel, pump).await
    }

    /// Says what is at `path`, not following a last symbolic link.
    pub async fn stat(&self, user: User, path: &str) -> Result<FileStat> {
        let (mut channel, _) = self.file(FileOp::Stat { path: path.into() }, user)?;
        let done = channel.file_done().await?;
        done.stat.ok_or_else(|| Error::other("the sandbox did not say what is there"))
    }

    /// Makes the tree that `write` sends at `path`.
    ///
    /// `write` gets the writer and gives it back; the tree is whole once it has, and not before.
    pub async fn tree_in<F, W>(&self, user: User, path: &str, write: F) -> Result<FileDone>
    where
        F: FnOnce(TreeWriter) -> W,
        W: Future<Output = Result<TreeWriter>>,
    {
        let (mut channel, stdin) = self.file(FileOp::TreeIn { path: path.into() }, user)?;
        let writing = write(TreeWriter { stdin, buffer: Vec::new(), reads: true });
        let pump = async move { writing.await?.finish().await };
        drive(&mut channel, pump).await
    }

    /// Reads the tree at `path`: a directory with everything in it, or one file.
    pub async fn tree_out(&self, user: User, path: &str) -> Result<TreeReader> {
        let (channel, _) = self.file(FileOp::TreeOut { path: path.into() }, user)?;
        Ok(TreeReader { read: FileRead { channel, done: None }, buffer: BytesMut::new(), ended: false })
    }
}

/// Sends while it listens: the sandbox may refuse long before all was sent. When `pump` fails, the caller drops the
/// channel, which ends the operation before it could commit.
async fn drive(channel: &mut Channel, pump: impl Future<Output = Result<()>>) -> Result<FileDone> {
    let done = channel.file_done();
    tokio::pin!(done, pump);
    tokio::select! {
        biased;
        done = &mut done => done,
        pumped = &mut pump => match pumped {
            Ok(()) => done.await,
            Err(error) => Err(error),
        }
    }
}

/// A file's bytes, as they come.
#[derive(Debug)]
pub struct FileRead {
    channel: Channel,
    done: Option<Result<FileDone, FileError>>,
}

impl FileRead {
    /// The next bytes; `None` once the file was read whole. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.channel.next().await? {
                Some(Item::Event(ExecEvent::Stdout(bytes))) => return Ok(Some(bytes)),
                Some(Item::Event(ExecEvent::NotStarted { reason, .. })) => return Err(Error::unavailable(reason)),
                Some(Item::FileDone(done)) => self.done = Some(done),
                Some(_) => {}
                None => {
                    file_result(self.done.clone())?;
                    return Ok(None);
                }
            }
        }
    }

    /// What was read, after [`FileRead::next`] gave `None`.
    pub fn done(&self) -> Option<&FileDone> {
        self.done.as_ref().and_then(|done| done.as_ref().ok())
    }
}

/// One item of a tree.
#[derive(Debug, PartialEq, Eq)]
pub enum TreeItem {
    /// An entry begins; its path was checked.
    Entry(Entry),
    /// Bytes of the file that began last.
    Data(Bytes),
}

/// A tree, as it comes.
#[derive(Debug)]
pub struct TreeReader {
    read: FileRead,
    buffer: BytesMut,
    ended: bool,
}

impl TreeReader {
    /// The next item; `None` once the tree was read whole.
    pub async fn next(&mut self) -> Result<Option<TreeItem>> {
        let broken = |error: skillhost_protocol::ProtocolError| {
            Error::sandbox_died(format!("what the sandbox sent as a tree is none: {error}"))
        };
        loop {
            let (item, used) = match tree::decode(&self.buffer).map_err(broken)? {
                Some(_) if self.ended => {
                    return Err(Error::sandbox_died("the sandbox sent more after a tree's end"));
                }
                Some((Record::Entry(entry), used)) => {
                    entry.components().map_err(broken)?;
                    (Some(TreeItem::Entry(entry)), used)
                }
                Some((Record::Data(data), used)) => (Some(TreeItem::Data(Bytes::copy_from_slice(data))), used),
                Some((Record::End, used)) => {
                    self.ended = true;
                    (None, used)
                }
                None => {
                    match self.read.next().await? {
                        Some(bytes) => self.buffer.extend_from_slice(&bytes),
                        None if self.ended && self.buffer.is_empty() => return Ok(None),
                        None => return Err(Error::sandbox_died("the tree that the sandbox sent was cut off")),
                    }
                    continue;
                }
            };
            drop(self.buffer.split_to(used));
            if item.is_some() {
                return Ok(item);
            }
        }
    }

    /// What was sent and what was left out, after [`TreeReader::next`] gave `None`.
    pub fn done(&self) -> Option<&FileDone> {
        self.read.done()
    }
}

/// Sends a tree.
#[derive(Debug)]
pub struct TreeWriter {
    stdin: ExecStdin,
    buffer: Vec<u8>,
    reads: bool,
}

impl TreeWriter {
    /// Begins an entry: the root first, with an empty path.
    pub async fn entry(&mut self, entry: &Entry) -> Result<()> {
        entry.components().map_err(|error| Error::invalid_argument(error.0))?;
        tree::put_entry(entry, &mut self.buffer).map_err(|error| Error::invalid_argument(error.0))?;
        self.flush(CHUNK).await
    }

    /// Sends bytes of the file that began last.
    pub async fn data(&mut self, data: &[u8]) -> Result<()> {
        tree::put_data(data, &mut self.buffer);
        self.flush(CHUNK).await
    }

    async fn flush(&mut self, when: usize) -> Result<()> {
        if self.reads && self.buffer.len() >= when {
            self.reads = self.stdin.write(std::mem::take(&mut self.buffer)).await?;
        }
        if !self.reads {
            self.buffer.clear();
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<()> {
        tree::put_end(&mut self.buffer);
        self.flush(0).await?;
        self.stdin.close();
        Ok(())
    }
}
