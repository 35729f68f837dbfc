//! Connections: how many, how slow they may be, and how they end.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;

use super::front::Front;
use crate::api::server::{PATIENCE, stopped};
use crate::config::HttpConfig;

/// The most bytes of a request's head.
const MAX_HEAD: usize = 32 << 10;

/// The most headers of a request.
const MAX_HEADERS: usize = 100;

/// What is read and written at a time.
const BUFFER: usize = 64 << 10;

/// How long a stop lets calls take to be answered that they were stopped, before it ends what streams.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// When a silent connection is asked whether there is still somebody, and how often, before it counts as gone.
const SILENT: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(10);
const ASK_TIMES: u32 = 3;

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    connections: usize,
    header_timeout: Duration,
    write_timeout: Duration,
}

impl Bounds {
    pub(super) fn of(config: &HttpConfig) -> Self {
        Self {
            connections: config.max_connections,
            header_timeout: config.header_timeout.0,
            write_timeout: config.write_timeout.0,
        }
    }
}

/// Serves until it is told to stop. Nobody is let in from then on; when this returns, no connection and no call is left.
pub(super) async fn serve(listener: TcpListener, front: Arc<Front>, bounds: Bounds, stop: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let mut stopping = stop.clone();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < bounds.connections => match accepted {
                Ok((stream, _)) => {
                    let (front, stop) = (Arc::clone(&front), stop.clone());
                    connections.spawn(async move {
                        if let Err(error) = connection(stream, front, bounds, stop).await {
                            tracing::debug!("an HTTP connection ended: {error}");
                        }
                    });
                }
                // Out of descriptors, say: a connection that ends gives some back, and so may another program.
                Err(error) => {
                    tracing::warn!("no HTTP connection can be accepted: {error}");
                    let _ = timeout(Duration::from_secs(1), connections.join_next()).await;
                }
            },
            _ = connections.join_next(), if !connections.is_empty() => {}
            () = stopped(&mut stopping) => break,
        }
    }
    drop(listener);
    // Each of them has seen the stop too; none may hold up the end.
    if timeout(LAST_ANSWERS, ended(&mut connections)).await.is_err() {
        front.end_streams();
        let _ = timeout(PATIENCE, ended(&mut connections)).await;
    }
    connections.shutdown().await;
}

async fn ended(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    front: Arc<Front>,
    bounds: Bounds,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let local = stream.local_addr()?;
    stream.set_nodelay(true)?;
    notice_silence(&stream)?;
    let _connected = front.metrics.connected();
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(bounds.write_timeout));
    let service = service_fn(|request| {
        let front = Arc::clone(&front);
        async move { Ok::<_, Infallible>(front.answer(request, local).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        // Runs while a connection is idle as well.
        .header_read_timeout(bounds.header_timeout)
        .max_header_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .max_buf_size(BUFFER);
    let mut serving = std::pin::pin!(http.serve_connection(TokioIo::new(Box::pin(stream)), service));
    tokio::select! {
        ended = serving.as_mut() => return Ok(ended?),
        () = stopped(&mut stop) => {}
    }
    // At once when it is idle, else after the answer that is under way.
    serving.as_mut().graceful_shutdown();
    Ok(serving.await?)
}

/// A client whose machine or network went away says nothing: without this its call would go on to its own deadline.
fn notice_silence(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, SILENT)?;
    sockopt::set_tcp_keepintvl(stream, ASK_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, ASK_TIMES)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
