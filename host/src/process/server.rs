//! Serves calls on a listening Unix socket.
//!
//! # Invariants
//!
//! - Only the state directory's owner is answered, and from no sandbox: the socket's mode says the one, and each peer is
//!   looked at as well ([`peer`]).
//! - A connection carries one call at a time. When its client leaves, half or whole, the call's future is dropped at
//!   once, and that cancels all that the call started. Nothing else may keep a call alive, so calls run inside the task
//!   of their connection, not in one of their own.
//! - A bug that panics in one call is an error to its caller and nothing to others.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use skillhost_api::answer::Answer;
use skillhost_api::error::{Error, Result};
use skillhost_api::io::{CallIo, CallOutput};
use skillhost_api::service::{Service, bug, stopped, told_to_stop};
use skillhost_api::types::{Authority, Call};
use skillhost_api::wire::{Frame, FrameKind, FrameReader, FrameWriter, Hello};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::connections::{Connections, ServedConnection, TenantPlace, TenantPlaces};
use super::peer;
use crate::policy::{MemoryBudget, MemoryHold, UNREAD};

/// Pieces of output that wait for the socket, and pieces of input that wait for the call.
const QUEUE: usize = 16;

/// The most connections at once. Those that wait for their next request give way to more, else these wait.
const MAX_CONNECTIONS: usize = 1_024;

/// How long a new connection may take to say hello, a leaving one to take what is last said to it, and the first one to
/// come at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How soon a service that was busy is looked at again at the earliest, however short the idle timeout is.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Options of serving the socket.
#[derive(Debug)]
pub struct ServeOptions {
    /// What is said to each client first.
    pub hello: Hello,
    /// Leave after this long without a connection and with nothing under way; `None` stays.
    pub idle_timeout: Option<Duration>,
    /// Becomes true when it is time to leave.
    pub stop: watch::Receiver<bool>,
}

/// Serves until it is told to stop or has been idle. The socket is closed first; when this returns, no connection and no
/// call is left.
pub async fn serve<S: Service>(listener: UnixListener, service: Arc<S>, options: ServeOptions) -> Result<()> {
    serve_within(listener, service, options, SocketLimits::of(MemoryBudget::new(u64::MAX))).await
}

/// What there may be of all clients together.
pub(super) struct SocketLimits {
    pub(super) connections: usize,
    /// Of it requests and answers are held.
    pub(super) memory: MemoryBudget,
}

impl SocketLimits {
    pub(super) fn of(memory: MemoryBudget) -> Self {
        Self { connections: MAX_CONNECTIONS, memory }
    }
}

/// The same, within these limits.
pub(super) async fn serve_within<S: Service>(
    listener: UnixListener,
    service: Arc<S>,
    options: ServeOptions,
    limits: SocketLimits,
) -> Result<()> {
    let mut connections = Connections::new(limits.connections);
    let mut idle_since = Instant::now();
    // Whoever started it is on the way, and must not come too late because the timeout is short.
    let mut idle_timeout = options.idle_timeout.map(|timeout| timeout.max(PATIENCE));
    let hello = Arc::new(options.hello);
    let places = TenantPlaces::half_of(limits.connections);
    let mut stopping = options.stop.clone();
    loop {
        let idle = connections.is_empty();
        let leave_at = idle_timeout.map(|timeout| idle_since + timeout);
        tokio::select! {
            new = connections.changed(listener.accept()) => {
                idle_since = Instant::now();
                if let Some(((stream, _), new)) = new {
                    idle_timeout = options.idle_timeout;
                    let door = Door {
                        service: Arc::clone(&service),
                        memory: limits.memory.clone(),
                        places: Arc::clone(&places),
                    };
                    let (hello, stop) = (Arc::clone(&hello), options.stop.clone());
                    connections.spawn(new, |connection| async move {
                        serve_connection(stream, &connection, &door, &hello, stop).await
                    });
                }
            }
            () = sleep_until(leave_at.unwrap_or(idle_since)), if idle && leave_at.is_some() => {
                if !service.busy() {
                    break;
                }
                idle_since = Instant::now().max(idle_since + LOOK_AGAIN);
            }
            () = stopped(&mut stopping) => break,
        }
    }
    drop(listener);
    // Each of them has seen the stop too; none may hold up the end.
    let _ = timeout(PATIENCE, connections.ended()).await;
    connections.shutdown().await;
    Ok(())
}

/// What all connections have in common.
struct Door<S> {
    service: Arc<S>,
    memory: MemoryBudget,
    places: Arc<TenantPlaces>,
}

impl<S: Service> Door<S> {
    /// The next request, held by its tenant, with its place; `None` when the client has left.
    async fn request(&self, from: &mut FrameReader<OwnedReadHalf>) -> Result<Option<Result<Admitted>>> {
        let bytes = loop {
            match from.coming().await? {
                None => return Ok(None),
                Some((FrameKind::Request, bytes)) => break bytes as u64,
                // Input of an earlier call that had crossed its answer.
                Some((FrameKind::Stdin | FrameKind::StdinEnd, _)) => from.skip().await?,
                Some((kind, _)) => return Err(unexpected(kind)),
            }
        };
        // What is held for nobody yet is not held for long.
        let Ok(read) = timeout(PATIENCE, self.read(bytes, from)).await else {
            return Err(Error::timed_out("its request did not come whole"));
        };
        Ok(Some(read?.and_then(|call| self.admit(call, bytes))))
    }

    /// A request of so many bytes, which are held while whose it is is not known: it says that itself.
    async fn read(&self, bytes: u64, from: &mut FrameReader<OwnedReadHalf>) -> Result<Result<Call>> {
        let _unread = match self.memory.take(UNREAD, bytes) {
            Ok(held) => held,
            Err(full) => {
                from.skip().await?;
                return Ok(Err(full));
            }
        };
        let Some(frame) = from.next().await? else { return Err(Error::unavailable("the client left")) };
        Ok(frame.parse().map_err(|error| Error::invalid_argument(format!("the host cannot read the request: {error}"))))
    }

    fn admit(&self, call: Call, bytes: u64) -> Result<Admitted> {
        let place = match call.authority {
            Authority::Agent => Some(self.places.enter(&call.caller.tenant).ok_or_else(|| self.no_place())?),
            // Whoever looks after the host gets in whatever its agents do.
            Authority::Owner | Authority::Person | Authority::Declined => None,
        };
        let held = self.memory.take(&call.caller.tenant, bytes)?;
        Ok(Admitted { call, held, _place: place })
    }

    fn no_place(&self) -> Error {
        Error::quota_exceeded(format!(
            "the tenant has {} calls under way over the host's socket, half of what it carries: wait until one has ended",
            self.places.most()
        ))
    }
}

/// A request that is let in.
struct Admitted {
    call: Call,
    held: MemoryHold,
    _place: Option<TenantPlace>,
}

async fn serve_connection<S: Service>(
    stream: UnixStream,
    served: &Arc<ServedConnection>,
    door: &Door<S>,
    hello: &Hello,
    mut stop: watch::Receiver<bool>,
) -> Result<()> {
    let known = peer::check(&stream);
    let (read, write) = stream.into_split();
    let mut connection = ClientConnection { reader: FrameReader::new(read), writer: FrameWriter::new(write) };
    if let Err(refused) = known {
        // It is told why, and nothing that it says is read.
        let told = async {
            connection.writer.hello(hello).await?;
            connection.writer.send(Frame::json(FrameKind::Error, &refused)?).await
        };
        let _ = timeout(PATIENCE, told).await;
        return Err(refused);
    }
    let Ok(theirs) = timeout(PATIENCE, connection.hello(hello)).await else {
        return Err(Error::timed_out("it said no hello"));
    };
    if !theirs?.is_some_and(|theirs| theirs.same_version()) {
        // It has our hello and tells its user what to do about it.
        return Ok(());
    }
    loop {
        let request = tokio::select! {
            biased;
            request = door.request(&mut connection.reader) => request?,
            () = served.gives_way() => return Ok(()),
            () = stopped(&mut stop) => return Ok(()),
        };
        let busy = served.begin();
        match request {
            None => return Ok(()),
            Some(Ok(admitted)) => {
                busy.let_in();
                if !connection.call(&*door.service, admitted, &mut stop).await? {
                    return Ok(());
                }
            }
            Some(Err(error)) => connection.writer.send(Frame::json(FrameKind::Error, &error)?).await?,
        }
    }
}

fn unexpected(kind: FrameKind) -> Error {
    Error::invalid_argument(format!("the client sent a {kind:?} where none may stand"))
}

struct ClientConnection {
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
}

impl ClientConnection {
    async fn hello(&mut self, ours: &Hello) -> Result<Option<Hello>> {
        self.writer.hello(ours).await?;
        self.reader.hello().await
    }

    /// Runs one call to its end. False when the connection is to be closed.
    async fn call<S: Service>(
        &mut self,
        service: &S,
        admitted: Admitted,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<bool> {
        // Held is its request, and then its answer until that is sent.
        let Admitted { call, mut held, _place } = admitted;
        let (output, mut pieces) = mpsc::channel(QUEUE);
        let (mut input, receiver) = match call.request.takes_input() {
            true => {
                let (sender, receiver) = mpsc::channel(QUEUE);
                (Some(sender), Some(receiver))
            }
            false => (None, None),
        };
        // A slot of the channel for each credit that was given: what a client sends always has its place.
        let mut slots: VecDeque<mpsc::OwnedPermit<Bytes>> = VecDeque::new();
        // On the heap, so that it can be dropped while the rest of this function goes on.
        let future =
            Box::pin(AssertUnwindSafe(service.answer(call, CallIo { output, input: receiver })).catch_unwind());
        let mut future = Some(future);
        let mut result = None;
        let (mut output_open, mut answered) = (true, false);

        loop {
            if !output_open && !self.writer.pending() {
                if answered {
                    return Ok(!*stop.borrow());
                }
                if let Some(ended) = result.take() {
                    self.writer.begin(last_frame(ended)?);
                    answered = true;
                }
            }
            tokio::select! {
                biased;
                frame = self.reader.next() => match frame? {
                    // The client gave up: the call ends here, and the closing of the connection says that it has.
                    None => return Ok(false),
                    Some(frame) if frame.kind == FrameKind::Stdin => match slots.pop_front() {
                        Some(slot) => drop(slot.send(frame.payload)),
                        // The call wants no more of it, or has ended.
                        None if input.is_none() => {}
                        None => return Err(Error::invalid_argument("the client sent input that it had no credit for")),
                    },
                    Some(frame) if frame.kind == FrameKind::StdinEnd => {
                        input = None;
                        slots.clear();
                    }
                    Some(frame) => return Err(unexpected(frame.kind)),
                },
                flushed = self.writer.flush(), if self.writer.pending() => flushed?,
                () = stopped(stop), if future.is_some() => {
                    future = None;
                    result = Some(Err(told_to_stop()));
                    pieces.close();
                }
                slot = reserve(input.as_ref()), if input.is_some() && !self.writer.pending() => match slot {
                    Some(slot) => {
                        slots.push_back(slot);
                        self.writer.begin(Frame::empty(FrameKind::Credit));
                    }
                    None => {
                        input = None;
                        slots.clear();
                    }
                },
                piece = pieces.recv(), if output_open && !self.writer.pending() => match piece {
                    Some(piece) => self.writer.begin(output_frame(piece)?),
                    None => output_open = false,
                },
                ended = run(future.as_mut()), if future.is_some() => {
                    future = None;
                    result = Some(ended.unwrap_or_else(|panic| Err(bug(&*panic))).and_then(|answer| held_answer(answer, &mut held)));
                    input = None;
                    slots.clear();
                    pieces.close();
                }
            }
        }
    }
}

async fn run<F: Future + Unpin>(future: Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

async fn reserve(input: Option<&mpsc::Sender<Bytes>>) -> Option<mpsc::OwnedPermit<Bytes>> {
    input?.clone().reserve_owned().await.ok()
}

fn output_frame(output: CallOutput) -> Result<Frame> {
    match output {
        CallOutput::Event(event) => Frame::json(FrameKind::Event, &event),
        CallOutput::Stdout(payload) => Ok(Frame { kind: FrameKind::Stdout, payload }),
        CallOutput::Stderr(payload) => Ok(Frame { kind: FrameKind::Stderr, payload }),
    }
}

/// An answer as it is sent, which is held until then in the place of the request.
fn held_answer(answer: Answer, held: &mut MemoryHold) -> Result<Frame> {
    let json = answer.json()?;
    held.resize(json.len() as u64)
        .and_then(|()| Frame::written(FrameKind::Answer, json))
        .map_err(|error| error.context("the answer"))
}

fn last_frame(result: Result<Frame>) -> Result<Frame> {
    match result {
        Ok(frame) => Ok(frame),
        Err(error) => Frame::json(FrameKind::Error, &error),
    }
}
