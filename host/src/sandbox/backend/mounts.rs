//! What of this machine is never mounted into a sandbox, not even to be read: a read-only mount does not keep anybody from
//! connecting to a socket in it. Who reaches an engine or the user's service manager runs commands outside; who reaches the
//! socket in the state directory is, where commands have the host's user, its owner.
//!
//! A directory is known by what it is as well as by its path, since a mount gives it another one.

use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::docker::engine_socket;
use crate::error::{Error, Result};

/// Where engines listen when nobody says otherwise; never mounted, whichever is in use.
const KNOWN: [&str; 6] = [
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
    "/run/crio/crio.sock",
    "/run/buildkit/buildkitd.sock",
    "/run/systemd/private",
];
/// The same beneath the user's runtime directory: engines of their own, the session's bus and service manager.
const OF_SESSION: [&str; 6] = [
    "docker.sock",
    "podman/podman.sock",
    "containerd/containerd.sock",
    "buildkit/buildkitd.sock",
    "bus",
    "systemd/private",
];
/// The same beneath the user's home.
const OF_HOME: [&str; 3] = [".docker/run/docker.sock", ".docker/desktop/docker.sock", ".colima/default/docker.sock"];

/// Every such socket. One that is not there now may be later.
fn sockets() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let podmans = std::env::var("CONTAINER_HOST").ok();
    let podmans = podmans.as_deref().and_then(|host| host.strip_prefix("unix://")).map(PathBuf::from);
    let session = variable("XDG_RUNTIME_DIR")
        .unwrap_or_else(|| PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw())));
    let home = variable("HOME");
    let of_home = OF_HOME.iter().filter_map(|name| Some(home.as_ref()?.join(name)));
    engine_socket()
        .into_iter()
        .chain(podmans)
        .chain(KNOWN.map(PathBuf::from))
        .chain(OF_SESSION.map(|name| session.join(name)))
        .chain(of_home)
        .collect()
}

/// Refuses to mount what holds such a socket, or the one at `engine`. Gives the real path, which is what gets mounted, so that
/// a link cannot change its meaning afterwards.
pub(super) fn check(source: &Path, engine: Option<&Path>) -> Result<PathBuf> {
    check_for(source, &engine.map(Path::to_owned).into_iter().chain(sockets()).collect::<Vec<_>>())
}

/// The same, and refuses what holds or lies in the state directory: for what the operator lists.
pub(super) fn check_listed(source: &Path, state_dir: &Path) -> Result<PathBuf> {
    let real = real_path(source)?;
    if Tree::at(&real).holds(state_dir) || Tree::at(&resolved(state_dir)).holds(&real) {
        return Err(Error::denied(format!(
            "{} is not mounted into a sandbox: it holds, or lies in, the state directory {}, and who connects to the socket there \
             can be its owner",
            source.display(),
            state_dir.display()
        )));
    }
    check(source, None)
}

fn check_for(source: &Path, sockets: &[PathBuf]) -> Result<PathBuf> {
    let real = real_path(source)?;
    let tree = Tree::at(&real);
    match sockets.iter().find(|socket| tree.holds(socket)) {
        Some(socket) => Err(Error::denied(format!(
            "{} is not mounted into a sandbox: it holds, or would hold, the socket {}, through which commands are run outside",
            source.display(),
            socket.display()
        ))),
        None => Ok(real),
    }
}

fn real_path(source: &Path) -> Result<PathBuf> {
    let real = source.canonicalize().map_err(|error| Error::of_file(error).context(source.display()))?;
    match real.to_str() {
        Some(_) => Ok(real),
        None => Err(Error::invalid_argument(format!(
            "cannot mount {real:?}: paths of mounts are UTF-8 text only; use another directory"
        ))),
    }
}

/// A directory, with what is mounted beneath it and comes along.
struct Tree(Vec<(PathBuf, Option<Identity>)>);

/// A directory, whatever its path.
type Identity = (u64, u64);

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

impl Tree {
    /// The one at a real path.
    fn at(real: &Path) -> Self {
        let all = std::iter::once(real.to_owned()).chain(mounted_beneath(real));
        Self(all.map(|path| (identity(&path), path)).map(|(identity, path)| (path, identity)).collect())
    }

    /// Whether `path` is in it, by name or by what it is.
    fn holds(&self, path: &Path) -> bool {
        let real = resolved(path);
        let above: Vec<_> = real.ancestors().filter_map(identity).collect();
        self.0.iter().any(|(dir, identity)| {
            real.starts_with(dir) || path.starts_with(dir) || identity.is_some_and(|one| above.contains(&one))
        })
    }
}

/// The real path, as far as it is there.
fn resolved(path: &Path) -> PathBuf {
    let there = path.ancestors().find_map(|above| Some((above.canonicalize().ok()?, path.strip_prefix(above).ok()?)));
    match there {
        Some((real, rest)) if !rest.as_os_str().is_empty() => real.join(rest),
        Some((real, _)) => real,
        None => path.to_owned(),
    }
}

/// Where something is mounted beneath `dir`.
fn mounted_beneath(dir: &Path) -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(unescaped).filter(|point| point.starts_with(dir) && point != dir).collect()
}

/// The kernel writes blanks, line ends and backslashes as three octal digits.
fn unescaped(name: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, tail)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| tail.split_at_checked(3)).flatten();
        let code = octal
            .and_then(|(digits, after)| Some((u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()?, after)));
        let (byte, after) = code.unwrap_or((*first, tail));
        bytes.push(byte);
        rest = after;
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn an_engines_socket_and_what_holds_it_are_never_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        let (deep, beside) = (run.join("engine"), dir.path().join("workspace"));
        fs::create_dir_all(&deep).unwrap();
        fs::create_dir(&beside).unwrap();
        let socket = deep.join("docker.sock");
        fs::write(&socket, "").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&run, &link).unwrap();
        let sockets = [link.join("engine/docker.sock")];
        for holds in [dir.path(), &run, &deep, &socket, &link, Path::new("/")] {
            assert_eq!(check_for(holds, &sockets).unwrap_err().kind, ErrorKind::Denied, "{}", holds.display());
        }
        assert_eq!(check_for(&beside, &sockets).unwrap(), beside.canonicalize().unwrap());
        assert_eq!(check_for(&dir.path().join("none"), &sockets).unwrap_err().kind, ErrorKind::NotFound);
        // One that does not exist yet counts.
        let later = [link.join("later/podman.sock")];
        assert_eq!(check_for(&run, &later).unwrap_err().kind, ErrorKind::Denied);
        assert!(check_for(&deep, &later).is_ok());
    }

    #[test]
    fn the_usual_sockets_are_known_wherever_they_are() {
        let known = sockets();
        for name in ["docker.sock", "podman.sock", "containerd.sock", "bus"] {
            assert!(known.iter().any(|path| path.ends_with(name)), "{name}: {known:?}");
        }
        for holds in ["/run", "/var/run", "/"] {
            if Path::new(holds).exists() {
                assert_eq!(check(Path::new(holds), None).unwrap_err().kind, ErrorKind::Denied, "{holds}");
            }
        }
    }

    #[test]
    fn the_state_directory_is_listed_by_nobody_in_either_direction() {
        let dir = tempfile::tempdir().unwrap();
        let (state, tools) = (dir.path().join("home/state"), dir.path().join("tools"));
        fs::create_dir_all(state.join("workspaces")).unwrap();
        fs::create_dir(&tools).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("home"), &link).unwrap();
        for listed in
            [dir.path().join("home"), state.clone(), state.join("workspaces"), link.clone(), link.join("state")]
        {
            let error = check_listed(&listed, &state).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Denied, "{}", listed.display());
        }
        check_listed(&tools, &state).unwrap();
        // A link in the state directory's own path changes nothing.
        assert!(check_listed(&dir.path().join("home"), &link.join("state")).is_err());
    }

    #[test]
    fn the_kernels_names_of_mounts_are_read() {
        assert_eq!(unescaped(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescaped(b"/a\\"), Path::new("/a\\"));
        assert!(mounted_beneath(Path::new("/")).contains(&PathBuf::from("/proc")));
    }
}
