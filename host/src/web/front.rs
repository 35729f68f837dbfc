//! What happens to one request. The order of the checks is that of the table in [`super`].

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, AUTHORIZATION, VARY,
};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::timeout;

use super::body::{Held, whole};
use super::counted::Counted;
use super::doorplate::Doorplate;
use super::metrics::{CONTENT_TYPE, Endpoint, Metrics};
use super::refusal::{Answer, Reason, Refusal, respond};
use super::visitors::Visitors;
use crate::config::HttpConfig;
use crate::config::McpConfig;
use crate::mcp::{Server, Whose};
use crate::process::HostService;

/// How long the host may take to say that it is ready.
const READY: Duration = Duration::from_secs(5);

const TEXT: &str = "text/plain; charset=utf-8";

type Mcp = StreamableHttpService<Server<Counted<HostService>>, NeverSessionManager>;

/// Answers requests.
pub(super) struct Front {
    plate: Doorplate,
    visitors: Visitors,
    max_body: usize,
    body_timeout: Duration,
    mcp: Mcp,
    server: Server<Counted<HostService>>,
    service: Arc<HostService>,
    pub(super) metrics: Arc<Metrics>,
    stop: watch::Receiver<bool>,
}

impl Front {
    pub(super) fn new(
        config: &HttpConfig,
        options: Arc<McpConfig>,
        visitors: Visitors,
        service: Arc<HostService>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let metrics = Metrics::new();
        let counted = Counted::new(Arc::clone(&service), Arc::clone(&metrics), stop.clone());
        let server = Server::new(Arc::new(counted), Whose::OfRequest, options);
        // Hosts, origins and bodies are checked here, before a token is looked at; a second list would only differ.
        let how = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(true)
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(config.max_body.bytes());
        Self {
            plate: Doorplate::new(config),
            visitors,
            max_body: config.max_body.bytes(),
            body_timeout: config.body_timeout.0,
            server: server.clone(),
            mcp: StreamableHttpService::new(move || Ok(server.clone()), Arc::default(), how),
            service,
            metrics,
            stop,
        }
    }

    /// Ends the answers that go on for as long as their client listens.
    pub(super) fn end_streams(&self) {
        self.mcp.config.cancellation_token.cancel();
    }

    /// Answers a request that came to the address `local`.
    pub(super) async fn answer(&self, request: Request<Incoming>, local: std::net::SocketAddr) -> Response<Held> {
        let endpoint = Endpoint::at(request.uri().path());
        let mut under_way = self.metrics.begin(endpoint);
        let (parts, body) = request.into_parts();
        let (mut answer, slot) = match self.admit(endpoint, parts, body, local).await {
            Ok(answered) => answered,
            Err(refusal) => (self.refuse(refusal), None),
        };
        // What depends on the token must not be kept for another one.
        answer.headers_mut().entry(http::header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        under_way.answered(answer.status());
        answer.map(|body| Held::new(body, slot, under_way))
    }

    fn refuse(&self, refusal: Refusal) -> Answer {
        self.metrics.refused(refusal.reason);
        tracing::debug!(reason = ?refusal.reason, "a request was turned away");
        refusal.answer()
    }

    async fn admit(
        &self,
        endpoint: Endpoint,
        parts: Parts,
        body: Incoming,
        local: std::net::SocketAddr,
    ) -> Result<(Answer, Option<OwnedSemaphorePermit>), Refusal> {
        self.plate.meant(&parts, local)?;
        let Some(origin) = self.plate.origin(&parts.headers)? else {
            return self.enter(endpoint, parts, body).await;
        };
        // A browser asks first, without the token, and shows a page nothing that does not say that it may be shown.
        let (mut answer, slot) = match parts.method == Method::OPTIONS {
            true => (permission(), None),
            false => match self.enter(endpoint, parts, body).await {
                Ok(answered) => answered,
                Err(refusal) => (self.refuse(refusal), None),
            },
        };
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
        headers.append(VARY, HeaderValue::from_static("Origin"));
        Ok((answer, slot))
    }

    async fn enter(
        &self,
        endpoint: Endpoint,
        parts: Parts,
        body: Incoming,
    ) -> Result<(Answer, Option<OwnedSemaphorePermit>), Refusal> {
        if endpoint == Endpoint::Mcp {
            return self.mcp(parts, body).await;
        }
        if endpoint != Endpoint::Other && ![Method::GET, Method::HEAD].contains(&parts.method) {
            return Err(Refusal::new(Reason::Method, "this path is only read: use GET"));
        }
        let answer = match endpoint {
            Endpoint::Healthz => respond(StatusCode::OK, TEXT, "it serves\n"),
            Endpoint::Readyz => {
                self.ready().await?;
                respond(StatusCode::OK, TEXT, "it is ready\n")
            }
            Endpoint::Metrics => {
                self.visitors.find(&parts.headers)?;
                // Writing to a string does not fail.
                let text = self.metrics.text(&self.service.status()).unwrap_or_default();
                respond(StatusCode::OK, CONTENT_TYPE, text)
            }
            Endpoint::Mcp | Endpoint::Other => {
                let message =
                    "there is nothing at this path: MCP is at /mcp, besides there are /healthz, /readyz and /metrics";
                return Err(Refusal::new(Reason::NotFound, message));
            }
        };
        Ok((answer, None))
    }

    async fn mcp(&self, mut parts: Parts, body: Incoming) -> Result<(Answer, Option<OwnedSemaphorePermit>), Refusal> {
        let visitor = self.visitors.find(&parts.headers)?;
        let slot = visitor.enter()?;
        // Only what is posted has a meaning: nothing else is read.
        let body = match parts.method == Method::POST {
            true => whole(body, self.max_body, self.body_timeout).await?,
            false => Bytes::new(),
        };
        // The token has said what it has to say; it shall stand in no log further in.
        parts.headers.remove(AUTHORIZATION);
        parts.extensions.insert(visitor.identity().clone());
        // The SDK has no use for a notification that is a request by itself.
        self.server.notified(visitor.identity(), &body);
        let answer = self.mcp.handle(Request::from_parts(parts, Full::new(body))).await;
        Ok((answer, Some(slot)))
    }

    async fn ready(&self) -> Result<(), Refusal> {
        if *self.stop.borrow() {
            return Err(Refusal::new(Reason::NotReady, "the host process is about to leave"));
        }
        match timeout(READY, self.service.ready()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                // Whoever asks needs no token, so the reason is for the log.
                tracing::error!("not ready: {error}");
                Err(Refusal::new(Reason::NotReady, "the host cannot work; its log says why"))
            }
            Err(_) => Err(Refusal::new(Reason::NotReady, "the host does not answer")),
        }
    }
}

/// What a browser is told that asks whether a page may send a request.
fn permission() -> Answer {
    let mut answer = respond(StatusCode::NO_CONTENT, TEXT, Bytes::new());
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    // The star does not stand for this one.
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, Authorization"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    answer
}
