//! A copy of a skill's files, taken once: what was looked at, and perhaps approved, is what runs, whatever becomes of the skill
//! meanwhile.
//!
//! It has the files that are served and nothing else, so a link shows no other file of this machine to a script either, and the
//! bounds of a listing are those of a copy.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use skillhost_api::error::{Error, Result};
use skillhost_api::types::SkillFile;

use super::files::{self, FileDigests};

/// What everybody may read and run, and nobody change. A script that runs another by its path needs no more, whatever an archive
/// lost of its mode.
const MODE: u32 = 0o555;
/// Directories, until they are filled and afterwards.
const OPEN_DIR: u32 = 0o755;

/// A skill's files with their content.
#[derive(Debug)]
pub struct SkillSnapshot {
    files: Vec<(SkillFile, Vec<u8>)>,
    digest: String,
}

impl SkillSnapshot {
    /// Reads the files of the skill in `dir`, which has no component.
    pub fn take(dir: &Path, digests: &FileDigests) -> Result<Self> {
        let listed = files::list(dir, Path::new(""), digests)?.files;
        let digest = digest(&listed);
        let mut files = Vec::with_capacity(listed.len());
        for file in listed {
            match files::read(dir, &file)? {
                Some(bytes) => files.push((file, bytes)),
                None => {
                    return Err(Error::unavailable(format!("{} changed while it was read: try again", file.path)));
                }
            }
        }
        Ok(Self { files, digest })
    }

    /// What tells these files from others, `sha256:…`.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The content of a file, by just the path that it is listed with.
    pub fn file(&self, path: &str) -> Option<&[u8]> {
        self.files.iter().find(|(file, _)| file.path == path).map(|(_, bytes)| bytes.as_slice())
    }

    /// The paths of the files beneath a directory.
    pub fn beneath(&self, dir: &str) -> impl Iterator<Item = &str> {
        let start = format!("{dir}/");
        self.files.iter().map(|(file, _)| file.path.as_str()).filter(move |path| path.starts_with(&start))
    }

    /// Makes the directory `dir` with the files in it, for whoever can reach it to read.
    pub fn write_to(&self, dir: &Path) -> io::Result<()> {
        DirBuilder::new().mode(OPEN_DIR).create(dir)?;
        open_up(dir)?;
        for (file, bytes) in &self.files {
            let mut at = dir.to_owned();
            let mut parts = file.path.split('/').peekable();
            while let Some(part) = parts.next() {
                at.push(part);
                if parts.peek().is_some() && !at.exists() {
                    DirBuilder::new().mode(OPEN_DIR).create(&at)?;
                    open_up(&at)?;
                }
            }
            let mut to = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&at)?;
            to.write_all(bytes)?;
            to.set_permissions(Permissions::from_mode(MODE))?;
        }
        Ok(())
    }
}

/// After the making, so that no umask takes part in it.
fn open_up(dir: &Path) -> io::Result<()> {
    std::fs::set_permissions(dir, Permissions::from_mode(OPEN_DIR))
}

/// What tells the files of a listing from others, `sha256:…`: their paths and contents.
pub fn digest(files: &[SkillFile]) -> String {
    let mut hash = Sha256::new();
    for SkillFile { path, sha256, size: _ } in files {
        for part in [path, sha256] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    format!("sha256:{}", hex::encode(hash.finalize()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn it_has_what_is_served_as_it_was() {
        let temp = tempfile::tempdir().unwrap();
        let skill = temp.path().join("skill");
        fs::create_dir_all(skill.join("scripts/deep")).unwrap();
        for (path, text) in [("SKILL.md", "s"), ("scripts/a.py", "a"), ("scripts/deep/b", "b"), (".env", "secret")] {
            fs::write(skill.join(path), text).unwrap();
        }
        symlink("/etc/passwd", skill.join("scripts/link")).unwrap();
        let digests = FileDigests::default();
        let snapshot = SkillSnapshot::take(&skill, &digests).unwrap();
        fs::write(skill.join("scripts/a.py"), "other").unwrap();
        assert_eq!(snapshot.file("scripts/a.py"), Some(&b"a"[..]));
        assert_eq!(snapshot.beneath("scripts").collect::<Vec<_>>(), ["scripts/a.py", "scripts/deep/b"]);
        for none in ["scripts/link", "scripts/../SKILL.md", "/SKILL.md", ".env", "scripts"] {
            assert_eq!(snapshot.file(none), None, "{none}");
        }
        let copy = temp.path().join("copy");
        snapshot.write_to(&copy).unwrap();
        assert_eq!(fs::read(copy.join("scripts/a.py")).unwrap(), b"a");
        assert_eq!(fs::metadata(copy.join("scripts/deep/b")).unwrap().permissions().mode() & 0o7777, 0o555);
        assert!(!copy.join("scripts/link").exists() && !copy.join(".env").exists());
        let changed = SkillSnapshot::take(&skill, &digests).unwrap();
        assert_ne!(changed.digest(), snapshot.digest());
    }
}
