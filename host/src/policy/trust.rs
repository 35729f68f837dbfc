//! Which projects' skills may run. A skill of a project that somebody cloned is a stranger's program: it is listed, and
//! runs only when the user has said so.

use std::collections::HashSet;
use std::path::{Component, Path, PathBuf};

use parking_lot::RwLock;
use skillhost_api::error::{Error, Result};
use skillhost_api::types::Done;
use skillhost_api::units::now_ms;
use skillhost_api::visible;

use crate::db::Db;
use crate::paths;

/// The store of trusted projects.
pub(crate) struct TrustStore {
    db: Db,
    /// What the database has: this process is the only one that writes there.
    trusted: RwLock<HashSet<PathBuf>>,
    /// Held over a change of both, so that of two that cross each other both end with the same word.
    changes: tokio::sync::Mutex<()>,
}

impl TrustStore {
    pub(crate) async fn open(db: Db) -> Result<Self> {
        let trusted = db
            .run(|transaction| {
                let mut query = transaction.prepare("SELECT project FROM trust")?;
                let projects = query.query_map([], |row| Ok(PathBuf::from(row.get::<_, String>(0)?)))?;
                projects.collect::<rusqlite::Result<_>>()
            })
            .await?;
        Ok(Self { db, trusted: RwLock::new(trusted), changes: tokio::sync::Mutex::default() })
    }

    /// Gives or takes it, of a project's own path.
    pub(crate) async fn set(&self, project: &Path, trusted: bool) -> Result<Done> {
        let (project, key) = (project.to_owned(), text(project)?);
        let _change = self.changes.lock().await;
        if !trusted {
            // At once, whatever becomes of the database.
            self.trusted.write().remove(&project);
        }
        self.db
            .run(move |transaction| match trusted {
                true => transaction
                    .execute("INSERT OR REPLACE INTO trust VALUES (?1, ?2)", rusqlite::params![key, now_ms()]),
                false => transaction.execute("DELETE FROM trust WHERE project = ?1", [key]),
            })
            .await?;
        if trusted {
            self.trusted.write().insert(project.clone());
        }
        let project = visible::line(&project.to_string_lossy());
        let message = if trusted {
            format!("the skills of {project} may run; `skillhost trust --revoke {project}` takes that back")
        } else {
            format!("the skills of {project} no longer run")
        };
        Ok(Done { message })
    }

    /// Whether the project is trusted.
    pub(crate) fn has(&self, project: &Path) -> Result<bool> {
        Ok(self.has_real(&real(project)?))
    }

    /// The same, of a project's own path.
    pub(crate) fn has_real(&self, project: &Path) -> bool {
        self.trusted.read().contains(project)
    }
}

/// The project's own path, through no link.
pub(crate) fn real(project: &Path) -> Result<PathBuf> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    // It is one already, as a rule, and that is asked at once and not for each of its parts: each call of a project's skill
    // comes here. (Of a path's parts only `..` could lead elsewhere.)
    let is_plain = project.is_absolute() && !project.components().any(|part| part == Component::ParentDir);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if is_plain && openat2(CWD, project, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok() {
        // One spelling for each: the database compares texts.
        return Ok(project.components().collect());
    }
    let real = paths::real(project)?;
    if real.is_dir() {
        Ok(real)
    } else {
        Err(Error::invalid_argument(format!("{} is not a directory", project.display())))
    }
}

fn text(path: &Path) -> Result<String> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::invalid_argument(format!("the path {} is not UTF-8", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::Durability;

    #[tokio::test]
    async fn trust_is_taken_back_however_the_path_was_spelled() {
        let temp = tempfile::tempdir().unwrap();
        let project = temp.path().canonicalize().unwrap().join("project");
        std::fs::create_dir(&project).unwrap();
        std::os::unix::fs::symlink(&project, temp.path().join("link")).unwrap();
        let plain = project.to_str().unwrap();
        let odd = [
            format!("{plain}/"),
            plain.replacen('/', "//", 1),
            plain.replace("/project", "/./project"),
            plain.replace("/project", "/project/../project"),
            plain.replace("/project", "/link"),
        ];
        let state = temp.path().join("state.db");
        for spelled in odd {
            let trust = TrustStore::open(Db::open(&state, Durability::Process).unwrap()).await.unwrap();
            trust.set(&real(Path::new(&spelled)).unwrap(), true).await.unwrap();
            assert!(trust.has(&project).unwrap(), "{spelled}");
            trust.set(&project, false).await.unwrap();
            assert!(!trust.has(Path::new(&spelled)).unwrap(), "{spelled}");
            drop(trust);
            let again = TrustStore::open(Db::open(&state, Durability::Process).unwrap()).await.unwrap();
            assert!(!again.has(&project).unwrap(), "{spelled} is trusted again by the next host");
        }
    }
}
