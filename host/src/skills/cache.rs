//! Descriptors, kept by the digest of the component that they describe.
//!
//! Reading a descriptor is milliseconds for a small component and tenths of a second for one that carries an
//! interpreter; a listing wants dozens. So descriptors are kept, and beside them which file had which digest, by what
//! the file system says of it. That shortcut is for listing: a call hashes the bytes that it runs.
//!
//! The directory belongs to the host alone. What cannot be read in it is as if it were not there.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::apart;
use super::component::{Component, FileKey, check_pin, file_key};
use super::descriptor::{Descriptor, describe};
use super::manifest::Manifest;
use crate::error::{Error, Result};
use crate::units::hex;

/// Changes with the layout of [`Descriptor`], so that none of another layout is read.
const LAYOUT: &str = "1";
/// How the name begins of what says which digest a file has.
const FILE_ENTRY: &str = "file-";
/// The most files of the directory, two for each component; the oldest half goes when there are more.
const MAX_FILES: usize = 10_000;

/// Keeps descriptors.
pub trait DescriptorCache: Send + Sync {
    /// The digest that the component in this file had.
    fn digest(&self, file: &FileKey) -> Option<String>;
    /// The descriptor of the component with this digest.
    fn descriptor(&self, digest: &str) -> Option<Descriptor>;
    /// Keeps a descriptor, and the file whose component it describes.
    fn keep(&self, file: &FileKey, descriptor: &Descriptor);
    /// Describes a component that is not known yet. See [`super::apart`] for what that can cost the one who does it.
    fn describe(&self, component: &[u8]) -> Result<Descriptor> {
        describe(component)
    }
}

/// The descriptor of the skill in `dir`, out of the cache when its component has not changed. The component is checked
/// against the manifest's pin; exposure and imports are not looked at.
pub fn descriptor_of(dir: &Path, manifest: &Manifest, cache: &dyn DescriptorCache) -> Result<Descriptor> {
    let key = file_key(dir, manifest)?;
    if let Some(descriptor) = cache.digest(&key).and_then(|digest| cache.descriptor(&digest)) {
        check_pin(manifest, &descriptor.digest)?;
        return Ok(descriptor);
    }
    let component = Component::read(dir, manifest)?;
    let descriptor = match cache.descriptor(&component.digest) {
        Some(known) => known,
        None => cache
            .describe(&component.bytes)
            .map_err(|error| error.context(dir.join(&manifest.skill.component).display()))?,
    };
    cache.keep(&key, &descriptor);
    Ok(descriptor)
}

/// A directory of descriptors.
#[derive(Debug, Clone)]
pub struct DirCache {
    dir: PathBuf,
    /// The program that describes components in a process of its own.
    program: Option<PathBuf>,
}

impl DirCache {
    /// Opens `dir`, and makes it when it is not there.
    pub fn open(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).map_err(|error| Error::from(error).context(dir.display()))?;
        Ok(Self { dir: dir.to_owned(), program: None })
    }

    /// Has components described by `program`, a `skillhost`, in a process of its own. Without it that is done in this one.
    #[must_use]
    pub fn describing_with(self, program: Option<PathBuf>) -> Self {
        Self { program, ..self }
    }

    /// Forgets which file has which digest: each component is read anew when it is next asked for. What is known of a digest
    /// stays, for that cannot change.
    pub fn forget_files(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for entry in entries.flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(FILE_ENTRY.as_bytes()) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn file_entry(&self, file: &FileKey) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update(file.path.as_os_str().as_encoded_bytes());
        hash.update(format!("{:?}", file.stamp));
        self.dir.join(format!("{FILE_ENTRY}{}", hex(&hash.finalize())))
    }

    fn descriptor_entry(&self, digest: &str) -> Option<PathBuf> {
        let hex = digest.strip_prefix("sha256:")?;
        let whole = hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        // Another version of this program may describe the same component otherwise.
        whole.then(|| self.dir.join(format!("descriptor-{}-{LAYOUT}-{hex}.json", env!("CARGO_PKG_VERSION"))))
    }

    /// A failure only costs the time to describe the component again.
    fn write(&self, path: &Path, bytes: &[u8]) {
        let written = tempfile::NamedTempFile::new_in(&self.dir).and_then(|mut temp| {
            temp.write_all(bytes)?;
            temp.persist(path).map_err(|error| error.error)
        });
        if let Err(error) = written {
            tracing::warn!("{}: cannot be kept: {error}", path.display());
        }
    }

    fn prune(&self) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let modified = |entry: fs::DirEntry| Some((entry.metadata().ok()?.modified().ok()?, entry.path()));
        let mut files: Vec<_> = entries.flatten().filter_map(modified).collect();
        if files.len() > MAX_FILES {
            files.sort();
            for (_, path) in files.iter().take(files.len() / 2) {
                let _ = fs::remove_file(path);
            }
        }
    }
}

impl DescriptorCache for DirCache {
    fn digest(&self, file: &FileKey) -> Option<String> {
        (!file.fresh).then(|| fs::read_to_string(self.file_entry(file)).ok()).flatten()
    }

    fn descriptor(&self, digest: &str) -> Option<Descriptor> {
        let bytes = fs::read(self.descriptor_entry(digest)?).ok()?;
        serde_json::from_slice(&bytes).ok().filter(|descriptor: &Descriptor| descriptor.digest == digest)
    }

    fn keep(&self, file: &FileKey, descriptor: &Descriptor) {
        let Some(path) = self.descriptor_entry(&descriptor.digest) else { return };
        if self.descriptor(&descriptor.digest).is_none()
            && let Ok(bytes) = serde_json::to_vec(descriptor)
        {
            self.prune();
            self.write(&path, &bytes);
        }
        if !file.fresh {
            self.write(&self.file_entry(file), descriptor.digest.as_bytes());
        }
    }

    fn describe(&self, component: &[u8]) -> Result<Descriptor> {
        match &self.program {
            Some(program) => apart::describe(program, component),
            None => describe(component),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Stamp;

    #[test]
    fn of_what_is_forgotten_the_descriptors_stay() {
        let temp = tempfile::tempdir().unwrap();
        let cache = DirCache::open(temp.path()).unwrap();
        let digest = format!("sha256:{}", "0".repeat(64));
        let descriptor = Descriptor {
            digest: digest.clone(),
            imports: Vec::new(),
            actions: Vec::new(),
            unavailable: std::collections::BTreeMap::new(),
        };
        let stamp = Stamp::of(&temp.path().metadata().unwrap());
        let file = FileKey { path: "component.wasm".into(), stamp, fresh: false };
        cache.keep(&file, &descriptor);
        assert_eq!(cache.digest(&file), Some(digest.clone()));
        cache.forget_files();
        assert_eq!((cache.digest(&file), cache.descriptor(&digest)), (None, Some(descriptor)));
    }
}
