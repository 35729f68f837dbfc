//! A component's bytes, and whatever else is read from a skill's directory.
//!
//! Read once: what is hashed, pinned, described, compiled and run are the same bytes. Read beneath the skill's
//! directory: neither `..` nor a symbolic link leads out, also when it is swapped meanwhile. Read to a bound, and only
//! from regular files: a FIFO in a skill's place hangs nobody.

use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, OpenOptions, OpenOptionsExt};

use super::descriptor::digest;
use super::manifest::Manifest;
use crate::error::{Error, ErrorKind, Result};

/// The most bytes of a component.
pub const MAX_COMPONENT: u64 = 128 * 1024 * 1024;

/// A component, read.
#[derive(Debug, Clone)]
pub struct Component {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Their SHA-256, `sha256:…`.
    pub digest: String,
}

/// How long ago a file must have been changed for its [`Stamp`] to speak for its content: some file systems count time in
/// steps of seconds, and a second change within one step leaves the stamp as it is.
pub const SETTLED: Duration = Duration::from_secs(3);

/// What tells whether a file has changed, without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stamp {
    device: u64,
    inode: u64,
    len: u64,
    /// When its content was changed, in nanoseconds. An owner can set this back.
    modified: i128,
    /// When anything of it was changed, in nanoseconds. Nobody can set this but by setting the clock.
    changed: i128,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            len: meta.size(),
            modified: nanos(meta.mtime(), meta.mtime_nsec()),
            changed: nanos(meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Of the file at `path` itself, when it is a regular one and no link, and was left alone for long enough for the
    /// stamp to speak for its content. To be taken before the file is read.
    pub(super) fn settled(path: &Path) -> Option<Self> {
        let meta = std::fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
        Some(Self::of(&meta)).filter(Self::is_settled)
    }

    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = u128::try_from(self.changed.max(self.modified)).unwrap_or_default();
        now.as_nanos().saturating_sub(changed) > SETTLED.as_nanos()
    }
}

/// A file, and what tells whether it has changed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// Where it is.
    pub path: PathBuf,
    /// What tells whether it has changed.
    pub stamp: Stamp,
    /// Whether the stamp does not tell yet, for the file was changed a moment ago.
    pub fresh: bool,
}

impl Component {
    /// Reads the component of the skill in `dir`, and refuses one that is not what the manifest pins.
    pub fn read(dir: &Path, manifest: &Manifest) -> Result<Self> {
        let relative = &manifest.skill.component;
        let bytes =
            read_beneath(&open_dir(dir)?, relative, MAX_COMPONENT).map_err(|error| missing(dir, relative, error))?;
        let component = Self { digest: digest(&bytes), bytes };
        check_pin(manifest, &component.digest)?;
        Ok(component)
    }
}

/// Refuses a digest that is not the one which the manifest pins.
pub fn check_pin(manifest: &Manifest, digest: &str) -> Result<()> {
    match &manifest.skill.sha256 {
        Some(pinned) if digest.strip_prefix("sha256:") != Some(pinned) => Err(Error::invalid_argument(format!(
            "the component {} has {digest}, but skill.sha256 pins sha256:{pinned}: get the component that was pinned, or \
             pin this one if you trust it",
            manifest.skill.component.display()
        ))),
        _ => Ok(()),
    }
}

/// What tells whether the component of the skill in `dir` has changed.
pub fn file_key(dir: &Path, manifest: &Manifest) -> Result<FileKey> {
    let relative = &manifest.skill.component;
    let file = open_beneath(&open_dir(dir)?, relative).map_err(|error| missing(dir, relative, error))?;
    let stamp = Stamp::of(&file.into_std().metadata()?);
    Ok(FileKey { path: dir.join(relative), fresh: !stamp.is_settled(), stamp })
}

fn missing(dir: &Path, relative: &Path, error: Error) -> Error {
    let error = error.context(format!("the component {}", dir.join(relative).display()));
    match error.kind {
        ErrorKind::NotFound => {
            Error::not_found(format!("{}: build the skill, or correct skill.component", error.message))
        }
        _ => error,
    }
}

/// Opens a directory, to read beneath it.
pub(super) fn open_dir(dir: &Path) -> Result<Dir> {
    Dir::open_ambient_dir(dir, ambient_authority()).map_err(|error| Error::from(error).context(dir.display()))
}

/// Reads a regular file beneath `dir`, of at most `max` bytes.
pub(super) fn read_beneath(dir: &Dir, path: &Path, max: u64) -> Result<Vec<u8>> {
    let file = open_beneath(dir, path)?;
    let mut bytes = Vec::new();
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(Error::too_large(format!("it has more than the {max} bytes that this host reads")));
    }
    Ok(bytes)
}

fn open_beneath(dir: &Dir, path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    // Opening a FIFO or a device must not wait for its other end.
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    let file = dir.open_with(path, &options)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(Error::invalid_argument("it is not a regular file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_the_directory_is_read() {
        let temp = tempfile::tempdir().unwrap();
        let skill = temp.path().join("skill");
        std::fs::create_dir(&skill).unwrap();
        std::fs::write(temp.path().join("secret"), "secret").unwrap();
        std::fs::write(skill.join("inside"), "inside").unwrap();
        std::os::unix::fs::symlink("../secret", skill.join("out")).unwrap();
        std::os::unix::fs::symlink(temp.path().join("secret"), skill.join("absolute")).unwrap();
        std::os::unix::fs::symlink("inside", skill.join("in")).unwrap();
        let dir = open_dir(&skill).unwrap();
        for name in ["out", "absolute", "../secret"] {
            assert!(read_beneath(&dir, Path::new(name), 100).is_err(), "{name} was read");
        }
        assert_eq!(read_beneath(&dir, Path::new("in"), 100).unwrap(), b"inside");
        assert_eq!(read_beneath(&dir, Path::new("inside"), 5).unwrap_err().kind, ErrorKind::TooLarge);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_at_once() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let dir = open_dir(temp.path()).unwrap();
        assert!(read_beneath(&dir, Path::new("fifo"), 100).unwrap_err().message.contains("regular file"));
        assert!(read_beneath(&dir, Path::new("."), 100).is_err());
    }
}
