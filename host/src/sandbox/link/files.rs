//! Moving single files over a link.
//!
//! A file operation is an exec whose leader runs the supervisor's own code instead of a program: the same identity,
//! flow control and end. What is moved is never held whole, on either side.

use std::future::Future;

use bytes::{Bytes, BytesMut};
use skillhost_protocol::{FileDone, FileError, FileOp, FileStat, User};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::ExecEvent;
use super::connection::Item;
use super::exec::{Channel, Link, file_result};
use crate::error::{Error, Result};

/// How much of a file is read before it is sent.
const CHUNK: usize = 256 * 1024;

impl Link {
    /// Reads a file: at most `max` bytes, and `too-large` when it has more.
    pub async fn read_file(&self, user: User, path: &str, max: Option<u64>) -> Result<FileRead> {
        let (channel, _) = self.file(FileOp::Read { path: path.into(), max }, user, None)?;
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
        let (mut channel, mut stdin) = self.file(FileOp::Write { path: path.into(), mode }, user, None)?;
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
        let (mut channel, _) = self.file(FileOp::Stat { path: path.into() }, user, None)?;
        let done = channel.file_done().await?;
        done.stat.ok_or_else(|| Error::other("the sandbox did not say what is there"))
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
