//! A connection to the host process, and calls over it.
//!
//! [`Client::answer`] has the shape of [`Service::answer`](crate::service::Service::answer), so who calls need not know where the host is. A call
//! whose future is dropped leaves the connection unusable; dropping the client then closes it, and that cancels the call.

use std::time::Duration;

use bytes::Bytes;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::answer::Answer;
use crate::error::{Error, Result};
use crate::io::{CallIo, CallOutput};
use crate::types::Call;
use crate::types::operation::Operation;
use crate::wire::{Frame, FrameKind, FrameReader, FrameWriter, Hello, MAX_DATA};

/// How long a host process that took the connection may take to say hello.
const HELLO: Duration = Duration::from_secs(10);

/// How long a cancelled call may take to end before its caller goes on without knowing.
const CANCEL: Duration = Duration::from_secs(3);

/// A connection to a host process.
#[derive(Debug)]
pub struct Client {
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
    hello: Hello,
    pid: Option<i32>,
    under_way: bool,
}

impl Client {
    /// Says hello over a fresh connection. `None` when the other side leaves before it answered, as a host process does
    /// that ends in this moment.
    pub async fn greet(stream: UnixStream) -> Result<Option<Self>> {
        let peer = stream.peer_cred()?;
        let own = rustix::process::geteuid().as_raw();
        if peer.uid() != own && peer.uid() != 0 {
            return Err(Error::denied(format!(
                "the host's socket is served by uid {}, which is neither you (uid {own}) nor root",
                peer.uid()
            )));
        }
        let pid = peer.pid();
        let (read, write) = stream.into_split();
        let (mut reader, mut writer) = (FrameReader::new(read), FrameWriter::new(write));
        // A host that leaves may be gone already; then reading says so.
        let _ = writer.hello(&Hello::new()).await;
        match timeout(HELLO, reader.hello()).await {
            Ok(Ok(Some(hello))) => Ok(Some(Self { reader, writer, hello, pid, under_way: false })),
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::unavailable(format!(
                "the host process{} took the connection and says nothing; end it if it hangs, and try again",
                pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
            ))),
        }
    }

    /// What the host said of itself.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The host's process id, as the kernel knows it.
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }

    /// Whether another call can be made: the last one had its answer.
    pub fn is_ready(&self) -> bool {
        !self.under_way
    }

    /// Whether the host has neither left nor said anything since the last call, as far as that is known here.
    pub fn is_open(&self) -> bool {
        use rustix::net::RecvFlags;
        let mut byte = [0];
        let peeked =
            rustix::net::recv(self.reader.get_ref().as_ref(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT);
        self.is_ready() && matches!(peeked, Err(rustix::io::Errno::AGAIN))
    }

    /// One call, and what its operation answers.
    pub async fn call<O: Operation>(&mut self, call: Call<O>, io: CallIo) -> Result<O::Answer> {
        self.answer(&call.asking(Into::into), io).await?.read()
    }

    /// One call; see [`Service::answer`](crate::service::Service::answer).
    pub async fn answer(&mut self, call: &Call, io: CallIo) -> Result<Answer> {
        if std::mem::replace(&mut self.under_way, true) {
            return Err(Error::other("an earlier call on this connection was not waited for; open another connection"));
        }
        let CallIo { output, input } = io;
        let mut input = input.filter(|_| call.request.takes_input());
        let request = match Frame::json(FrameKind::Request, call) {
            Ok(request) => request,
            Err(error) => {
                self.under_way = false;
                return Err(error.context("the request"));
            }
        };
        // What an earlier call left half written, once its answer had overtaken it.
        let _ = self.writer.flush().await;
        self.writer.begin(request);
        let mut credits = 0usize;
        // What is left of a piece of input that is longer than one frame may be.
        let mut held = Bytes::new();
        let mut writable = true;
        loop {
            if credits > 0 && !held.is_empty() && !self.writer.pending() {
                credits -= 1;
                self.writer.begin(Frame { kind: FrameKind::Stdin, payload: held.split_to(held.len().min(MAX_DATA)) });
            }
            let wants_input = input.is_some() && held.is_empty() && credits > 0;
            tokio::select! {
                biased;
                // A host that reads no more may have said why: its last words are still to be read.
                flushed = self.writer.flush(), if writable && self.writer.pending() => writable = flushed.is_ok(),
                frame = self.reader.next() => {
                    let frame = frame.and_then(|frame| frame.ok_or_else(|| Error::unavailable("it closed the connection")));
                    let frame = frame.map_err(vanished)?;
                    let piece = match frame.kind {
                        FrameKind::Answer => {
                            self.under_way = false;
                            return Ok(Answer::received(frame.payload));
                        }
                        FrameKind::Error => {
                            self.under_way = false;
                            return Err(frame.parse::<Error>()?);
                        }
                        FrameKind::Credit => {
                            credits += 1;
                            continue;
                        }
                        FrameKind::Event => CallOutput::Event(frame.parse()?),
                        FrameKind::Stdout => CallOutput::Stdout(frame.payload),
                        FrameKind::Stderr => CallOutput::Stderr(frame.payload),
                        kind => return Err(Error::other(format!("the host process sent a {kind:?}, which is not its to send"))),
                    };
                    output.send(piece).await.map_err(|_| Error::cancelled("whoever read the call's output is gone"))?;
                }
                piece = receive(input.as_mut()), if wants_input && !self.writer.pending() => match piece {
                    Some(piece) => held = piece,
                    None => {
                        input = None;
                        self.writer.begin(Frame::empty(FrameKind::StdinEnd));
                    }
                },
            }
        }
    }

    /// Gives up the call whose future was dropped and waits for its end, as far as the host can tell it soon.
    pub async fn cancel(mut self) {
        if self.writer.close().await.is_ok() {
            let _ = timeout(CANCEL, async { while let Ok(Some(_)) = self.reader.next().await {} }).await;
        }
    }
}

async fn receive<T>(from: Option<&mut tokio::sync::mpsc::Receiver<T>>) -> Option<T> {
    match from {
        Some(from) => from.recv().await,
        None => None,
    }
}

fn vanished(error: Error) -> Error {
    Error::unavailable(format!(
        "the host process went away during the call ({error}); its log says why: `skillhost host log`"
    ))
}
