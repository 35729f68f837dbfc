//! Workspaces: one directory per session, `/workspace` in every sandbox of that session.
//!
//! Names are hashes of tenant and session, so two of them never meet in one directory. The parent is closed to everybody
//! but the host's user, so a workspace's own mode only matters inside a sandbox: the owner's user and the group of
//! further agents may write, and what is made in it stays with that group. A workspace outlives its sandboxes.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind as IoErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Mode, OFlags, Uid};
use serde::{Deserialize, Serialize};
use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};

use super::members::SandboxUser;
use crate::ids::random_hex;
use crate::private_dir;

/// Closed to all but the host's user.
pub(super) const PRIVATE: u32 = 0o700;
/// Owner and group, and what is made inside stays with the group.
pub(super) const MODE: u32 = skillhost_protocol::WORKSPACE_MODE;

/// What leads the name of a directory that is no session's yet; those of sessions are hexadecimal digits.
const SPARE: &str = "spare-";

fn is_spare(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(SPARE))
}

/// Who a workspace belongs to, for a person who looks at the hashed names; nothing reads it back.
#[derive(Debug, Serialize, Deserialize)]
struct Note<'a> {
    tenant: &'a str,
    session: &'a str,
}

/// The workspaces of a state directory.
#[derive(Debug, Clone)]
pub struct Workspaces {
    root: PathBuf,
    identity: SandboxUser,
}

impl Workspaces {
    /// The workspaces under `state_dir`, which is made absolute: an engine knows no working directory of ours.
    pub fn open(state_dir: &Path, identity: SandboxUser) -> Result<Self> {
        let root = state_dir.join("workspaces");
        private_dir::directory(&root)?;
        let root = root.canonicalize().map_err(|error| at(&root, error))?;
        let workspaces = Self { root, identity };
        workspaces.forget_spares();
        Ok(workspaces)
    }

    /// A directory that is nobody's yet, to be given to a session later.
    pub fn spare(&self) -> Result<PathBuf> {
        let path = self.root.join(format!("{SPARE}{}", random_hex(8)?));
        DirBuilder::new().mode(PRIVATE).create(&path).map_err(|error| at(&path, error))?;
        self.hand_over(&path).map_err(|error| at(&path, error.into()))?;
        Ok(path)
    }

    /// Makes a spare directory the workspace of the session: what has it mounted or open goes on to have it. None when the
    /// session has one.
    pub fn adopt(&self, spare: &Path, caller: &Caller) -> Result<Option<PathBuf>> {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        let path = self.path(caller);
        match renameat_with(CWD, spare, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            Err(rustix::io::Errno::EXIST) => return Ok(None),
            Err(error) => return Err(at(&path, error.into())),
        }
        self.note(caller)?;
        Ok(Some(path))
    }

    /// Removes a spare directory that nobody had.
    pub fn discard_spare(&self, spare: &Path) {
        // Nothing has ever been written there. If something was, it stays for a person to see.
        if is_spare(spare)
            && let Err(error) = std::fs::remove_dir(spare)
        {
            tracing::warn!("{}: {error}", spare.display());
        }
    }

    /// Removes those of an earlier host: whoever has the state directory is the only one.
    fn forget_spares(&self) {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| is_spare(path)).for_each(|path| self.discard_spare(&path));
    }

    /// Whether the session has a workspace.
    pub fn is_there(&self, caller: &Caller) -> bool {
        self.path(caller).symlink_metadata().is_ok()
    }

    /// Where the session's workspace is, or would be.
    pub fn path(&self, caller: &Caller) -> PathBuf {
        self.root.join(caller.session_key())
    }

    /// The session's workspace, made when it is not there.
    pub fn ensure(&self, caller: &Caller) -> Result<PathBuf> {
        let path = self.path(caller);
        match DirBuilder::new().mode(PRIVATE).create(&path) {
            Ok(()) => self.note(caller)?,
            Err(error) if error.kind() == IoErrorKind::AlreadyExists => {}
            Err(error) => return Err(at(&path, error)),
        }
        // Done on every call: a launch that was killed between the steps is made good by the next one.
        self.hand_over(&path).map_err(|error| at(&path, error.into()))?;
        Ok(path)
    }

    fn hand_over(&self, path: &Path) -> rustix::io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&dir)?;
        let SandboxUser { uid, gid } = self.identity;
        if (stat.st_uid, stat.st_gid) != (uid, gid) {
            rustix::fs::fchown(&dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        // After the change of owner, which clears the set-group-id bit.
        if stat.st_mode & 0o7777 != MODE {
            rustix::fs::fchmod(&dir, Mode::from_raw_mode(MODE))?;
        }
        Ok(())
    }

    fn note(&self, caller: &Caller) -> Result<()> {
        let path = self.root.join(format!("{}.json", caller.session_key()));
        write_atomically(&path, &Note { tenant: &caller.tenant, session: &caller.session })
    }
}

/// Writes `value` as JSON so that a reader sees the old file or the new one, never a part.
pub(super) fn write_atomically(path: &Path, value: &impl Serialize) -> Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(parent)?;
        serde_json::to_writer_pretty(&mut file, value)?;
        file.write_all(b"\n")?;
        let file: File = file.persist(path)?;
        drop(file);
        Ok(())
    };
    write().map_err(|error| at(path, error))
}

/// An I/O error, led by the path it is about.
pub(super) fn at(path: &Path, error: std::io::Error) -> Error {
    Error::from(error).context(path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn caller(tenant: &str, session: &str) -> Caller {
        Caller { tenant: tenant.into(), session: session.into(), ..Caller::default() }
    }

    #[test]
    fn a_workspace_is_its_users_alone_and_is_made_good_when_it_is_not() {
        let state = tempfile::tempdir().unwrap();
        let identity = SandboxUser::of_host();
        let workspaces = Workspaces::open(state.path(), identity).unwrap();
        let path = workspaces.ensure(&Caller::default()).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(workspaces.ensure(&Caller::default()).unwrap(), path);
        let meta = path.metadata().unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (identity.uid, identity.gid, MODE));
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o7777, PRIVATE);
    }

    #[test]
    fn sessions_never_meet_whatever_they_are_called() {
        let state = tempfile::tempdir().unwrap();
        let workspaces = Workspaces::open(state.path(), SandboxUser::of_host()).unwrap();
        let names = [("a", "b"), ("a/b", ""), ("", "a/b"), ("a/", "b"), ("a", "../a"), ("..", ".."), ("A", "b")];
        let mut paths: Vec<_> = names.iter().map(|(t, s)| workspaces.path(&caller(t, s))).collect();
        paths.iter().for_each(|path| assert_eq!(path.parent(), Some(workspaces.root.as_path())));
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), names.len());
    }

    #[test]
    fn a_link_in_a_workspaces_place_is_refused() {
        let (state, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let workspaces = Workspaces::open(state.path(), SandboxUser::of_host()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), workspaces.path(&Caller::default())).unwrap();
        assert!(workspaces.ensure(&Caller::default()).is_err());
    }
}
