//! Sandboxes as containers of a Docker-compatible engine on this machine.
//!
//! Containers are addressed by the engine's id and images by theirs: a name or a tag can be given to something else
//! between two calls. The engine is asked for the first time when it is needed, so a host without one still starts,
//! and a failed attempt is made again by the next call.
//!
//! The supervisor talks over a socket in a bind-mounted directory, so the engine must be on this machine and share its
//! kernel. One that is not (TCP, SSH, a virtual machine) is refused here; carrying the same frames over one engine exec
//! per sandbox is a second transport, which would begin where `Client::local`
//! refuses.

mod body;

use std::collections::HashMap;
use std::fmt::Display;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker as Api;
use bollard::errors::Error as ApiError;
use bollard::models::{ContainerCreateResponse, ContainerStateStatusEnum, ContainerSummaryStateEnum, SystemInfo};
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, ListContainersOptions, RemoveContainerOptions,
    StartContainerOptions, WaitContainerOptions,
};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;

use super::{Backend, Found, ImageId, LABEL_DEPLOYMENT, LABEL_SANDBOX, Probe, Running, confined};
use crate::error::{Error, ErrorKind, Result};
use crate::sandbox::images::Role;
use crate::sandbox::spec::SandboxSpec;

/// For a question: version, info, inspect, list.
const ASK: Duration = Duration::from_secs(10);
/// For making or starting a container on a machine under load.
const MAKE: Duration = Duration::from_secs(60);
/// For ending one, its file system's removal included.
const REMOVE: Duration = Duration::from_secs(30);

/// Where the engine listens when `DOCKER_HOST` does not say.
const DEFAULT_ENDPOINT: &str = "unix:///var/run/docker.sock";

/// Where engines listen when nobody says otherwise; never mounted, whichever is in use.
const KNOWN_SOCKETS: [&str; 4] =
    ["/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/podman/podman.sock", "/run/crio/crio.sock"];

/// A Docker-compatible engine.
pub struct Docker {
    endpoint: String,
    client: OnceCell<Client>,
}

/// An engine that has answered.
struct Client {
    api: Api,
    info: SystemInfo,
}

/// Refuses a path that holds the socket of an engine of this machine.
pub(super) fn never_an_engine(path: &Path) -> Result<PathBuf> {
    body::check_mount(path, &Docker::from_env().sockets())
}

impl Docker {
    /// The engine that `DOCKER_HOST` names, or the one at the usual place.
    pub fn from_env() -> Self {
        let endpoint = std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty());
        Self::at(endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()))
    }

    /// The engine at `endpoint`, written as in `DOCKER_HOST`.
    pub fn at(endpoint: impl Into<String>) -> Self {
        Self { endpoint: endpoint.into(), client: OnceCell::new() }
    }

    /// The engine's API, for what is not about sandboxes: providing their images.
    pub async fn api(&self) -> Result<&Api> {
        Ok(&self.client().await?.api)
    }

    async fn client(&self) -> Result<&Client> {
        self.client.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Client> {
        let api = Api::connect_with_host(&self.endpoint).map_err(|error| self.failed("connecting", error))?;
        let api = self.call("negotiating its version", ASK, api.negotiate_version()).await?;
        let info = self.call("asking what it is", ASK, api.info()).await?;
        Ok(Client { api, info })
    }

    /// One call with its deadline.
    async fn call<T>(
        &self,
        what: &str,
        deadline: Duration,
        call: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T> {
        match tokio::time::timeout(deadline, call).await {
            Ok(answer) => answer.map_err(|error| self.failed(what, error)),
            Err(_) => Err(self.silent(what, format!("no answer within {} s", deadline.as_secs()))),
        }
    }

    fn failed(&self, what: &str, error: ApiError) -> Error {
        match error {
            ApiError::DockerResponseServerError { status_code, message } => {
                let kind = match status_code {
                    400 => ErrorKind::InvalidArgument,
                    404 => ErrorKind::NotFound,
                    409 => ErrorKind::AlreadyExists,
                    _ => ErrorKind::Other,
                };
                Error::new(kind, format!("{what}: the container engine refused: {}", message.trim_end()))
            }
            other => self.silent(what, chain(&other)),
        }
    }

    fn silent(&self, what: &str, why: impl Display) -> Error {
        let endpoint = &self.endpoint;
        Error::unavailable(format!(
            "the container engine at {endpoint} does not answer ({what}: {why}): start it (`systemctl start docker`), \
             let this user reach its socket, or name another with DOCKER_HOST"
        ))
    }

    /// Every socket that gives power over an engine, as far as it is known.
    fn sockets(&self) -> Vec<PathBuf> {
        let own = self.endpoint.strip_prefix("unix://").map(PathBuf::from);
        own.into_iter().chain(KNOWN_SOCKETS.map(PathBuf::from)).collect()
    }

    async fn launch(&self, spec: &SandboxSpec) -> Result<Running> {
        let client = self.client().await?;
        client.local(&self.endpoint)?;
        let mut spec = spec.clone();
        spec.workspace = body::check_mount(&spec.workspace, &self.sockets())?;
        spec.control = body::check_mount(&spec.control, &self.sockets())?;
        let ContainerCreateResponse { id: engine_id, warnings: notes } = self.create(client, &spec).await?;
        let isolation = client.isolation(spec.runtime.as_deref());
        match self.start(client, &engine_id).await {
            Ok(init_pid) => Ok(Running { engine_id, init_pid, isolation, bare: false, notes }),
            Err(error) => {
                if let Err(left) = self.remove(&engine_id, Duration::ZERO).await {
                    return Err(Error::new(error.kind, format!("{error}; and then: {left}")));
                }
                Err(error)
            }
        }
    }

    /// Makes the container. The call goes on after its deadline: whatever it still makes is removed then.
    async fn create(&self, client: &Client, spec: &SandboxSpec) -> Result<ContainerCreateResponse> {
        let (api, body) = (client.api.clone(), body::container(spec));
        let options = CreateContainerOptions { name: Some(spec.name.clone()), ..CreateContainerOptions::default() };
        let mut creating = tokio::spawn(async move { api.create_container(Some(options), body).await });
        let what = "making the sandbox's container";
        match tokio::time::timeout(MAKE, &mut creating).await {
            Ok(Ok(answer)) => answer.map_err(|error| self.failed(what, error)),
            Ok(Err(task)) => Err(Error::other(format!("{what}: {task}"))),
            Err(_) => {
                let api = client.api.clone();
                tokio::spawn(async move {
                    if let Ok(Ok(late)) = creating.await {
                        let _ = api.remove_container(&late.id, Some(force())).await;
                    }
                });
                Err(self.silent(what, format!("no answer within {} s", MAKE.as_secs())))
            }
        }
    }

    /// Starts the container and gives its init's process id.
    async fn start(&self, client: &Client, engine_id: &str) -> Result<i32> {
        let start = client.api.start_container(engine_id, None::<StartContainerOptions>);
        self.call("starting the sandbox's container", MAKE, start).await?;
        self.init_pid(engine_id).await?.ok_or_else(|| {
            Error::sandbox_died(
                "the sandbox's container ended as soon as it was started: its supervisor could not run in it",
            )
        })
    }

    async fn init_pid(&self, engine_id: &str) -> Result<Option<i32>> {
        let api = &self.client().await?.api;
        let inspect = api.inspect_container(engine_id, None::<InspectContainerOptions>);
        let state = match self.call("looking at the sandbox's container", ASK, inspect).await {
            Ok(container) => container.state.unwrap_or_default(),
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let runs = state.status == Some(ContainerStateStatusEnum::RUNNING);
        Ok(state.pid.filter(|pid| runs && *pid > 1).and_then(|pid| i32::try_from(pid).ok()))
    }

    async fn remove(&self, engine_id: &str, grace: Duration) -> Result<()> {
        let api = &self.client().await?.api;
        if !grace.is_zero() && self.removed(api, engine_id, grace).await.is_ok() {
            return Ok(());
        }
        let remove = api.remove_container(engine_id, Some(force()));
        match self.call("removing the sandbox's container", REMOVE, remove).await {
            Ok(()) => Ok(()),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            // The engine is at it already, since the container's own end.
            Err(error) if error.kind == ErrorKind::AlreadyExists => self.removed(api, engine_id, REMOVE).await,
            Err(error) => Err(error),
        }
    }

    /// Waits until the engine has removed it.
    async fn removed(&self, api: &Api, engine_id: &str, deadline: Duration) -> Result<()> {
        let options = WaitContainerOptions { condition: "removed".to_owned() };
        let mut waiting = api.wait_container(engine_id, Some(options));
        let wait = async {
            match waiting.next().await {
                // An exit code that is not zero is this library's error, and still the container's end.
                None | Some(Ok(_) | Err(ApiError::DockerContainerWaitError { .. })) => Ok(()),
                Some(Err(ApiError::DockerResponseServerError { status_code: 404, .. })) => Ok(()),
                Some(Err(error)) => Err(error),
            }
        };
        self.call("waiting for the removal of the sandbox's container", deadline, wait).await
    }

    async fn list(&self, deployment: &str) -> Result<Vec<Found>> {
        let api = &self.client().await?.api;
        let filters = HashMap::from([("label".to_owned(), vec![format!("{LABEL_DEPLOYMENT}={deployment}")])]);
        let options = ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let containers = self.call("listing sandboxes", ASK, api.list_containers(Some(options))).await?;
        let found = containers.into_iter().filter_map(|container| {
            let id = container.labels?.get(LABEL_SANDBOX)?.clone();
            let running = container.state == Some(ContainerSummaryStateEnum::RUNNING);
            Some(Found { id, engine_id: container.id?, running })
        });
        Ok(found.collect())
    }
}

fn force() -> RemoveContainerOptions {
    // `v`: the anonymous volumes that an image may ask for go with their container.
    RemoveContainerOptions { force: true, v: true, ..RemoveContainerOptions::default() }
}

impl Client {
    /// Whether the engine shares this machine's kernel, files and users.
    fn local(&self, endpoint: &str) -> Result<()> {
        let (theirs, ours) = (self.info.kernel_version.as_deref().unwrap_or_default(), rustix::system::uname());
        let elsewhere = if !endpoint.starts_with("unix://") {
            Some("it is not reached through a Unix socket".to_owned())
        } else if theirs != ours.release().to_string_lossy() {
            Some(format!("it runs on another kernel ({theirs}), so in a virtual machine or elsewhere"))
        } else {
            None
        };
        if let Some(why) = elsewhere {
            return Err(Error::unavailable(format!(
                "the container engine at {endpoint} is not on this machine: {why}. Its sandboxes need the bridge \
                 transport, which this version of skillhost does not have; use an engine on this machine \
                 (DOCKER_HOST=unix://…)"
            )));
        }
        // There, a workspace would belong to nobody that a command can be.
        match ["name=rootless", "name=userns"].into_iter().find(|option| self.has_security_option(option)) {
            Some(option) => Err(Error::unavailable(format!(
                "the container engine at {endpoint} gives its containers users of their own ({option}), so that commands \
                 could not write to their workspace; use one that does not (DOCKER_HOST=unix://…)"
            ))),
            None => Ok(()),
        }
    }

    fn has_security_option(&self, name: &str) -> bool {
        self.info.security_options.iter().flatten().any(|option| option.split(',').any(|part| part == name))
    }

    fn isolation(&self, runtime: Option<&str>) -> String {
        let runtime = runtime.or(self.info.default_runtime.as_deref()).unwrap_or("default runtime");
        let seccomp = if self.has_security_option("name=seccomp") { "seccomp" } else { "no seccomp" };
        format!("docker ({runtime}, {seccomp})")
    }

    fn probe(&self, endpoint: &str) -> Result<Probe> {
        self.local(endpoint)?;
        let version = self.info.server_version.as_deref().unwrap_or("of unknown version");
        let isolation = self.isolation(None);
        let mut notes = Vec::new();
        for (missing, what) in [
            (self.info.memory_limit == Some(false), "memory"),
            (self.info.swap_limit == Some(false), "swap"),
            (self.info.pids_limit == Some(false), "number of processes"),
            (self.info.cpu_cfs_quota == Some(false), "processor time"),
        ] {
            if missing {
                notes.push(format!("the engine cannot limit a container's {what}: the kernel's cgroups lack it"));
            }
        }
        Ok(Probe { engine: format!("engine {version} at {endpoint}"), isolation, notes })
    }
}

impl Backend for Docker {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn probe(&self) -> BoxFuture<'_, Result<Probe>> {
        Box::pin(async {
            let client = self.client().await?;
            self.call("asking whether it is alive", ASK, client.api.ping()).await?;
            client.probe(&self.endpoint)
        })
    }

    fn image<'a>(&'a self, role: &'a Role) -> BoxFuture<'a, Result<Option<ImageId>>> {
        let reference = role.image.as_str();
        Box::pin(async move {
            let api = &self.client().await?.api;
            match self.call("looking for the image", ASK, api.inspect_image(reference)).await {
                Ok(image) => Ok(image.id.map(ImageId)),
                Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error.context(format!("image {reference}"))),
            }
        })
    }

    fn lacks(&self, role: &Role) -> Error {
        Error::unavailable(format!(
            "the image {} of role `{}` is not in the engine: run `skillhost images build`",
            role.image, role.name
        ))
    }

    fn launch<'a>(&'a self, spec: &'a SandboxSpec) -> BoxFuture<'a, Result<Running>> {
        Box::pin(self.launch(spec))
    }

    fn verify(&self, init_pid: i32) -> Result<()> {
        let path = format!("/proc/{init_pid}/status");
        let status = std::fs::read_to_string(&path)
            .map_err(|error| Error::unavailable(format!("cannot see how the sandbox is confined: {path}: {error}")))?;
        confined(&status)
    }

    fn init_pid<'a>(&'a self, engine_id: &'a str) -> BoxFuture<'a, Result<Option<i32>>> {
        Box::pin(self.init_pid(engine_id))
    }

    fn remove<'a>(&'a self, engine_id: &'a str, grace: Duration) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove(engine_id, grace))
    }

    fn list<'a>(&'a self, deployment: &'a str) -> BoxFuture<'a, Result<Vec<Found>>> {
        Box::pin(self.list(deployment))
    }
}

/// An error with all its causes: this library's own text often says no more than "client error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(info: SystemInfo) -> Client {
        // Of no use to what is tested, but a client has one; it connects to nothing before it is asked something.
        let api = Api::connect_with_http("http://localhost", 1, bollard::API_DEFAULT_VERSION).unwrap();
        Client { api, info }
    }

    #[test]
    fn an_engine_that_shares_not_kernel_files_and_users_is_refused_with_the_reason() {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let info = |options: &[&str]| SystemInfo {
            kernel_version: Some(kernel.clone()),
            security_options: Some(options.iter().map(ToString::to_string).collect()),
            ..SystemInfo::default()
        };
        let usual = info(&["name=seccomp,profile=default", "name=cgroupns"]);
        client(usual.clone()).local(DEFAULT_ENDPOINT).unwrap();
        assert_eq!(client(usual.clone()).isolation(Some("runsc")), "docker (runsc, seccomp)");
        let elsewhere = SystemInfo { kernel_version: Some("0.0-linuxkit".into()), ..usual.clone() };
        for (info, endpoint, says) in [
            (usual, "tcp://10.0.0.1:2375", "bridge"),
            (elsewhere, DEFAULT_ENDPOINT, "0.0-linuxkit"),
            (info(&["name=seccomp,profile=default", "name=rootless"]), DEFAULT_ENDPOINT, "rootless"),
            (info(&["name=userns"]), DEFAULT_ENDPOINT, "userns"),
        ] {
            let error = client(info).local(endpoint).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(error.message.contains(says) && error.message.contains(endpoint), "{error}");
        }
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_unavailable_with_the_remedy() {
        let role = crate::sandbox::images::Roles::shipped().unwrap().require("default").unwrap().clone();
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let endpoint = format!("unix://{}", socket.display());
        for there in [false, true] {
            if there {
                // A socket that nobody listens on any more.
                drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
            }
            let error = Docker::at(&endpoint).image(&role).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unavailable);
            assert!(error.message.contains(&endpoint) && error.message.contains("DOCKER_HOST"), "{error}");
        }
        let error = Docker::at("ssh://somewhere").probe().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unavailable);
    }
}
