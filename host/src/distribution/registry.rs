//! A registry, over HTTP: what the OCI distribution specification has it answer, and no more of that than is asked for.
//!
//! Each answer is read to a bound and within a deadline, whatever was said of its length; a blob has the size and the digest that its
//! manifest gives, and a manifest the digest that it was asked for by. So a registry can refuse and be slow, and can give nothing
//! else than was published, but for a tag, which is its word alone (unless it is signed, see [`super::signature`]).
//!
//! Redirects are followed, as registries keep blobs elsewhere: from TLS to TLS alone, and with no credential to another host. That
//! a redirect, or the place where tokens are had, may be in the owner's own network is no more than whoever names a registry lets it
//! do: nothing that comes from there is shown, but as the content of a blob whose digest was known before.

use std::path::{Path, PathBuf};
use std::time::Duration;

use docker_credential::DockerCredential;
use parking_lot::Mutex;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION, WWW_AUTHENTICATE};
use reqwest::{Method, StatusCode, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use skillhost_api::error::{Error, Result};

use super::artifact::{MANIFEST, OciDescriptor, OciManifest};
use super::credentials;
use super::reference::Reference;
use crate::digest::sha256;
use crate::rooted::read_named;

/// The most bytes of a manifest: what registries take.
const MAX_MANIFEST: u64 = 4 * 1024 * 1024;
/// The most bytes of a token, and of what is read of an error.
const MAX_TOKEN: u64 = 256 * 1024;
const MAX_SAID: u64 = 16 * 1024;
/// How much of a registry's own words is repeated.
const MAX_REPEATED: usize = 300;
/// How long it may take until there is a connection.
const CONNECTING: Duration = Duration::from_secs(10);
/// How often one leads to another.
const MAX_REDIRECTS: usize = 5;
/// The most bytes of a file of certificates.
const MAX_CERTIFICATES: u64 = 4 * 1024 * 1024;

/// How registries are reached.
#[derive(Debug, Clone)]
pub(crate) struct RegistryAccess {
    /// Without TLS, also where the registry is not on this machine.
    pub(crate) plain_http: bool,
    /// The directory of Docker's configuration.
    pub(crate) docker_config: Option<PathBuf>,
    /// Files of certificates that are trusted besides those of the system.
    pub(crate) certificates: Vec<PathBuf>,
    /// How long an answer may take, to its end.
    pub(crate) timeout: Duration,
}

/// What is to be done in a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RegistryUse {
    Pull,
    Push,
}

/// The client of one repository.
pub(crate) struct RegistryClient {
    http: reqwest::Client,
    /// The same, for what has a secret in its body.
    tokens: reqwest::Client,
    reference: Reference,
    base: Url,
    scope: String,
    credential: Option<DockerCredential>,
    /// What is sent with each request, once the registry has said what it wants.
    authorization: Mutex<Option<HeaderValue>>,
    timeout: Duration,
}

/// An answer, read.
struct RegistryAnswer {
    status: StatusCode,
    headers: HeaderMap,
    url: Url,
    body: Vec<u8>,
}

/// A request, which may have to be made twice.
struct RegistryRequest<'a> {
    method: Method,
    url: Url,
    headers: &'a [(reqwest::header::HeaderName, &'static str)],
    body: Option<Vec<u8>>,
    max: u64,
}

impl RegistryClient {
    /// For the repository of `reference`. Asks nothing yet, but Docker's configuration for a credential.
    pub(crate) fn open(reference: &Reference, access: &RegistryAccess, purpose: RegistryUse) -> Result<Self> {
        let base = base_url(reference, access.plain_http || reference.is_local())?;
        let follow = redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > MAX_REDIRECTS {
                attempt.error("it leads from one place to the next without an end")
            } else if attempt.url().scheme() != "https" && attempt.previous().iter().any(|url| url.scheme() == "https")
            {
                attempt.error("it leads from TLS to a place without")
            } else {
                attempt.follow()
            }
        });
        let tls = tls(&access.certificates)?;
        let client = |redirect: redirect::Policy| {
            let builder = reqwest::Client::builder()
                .user_agent(concat!("skillhost/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECTING)
                .redirect(redirect)
                .tls_backend_preconfigured(tls.clone());
            // What is on this machine is asked without encryption, and by nobody else.
            let builder = if reference.is_local() { builder.no_proxy() } else { builder };
            builder.build().map_err(|error| Error::other(format!("no HTTP client can be made: {error}")))
        };
        // A token is had for a secret in the body, which no redirect takes elsewhere.
        let (http, tokens) = (client(follow)?, client(redirect::Policy::none())?);
        let credential = match &access.docker_config {
            Some(dir) => credentials::find(dir, reference)?,
            None => None,
        };
        let actions = if purpose == RegistryUse::Push { "pull,push" } else { "pull" };
        Ok(Self {
            http,
            tokens,
            base,
            scope: format!("repository:{}:{actions}", reference.repository),
            reference: reference.clone(),
            credential,
            authorization: Mutex::default(),
            timeout: access.timeout,
        })
    }

    /// The manifest of `reference`, with its digest. None where the registry has none.
    pub(crate) async fn manifest(&self, reference: &Reference) -> Result<Option<(OciManifest, String)>> {
        let ask = RegistryRequest {
            method: Method::GET,
            url: self.url(&format!("manifests/{}", reference.version()))?,
            headers: &[(ACCEPT, MANIFEST)],
            body: None,
            max: MAX_MANIFEST,
        };
        let answer = self.ask(ask).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        let answer = self.expect(answer, StatusCode::OK, "the manifest")?;
        let digest = sha256(&answer.body);
        if let Some(asked) = reference.digest.as_ref().filter(|asked| **asked != digest) {
            return Err(self.lies(&format!("it was asked for the manifest {asked} and gave {digest}")));
        }
        let manifest = OciManifest::read(&answer.body).map_err(|error| error.context(reference))?;
        Ok(Some((manifest, digest)))
    }

    /// The bytes of a blob, which are those that its descriptor says.
    pub(crate) async fn blob(&self, blob: &OciDescriptor) -> Result<Vec<u8>> {
        let ask = RegistryRequest {
            method: Method::GET,
            url: self.url(&format!("blobs/{}", blob.digest))?,
            headers: &[],
            body: None,
            max: blob.size,
        };
        let answer = self.expect(self.ask(ask).await?, StatusCode::OK, "a layer")?;
        let (size, digest) = (answer.body.len() as u64, sha256(&answer.body));
        if (size, &digest) != (blob.size, &blob.digest) {
            return Err(self.lies(&format!(
                "its manifest has a layer {} of {} bytes, and it gave {size} bytes with {digest}",
                blob.digest, blob.size
            )));
        }
        Ok(answer.body)
    }

    /// Puts a blob there, if it is not there yet.
    pub(crate) async fn push_blob(&self, bytes: Vec<u8>) -> Result<()> {
        let digest = sha256(&bytes);
        let there = RegistryRequest {
            method: Method::HEAD,
            url: self.url(&format!("blobs/{digest}"))?,
            headers: &[],
            body: None,
            max: MAX_SAID,
        };
        if self.ask(there).await?.status == StatusCode::OK {
            return Ok(());
        }
        let begin = RegistryRequest {
            method: Method::POST,
            url: self.url("blobs/uploads/")?,
            headers: &[],
            body: None,
            max: MAX_SAID,
        };
        let begun = self.expect(self.ask(begin).await?, StatusCode::ACCEPTED, "an upload")?;
        let place = begun.headers.get(LOCATION).and_then(|place| begun.url.join(place.to_str().ok()?).ok());
        let mut place = place.ok_or_else(|| self.lies("it says nowhere to upload to"))?;
        // The credential goes along.
        if place.origin() != self.base.origin() {
            return Err(
                self.lies(&format!("it wants an upload to another place, {}", place.origin().ascii_serialization()))
            );
        }
        place.query_pairs_mut().append_pair("digest", &digest);
        let put = RegistryRequest {
            method: Method::PUT,
            url: place,
            headers: &[(CONTENT_TYPE, "application/octet-stream")],
            body: Some(bytes),
            max: MAX_SAID,
        };
        self.expect(self.ask(put).await?, StatusCode::CREATED, "the end of an upload").map(drop)
    }

    /// Puts a manifest there, under the tag or the digest of `reference`.
    pub(crate) async fn push_manifest(&self, reference: &Reference, bytes: Vec<u8>) -> Result<()> {
        let ask = RegistryRequest {
            method: Method::PUT,
            url: self.url(&format!("manifests/{}", reference.version()))?,
            headers: &[(CONTENT_TYPE, MANIFEST)],
            body: Some(bytes),
            max: MAX_SAID,
        };
        self.expect(self.ask(ask).await?, StatusCode::CREATED, "the manifest").map(drop)
    }

    fn url(&self, path: &str) -> Result<Url> {
        self.base.join(path).map_err(|error| Error::invalid_argument(format!("{}: {error}", self.reference)))
    }

    /// One request, made again with what the registry wants to see first.
    async fn ask(&self, ask: RegistryRequest<'_>) -> Result<RegistryAnswer> {
        let authorization = self.authorization.lock().clone();
        let answer = self.send(&ask, authorization.as_ref()).await?;
        // What a place that it leads to wants is no business of the registry's credential.
        if answer.status != StatusCode::UNAUTHORIZED || answer.url.origin() != self.base.origin() {
            return Ok(answer);
        }
        let wanted = self.authorize(&answer.headers).await?;
        *self.authorization.lock() = Some(wanted.clone());
        self.send(&ask, Some(&wanted)).await
    }

    async fn send(&self, ask: &RegistryRequest<'_>, authorization: Option<&HeaderValue>) -> Result<RegistryAnswer> {
        let mut request = self.http.request(ask.method.clone(), ask.url.clone());
        for (name, value) in ask.headers {
            request = request.header(name, *value);
        }
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(body) = &ask.body {
            request = request.body(body.clone());
        }
        self.read(request, ask.max).await
    }

    /// Sends a request and reads its answer: to its end, to the deadline, or to one byte too many.
    async fn read(&self, request: reqwest::RequestBuilder, max: u64) -> Result<RegistryAnswer> {
        let registry = &self.reference.registry;
        let reading = async {
            let mut response = request.send().await.map_err(|error| self.failed(&error))?;
            let (status, headers, url) = (response.status(), response.headers().clone(), response.url().clone());
            let mut body = Vec::new();
            let max = if status.is_success() { max } else { MAX_SAID };
            while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(&error))? {
                body.extend_from_slice(&chunk);
                if body.len() as u64 > max {
                    match status.is_success() {
                        true => {
                            return Err(Error::too_large(format!(
                                "the registry {registry} sends more than the {max} bytes that this may have"
                            )));
                        }
                        // Enough of its words.
                        false => break,
                    }
                }
            }
            Ok(RegistryAnswer { status, headers, url, body })
        };
        tokio::time::timeout(self.timeout, reading).await.map_err(|_| {
            Error::new(
                skillhost_api::error::ErrorKind::TimedOut,
                format!(
                    "the registry {registry} has not answered to the end within {} s, so nothing was done; `timeout` under \
                     [install] in skillhost.toml says how long it has",
                    self.timeout.as_secs_f64()
                ),
            )
        })?
    }

    /// What to send, by what a refusal asks for.
    async fn authorize(&self, refused: &HeaderMap) -> Result<HeaderValue> {
        let challenges = refused.get_all(WWW_AUTHENTICATE).iter().filter_map(|header| header.to_str().ok());
        for header in challenges {
            for challenge in http_auth::parser::ChallengeParser::new(header).flatten() {
                let param = |wanted: &str| {
                    let found = challenge.params.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
                    found.map(|(_, value)| value.to_unescaped())
                };
                if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    let realm = param("realm")
                        .ok_or_else(|| self.lies("it asks for a token and does not say where it is had"))?;
                    return self.token(&realm, param("service")).await;
                }
                if challenge.scheme.eq_ignore_ascii_case("basic") {
                    return match &self.credential {
                        Some(DockerCredential::UsernamePassword(name, password)) => basic(name, password),
                        _ => Err(self.denied("it asks for a name and a password")),
                    };
                }
            }
        }
        Err(self.denied("it does not say how to be asked"))
    }

    /// A token for the repository, from where the registry has it had.
    async fn token(&self, realm: &str, service: Option<String>) -> Result<HeaderValue> {
        let realm: Url = realm.parse().map_err(|_| self.lies("the place where its tokens are had is no address"))?;
        // A password goes there.
        if realm.scheme() != "https" && self.base.scheme() == "https" {
            return Err(self.lies(&format!("its tokens are had from {realm}, without TLS")));
        }
        let service = service.unwrap_or_default();
        let request = match &self.credential {
            Some(DockerCredential::IdentityToken(token)) => {
                let form = [
                    ("grant_type", "refresh_token"),
                    ("service", &service),
                    ("client_id", "skillhost"),
                    ("scope", &self.scope),
                    ("refresh_token", token),
                ];
                // As a URL writes its query.
                let encoded = Url::parse_with_params("http://form", form).ok();
                let body = encoded.and_then(|url| url.query().map(str::to_owned)).unwrap_or_default();
                self.tokens.post(realm).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
            }
            other => {
                let mut url = realm;
                url.query_pairs_mut().append_pair("service", &service).append_pair("scope", &self.scope);
                let request = self.http.get(url);
                match other {
                    Some(DockerCredential::UsernamePassword(name, password)) => {
                        request.header(AUTHORIZATION, basic(name, password)?)
                    }
                    _ => request,
                }
            }
        };
        let answer = self.expect(self.read(request, MAX_TOKEN).await?, StatusCode::OK, "a token")?;
        let token: Token =
            serde_json::from_slice(&answer.body).map_err(|_| self.lies("what it gives for a token is none"))?;
        let token = token.token.or(token.access_token).ok_or_else(|| self.lies("what it gives for a token is none"))?;
        secret(&format!("Bearer {token}"))
    }

    /// The answer, when it is the one that was hoped for.
    fn expect(&self, answer: RegistryAnswer, status: StatusCode, what: &str) -> Result<RegistryAnswer> {
        if answer.status == status {
            return Ok(answer);
        }
        let said = RegistryErrors::said(&answer.body);
        let registry = &self.reference.registry;
        Err(match answer.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => self.denied(&format!("it refused {what}{said}")),
            StatusCode::NOT_FOUND => {
                Error::not_found(format!("the registry {registry} has no {}{said}", self.reference))
            }
            StatusCode::TOO_MANY_REQUESTS => Error::unavailable(format!(
                "the registry {registry} wants to be asked less often{said}: try again later"
            )),
            status => {
                Error::unavailable(format!("the registry {registry} was asked for {what} and answered {status}{said}"))
            }
        })
    }

    fn denied(&self, why: &str) -> Error {
        let registry = &self.reference.registry;
        let with = match self.credential {
            Some(_) => "with the credential of Docker's configuration",
            None => "without a credential, for Docker's configuration has none",
        };
        Error::denied(format!(
            "the registry {registry} was asked {with}: {why}. `docker login {registry}` keeps one that may"
        ))
    }

    fn lies(&self, what: &str) -> Error {
        Error::invalid_argument(format!("the registry {} is not to be believed: {what}", self.reference.registry))
    }

    fn failed(&self, error: &reqwest::Error) -> Error {
        let mut causes = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(deeper) = cause {
            causes = format!("{causes}: {deeper}");
            cause = deeper.source();
        }
        let registry = &self.reference.registry;
        let hint = match self.base.scheme() {
            "https" if error.is_connect() => "; for one that speaks without TLS there is --plain-http",
            _ => "",
        };
        Error::unavailable(format!("the registry {registry} cannot be asked: {}{hint}", shortened(&causes)))
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// What registries say of an error.
#[derive(Deserialize)]
struct RegistryErrors {
    errors: Vec<RegistryError>,
}

#[derive(Deserialize)]
struct RegistryError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl RegistryErrors {
    fn said(body: &[u8]) -> String {
        let read: Option<Self> = serde_json::from_slice(body).ok();
        let first = read.and_then(|read| read.errors.into_iter().next());
        first.map(|error| format!(" ({}: {})", shortened(&error.code), shortened(&error.message))).unwrap_or_default()
    }
}

/// Where the repository is.
pub(crate) fn base_url(reference: &Reference, plain_http: bool) -> Result<Url> {
    let scheme = if plain_http { "http" } else { "https" };
    let base = format!("{scheme}://{}/v2/{}/", reference.host(), reference.repository);
    base.parse().map_err(|error| Error::invalid_argument(format!("{reference}: {error}")))
}

fn shortened(words: &str) -> String {
    words.chars().take(MAX_REPEATED).collect()
}

fn basic(name: &str, password: &str) -> Result<HeaderValue> {
    use base64::Engine as _;
    secret(&format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"))))
}

fn secret(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::invalid_argument("the registry's credential has a character that no header can have"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The system's certificates, and those that the operator names.
fn tls(certificates: &[PathBuf]) -> Result<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    // One that cannot be read is one less; a registry whose certificate needs it says so.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for file in certificates {
        for certificate in read_certificates(file).map_err(|error| error.context(file.display()))? {
            roots.add(certificate).map_err(|error| Error::invalid_argument(format!("{}: {error}", file.display())))?;
        }
    }
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::other(format!("TLS cannot be set up: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read_named(file, MAX_CERTIFICATES)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| Error::invalid_argument(format!("it is no PEM: {error}")))?;
    if found.is_empty() {
        return Err(Error::invalid_argument("there is no certificate in it"));
    }
    Ok(found)
}
