//! Writing files that others may be reading.

use std::io::Write as _;
use std::path::Path;

use skillhost_api::error::{Error, Result};

/// Writes a file whole: whoever loads it meanwhile finds the old one or the new one, never a part. One that has these bytes
/// already keeps its times, and with them what is remembered of it. Says whether anything changed.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<bool> {
    let at = |error: std::io::Error| Error::of_file(error).context(path.display());
    if std::fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(false);
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(at)?;
    // Like any file that a toolchain makes, it is the umask that says who reads it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".skillhost-").permissions(mode).tempfile_in(parent).map_err(at)?;
    file.write_all(bytes).map_err(at)?;
    file.persist(path).map_err(|error| at(error.error))?;
    Ok(true)
}

/// Writes a file that is not there yet.
pub(super) fn create(path: &Path, text: &str) -> Result<()> {
    let at = |error: std::io::Error| Error::of_file(error).context(path.display());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(at)?;
    }
    let mut file = std::fs::File::create_new(path).map_err(at)?;
    file.write_all(text.as_bytes()).map_err(at)
}
