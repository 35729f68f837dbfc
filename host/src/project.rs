//! Which directory may be a project: the one whose skills are found, and that is the host root `project`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The project that somebody named, as it is from anywhere. It must be a directory that is there.
pub(crate) fn named(said: &Path) -> Result<PathBuf> {
    let refused = |why: &dyn std::fmt::Display| {
        Error::invalid_argument(format!("the project {} cannot be used: {why}; name a directory", said.display()))
    };
    let path = std::path::absolute(said).map_err(|error| refused(&error))?;
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err(refused(&"it is no directory")),
        Err(error) => Err(refused(&error)),
    }
}

/// Whether a directory is far more than a project: the root of the file system, the home directory, or one that holds it.
/// Programs are started there by service managers and desktops, which mean no project by it.
pub(crate) fn is_too_wide(dir: &Path) -> bool {
    let homes = [std::env::var_os("HOME").map(PathBuf::from), std::env::home_dir()];
    holds(dir, homes.iter().flatten().map(PathBuf::as_path).chain([Path::new("/")]))
}

/// Whether `dir` is one of these, or one of these lies in it, by whatever name. What cannot be looked at is taken to be.
fn holds<'a>(dir: &Path, mut inner: impl Iterator<Item = &'a Path>) -> bool {
    let Ok(meta) = std::fs::metadata(dir) else { return true };
    // By its number rather than its name: a bind mount is another name that no path leads back from.
    let is_dir =
        |path: &Path| std::fs::metadata(path).is_ok_and(|other| (other.dev(), other.ino()) == (meta.dev(), meta.ino()));
    inner.any(|inner| {
        let inner = inner.canonicalize().unwrap_or_else(|_| inner.to_owned());
        inner.ancestors().any(is_dir)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_directory_is_no_project() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(named(dir.path()).unwrap(), dir.path());
        for bad in [file.clone(), file.join("below"), dir.path().join("none"), PathBuf::new()] {
            let error = named(&bad).unwrap_err();
            assert_eq!(error.kind, crate::error::ErrorKind::InvalidArgument);
            assert!(error.message.contains(&bad.display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_directory_that_holds_the_home_is_too_wide_by_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("users/me");
        let project = home.join("project");
        std::fs::create_dir_all(&project).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("users"), &link).unwrap();
        let wide = |dir: &Path| holds(dir, [home.as_path()].into_iter());
        for too_wide in [&home, &home.join("."), &project.join(".."), &link, &link.join("me"), Path::new("/")] {
            assert!(wide(too_wide), "{}", too_wide.display());
        }
        for good in [&project, &link.join("me/project")] {
            assert!(!wide(good), "{}", good.display());
        }
        assert!(wide(&dir.path().join("none")), "what cannot be looked at is no project");
        for root in ["/", "//", "/.", "/usr/..", "/proc/self/root"] {
            assert!(is_too_wide(Path::new(root)), "{root}");
        }
    }
}
