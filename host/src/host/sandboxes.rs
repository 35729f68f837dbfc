//! The sandbox calls that carry streams.

use std::pin::Pin;
use std::task::{self, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

use super::{CallIo, Host, Output};
use crate::api::types::{Event, ExecAnswer, ExecRequest, FileAnswer};
use crate::broker::{Actor, Chunk, Kept, with_background};
use crate::error::{Error, Result};

impl Host {
    pub(super) async fn exec(&self, actor: &Actor, request: ExecRequest, io: CallIo) -> Result<ExecAnswer> {
        let stream = request.stream;
        let mut kept = if stream { Kept::of_stream(request.max_output) } else { Kept::new(request.max_output) };
        let mut running = self.broker.exec(actor, request).await?;
        let CallIo { output, input } = io;
        let left = || Error::cancelled("the caller left");
        if stream {
            let started = Event::ExecStarted { exec_id: running.id().to_owned() };
            output.send(Output::Event(started)).await.map_err(|_| left())?;
        }
        let stdin = running.stdin();
        let feed = async {
            let (Some(mut stdin), Some(mut input)) = (stdin, input) else { return };
            while let Some(bytes) = input.recv().await {
                // False: the command reads no more; the rest is dropped as by a closed pipe.
                if !stdin.write(bytes).await.unwrap_or(false) {
                    return;
                }
            }
            stdin.close();
        };
        let drain = async {
            while let Some(chunk) = running.next().await? {
                kept.push(&chunk);
                if stream {
                    let piece = match chunk {
                        Chunk::Stdout(bytes) => Output::Stdout(bytes),
                        Chunk::Stderr(bytes) => Output::Stderr(bytes),
                    };
                    output.send(piece).await.map_err(|_| left())?;
                }
            }
            Ok::<_, Error>(())
        };
        match with_background(drain, feed).await {
            Ok(()) => running.finish(kept).await,
            Err(error) => running.fail(error).await,
        }
    }

    pub(super) async fn read_file(
        &self,
        actor: &Actor,
        container_id: String,
        path: String,
        io: CallIo,
    ) -> Result<FileAnswer> {
        let mut file = self.broker.read_file(actor, &container_id, &path, None).await?;
        let mut bytes = 0;
        while let Some(piece) = file.next().await? {
            bytes += piece.len() as u64;
            io.send(Output::Stdout(piece)).await?;
        }
        Ok(FileAnswer { container_id, path, ok: true, bytes, message: String::new() })
    }

    pub(super) async fn write_file(
        &self,
        actor: &Actor,
        container_id: String,
        path: String,
        io: CallIo,
    ) -> Result<FileAnswer> {
        let input = io.input.ok_or_else(|| Error::invalid_argument("writing a file needs its content as input"))?;
        self.broker.write_file(actor, &container_id, &path, Input { input, rest: Bytes::new() }).await
    }
}

/// A call's input, to be read.
struct Input {
    input: mpsc::Receiver<Bytes>,
    rest: Bytes,
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut task::Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        while self.rest.is_empty() {
            match task::ready!(self.input.poll_recv(context)) {
                Some(bytes) => self.rest = bytes,
                None => return Poll::Ready(Ok(())),
            }
        }
        let count = self.rest.len().min(to.remaining());
        to.put_slice(&self.rest.split_to(count));
        Poll::Ready(Ok(()))
    }
}
