//! What the file system says of a file without opening it, which tells whether its content is still what was read.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

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
    pub(crate) fn of(meta: &Metadata) -> Self {
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
    pub(crate) fn settled(path: &Path) -> Option<Self> {
        let meta = std::fs::symlink_metadata(path).ok().filter(Metadata::is_file)?;
        Some(Self::of(&meta)).filter(Self::is_settled)
    }

    /// The file's length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let changed = u128::try_from(self.changed.max(self.modified)).unwrap_or_default();
        now.as_nanos().saturating_sub(changed) > SETTLED.as_nanos()
    }
}
