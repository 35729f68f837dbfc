//! Copying between a host directory and a sandbox.
//!
//! Two sides, each guarding itself. In the sandbox, the supervisor resolves paths as the command's user, inside: no link there
//! can lead to a host file. On the host, everything goes through one open directory ([`Dir`]), and nothing leaves it:
//! not by `..`, not by a link, not by a link that is swapped during the copy, for each path is resolved by the
//! kernel or component by component beneath that directory.
//!
//! Links are copied in as what they say, and left out on the way out: a link that a sandbox made would lead whoever
//! follows it on the host to wherever the sandbox wished. Sockets, devices and pipes are left out both ways. What was left
//! out is said.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use cap_std::fs::{
    Dir, DirBuilder, File, MetadataExt as _, OpenOptions, OpenOptionsExt as _, Permissions, PermissionsExt as _,
};
use skillhost_protocol::tree::{Entry, EntryKind};
use tokio::sync::mpsc;

use super::link::{FileDone, FileKind, Link, TreeItem, TreeWriter, User};
use crate::error::{Error, ErrorKind, Result};

/// How much of a file is read before it is sent.
const CHUNK: usize = 64 * 1024;
/// Items that wait between the host's files and the link.
const QUEUE: usize = 16;
/// How deep a tree may be.
const MAX_DEPTH: usize = 128;
/// How many of the things that were left out are named.
const MAX_NOTES: usize = 5;

/// What was copied.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copied {
    /// Regular files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What was left out, and why; often empty.
    pub message: String,
}

/// What is left out, named up to a bound.
#[derive(Debug, Default)]
struct Notes {
    first: Vec<String>,
    more: u64,
}

impl Notes {
    fn add(&mut self, note: String) {
        if self.first.len() < MAX_NOTES {
            self.first.push(note);
        } else {
            self.more += 1;
        }
    }

    fn message(mut self, from_sandbox: &[String]) -> String {
        self.first.extend_from_slice(from_sandbox);
        if self.more > 0 {
            self.first.push(format!("and {} more", self.more));
        }
        self.first.join("; ")
    }
}

/// Copies the file or directory `from` beneath `host` to `to` in the sandbox. A file that is copied to a directory, or to
/// a path that ends in `/`, keeps its name.
pub async fn copy_in(link: &Link, user: User, host: Dir, from: &Path, to: &str) -> Result<Copied> {
    let from = beneath(from)?;
    let source = open(&host, &from)?;
    let to = destination(link, &user, &from, &source, to).await?;
    let (send, mut items) = mpsc::channel::<Result<TreeItem>>(QUEUE);
    let walk = tokio::task::spawn_blocking(move || {
        let mut walker = Walker { send, notes: Notes::default() };
        let walked = walker.root(&from, source);
        match walked {
            // Nobody listens: the sandbox refused, and says why itself.
            Ok(()) | Err(Stop::Unwanted) => {}
            Err(Stop::Failed(error)) => {
                let _ = walker.send.blocking_send(Err(error));
            }
        }
        walker.notes
    });
    let sent = link
        .tree_in(user, &to, async move |mut writer: TreeWriter| {
            while let Some(item) = items.recv().await {
                match item? {
                    TreeItem::Entry(entry) => writer.entry(&entry).await?,
                    TreeItem::Data(bytes) => writer.data(&bytes).await?,
                }
            }
            Ok(writer)
        })
        .await;
    let notes = walk.await.map_err(|error| Error::other(format!("reading the host's files failed: {error}")))?;
    let FileDone { files, bytes, notes: theirs, .. } = sent?;
    Ok(Copied { files, bytes, message: notes.message(&theirs) })
}

async fn destination(link: &Link, user: &User, from: &Path, source: &Source, to: &str) -> Result<String> {
    let Source::File(_) = source else { return Ok(to.to_owned()) };
    let name = from.file_name().and_then(OsStr::to_str);
    let is_dir = match to.ends_with('/') {
        true => true,
        false => match link.stat(user.clone(), to).await {
            Ok(stat) => stat.kind == FileKind::Dir,
            Err(error) if error.kind == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        },
    };
    match (is_dir, name) {
        (true, Some(name)) => Ok(format!("{}/{name}", to.trim_end_matches('/'))),
        (true, None) => Err(Error::invalid_argument(format!("{to:?} is a directory: name the file to write in it"))),
        (false, _) => Ok(to.to_owned()),
    }
}

/// A relative path with neither `..` nor a root; `.` is the directory itself.
fn beneath(path: &Path) -> Result<PathBuf> {
    let mut clean = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            _ => {
                return Err(Error::invalid_argument(format!(
                    "{path:?} leaves the host directory that it must stay beneath: write it relative and without `..`"
                )));
            }
        }
    }
    Ok(if clean.as_os_str().is_empty() { PathBuf::from(".") } else { clean })
}

enum Source {
    File(File),
    Dir(Dir),
}

fn host_error(error: std::io::Error, path: &Path) -> Error {
    Error::from(error).context(format!("the host's {}", path.display()))
}

fn open(host: &Dir, path: &Path) -> Result<Source> {
    let meta = host.metadata(path).map_err(|error| host_error(error, path))?;
    if meta.is_dir() {
        return host.open_dir(path).map(Source::Dir).map_err(|error| host_error(error, path));
    }
    open_file(host, path).map_err(|error| host_error(error, path))?.map(Source::File).ok_or_else(|| {
        Error::invalid_argument(format!("the host's {} is neither a file nor a directory", path.display()))
    })
}

/// Opens a regular file; `None` when it is something else, also when it became that just now.
fn open_file(dir: &Dir, path: &Path) -> std::io::Result<Option<File>> {
    // A pipe that nobody writes would hold the open for ever.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = dir.open_with(path, OpenOptions::new().read(true).custom_flags(nonblock))?;
    Ok(file.metadata()?.is_file().then_some(file))
}

enum Stop {
    Unwanted,
    Failed(Error),
}

/// Reads the host's files and sends them on.
struct Walker {
    send: mpsc::Sender<Result<TreeItem>>,
    notes: Notes,
}

impl Walker {
    fn root(&mut self, name: &Path, source: Source) -> Result<(), Stop> {
        match source {
            Source::File(file) => self.file(file, Vec::new(), name),
            Source::Dir(dir) => {
                let mode = dir.dir_metadata().map_err(|error| Stop::Failed(host_error(error, name)))?.mode();
                self.entry(Vec::new(), EntryKind::Dir, mode)?;
                self.dir(&dir, &[], 0)
            }
        }
    }

    fn item(&mut self, item: TreeItem) -> Result<(), Stop> {
        self.send.blocking_send(Ok(item)).map_err(|_| Stop::Unwanted)
    }

    fn entry(&mut self, path: Vec<u8>, kind: EntryKind, mode: u32) -> Result<(), Stop> {
        self.item(TreeItem::Entry(Entry { path, kind, mode: mode & 0o777 }))
    }

    fn dir(&mut self, dir: &Dir, prefix: &[u8], depth: usize) -> Result<(), Stop> {
        let shown = PathBuf::from(OsStr::from_bytes(prefix));
        let failed = |error| Stop::Failed(host_error(error, &shown));
        if depth >= MAX_DEPTH {
            let message = format!("the host's {} is nested deeper than {MAX_DEPTH} directories", shown.display());
            return Err(Stop::Failed(Error::too_large(message)));
        }
        let mut names = Vec::new();
        for entry in dir.entries().map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        // The same tree gives the same stream.
        names.sort();
        for name in names {
            let mut path = prefix.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let name = Path::new(&name);
            let meta = match dir.symlink_metadata(name) {
                Ok(meta) => meta,
                // Gone since the listing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed(error)),
            };
            if meta.is_symlink() {
                let target = dir.read_link_contents(name).map_err(failed)?.into_os_string().into_vec();
                self.entry(path, EntryKind::Symlink { target }, 0o777)?;
            } else if meta.is_dir() {
                let inner = dir.open_dir(name).map_err(failed)?;
                self.entry(path.clone(), EntryKind::Dir, meta.mode())?;
                self.dir(&inner, &path, depth + 1)?;
            } else if meta.is_file() {
                match open_file(dir, name) {
                    Ok(Some(file)) => self.file(file, path, name)?,
                    Ok(None) => self.notes.add(format!("{} is no longer a file", name.display())),
                    Err(error) => return Err(failed(error)),
                }
            } else {
                self.notes.add(format!("{} is neither a file nor a directory", shown.join(name).display()));
            }
        }
        Ok(())
    }

    fn file(&mut self, mut file: File, path: Vec<u8>, name: &Path) -> Result<(), Stop> {
        let failed = |error| Stop::Failed(host_error(error, name));
        let mode = file.metadata().map_err(failed)?.mode();
        self.entry(path, EntryKind::File, mode)?;
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = file.read(&mut buffer).map_err(failed)?;
            let Some(read) = buffer.get(..count).filter(|read| !read.is_empty()) else { return Ok(()) };
            self.item(TreeItem::Data(Bytes::copy_from_slice(read)))?;
        }
    }
}

/// Copies the file or directory `from` of the sandbox to `to` beneath `host`. A file that is copied to a directory keeps
/// its name. Each file is replaced whole or not at all.
pub async fn copy_out(link: &Link, user: User, from: &str, host: Dir, to: &Path) -> Result<Copied> {
    let to = beneath(to)?;
    let name = Path::new(from).file_name().map(OsStr::to_owned);
    let mut tree = link.tree_out(user, from).await?;
    let (send, items) = mpsc::channel::<TreeItem>(QUEUE);
    let write = tokio::task::spawn_blocking(move || {
        Writer { host, to, name, current: None, copied: Copied::default(), notes: Notes::default() }.run(items)
    });
    let mut received = Ok(());
    loop {
        match tree.next().await {
            Ok(Some(item)) => {
                // The writer has failed, and says why.
                if send.send(item).await.is_err() {
                    break;
                }
            }
            Ok(None) => break,
            Err(error) => {
                received = Err(error);
                break;
            }
        }
    }
    drop(send);
    let written = write.await.map_err(|error| Error::other(format!("writing the host's files failed: {error}")))?;
    received?;
    let (mut copied, notes) = written?;
    copied.message = notes.message(tree.done().map_or(&[], |done| &done.notes));
    Ok(copied)
}

/// Writes what comes to the host.
struct Writer {
    host: Dir,
    to: PathBuf,
    name: Option<std::ffi::OsString>,
    current: Option<Pending>,
    copied: Copied,
    notes: Notes,
}

/// A file that is being written, under a name of its own until it is whole.
struct Pending {
    dir: Dir,
    temp: PathBuf,
    name: PathBuf,
    file: File,
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Renamed already, when it was whole.
        let _ = self.dir.remove_file(&self.temp);
    }
}

impl Writer {
    fn run(mut self, mut items: mpsc::Receiver<TreeItem>) -> Result<(Copied, Notes)> {
        while let Some(item) = items.blocking_recv() {
            match item {
                TreeItem::Entry(entry) => {
                    self.commit()?;
                    self.begin(&entry)?;
                }
                TreeItem::Data(bytes) => {
                    if let Some(pending) = &mut self.current {
                        pending.file.write_all(&bytes).map_err(|error| host_error(error, &pending.name))?;
                        self.copied.bytes += bytes.len() as u64;
                    }
                }
            }
        }
        self.commit()?;
        Ok((self.copied, self.notes))
    }

    fn begin(&mut self, entry: &Entry) -> Result<()> {
        let parts = entry.components().map_err(|error| Error::sandbox_died(error.0))?;
        let mut path = self.to.clone();
        path.extend(parts.iter().map(|part| OsStr::from_bytes(part)));
        let failed = |error| host_error(error, &path);
        match &entry.kind {
            EntryKind::Dir => {
                self.host.create_dir_with_parents(&path).map_err(failed)?;
                Ok(())
            }
            EntryKind::Symlink { .. } => {
                self.notes.add(format!("{} is a symbolic link, which is not copied out", path.display()));
                Ok(())
            }
            EntryKind::File => {
                if parts.is_empty() && self.host.metadata(&path).is_ok_and(|meta| meta.is_dir()) {
                    path.push(self.name.as_ref().ok_or_else(|| Error::invalid_argument("the file has no name"))?);
                }
                let failed = |error| host_error(error, &path);
                let name = path
                    .file_name()
                    .map(PathBuf::from)
                    .ok_or_else(|| Error::invalid_argument(format!("the host's {} names no file", path.display())))?;
                let dir = match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                    Some(parent) => {
                        self.host.create_dir_with_parents(parent).map_err(failed)?;
                        self.host.open_dir(parent).map_err(failed)?
                    }
                    None => self.host.try_clone().map_err(failed)?,
                };
                if dir.symlink_metadata(&name).is_ok_and(|meta| meta.is_dir()) {
                    return Err(Error::invalid_argument(format!("the host's {} is a directory", path.display())));
                }
                let temp = PathBuf::from(format!(".skillhost-{}", crate::ids::temporary()));
                let options = OpenOptions::new().write(true).create_new(true).mode(entry.mode & 0o777).clone();
                let file = dir.open_with(&temp, &options).map_err(failed)?;
                file.set_permissions(Permissions::from_mode(entry.mode & 0o777)).map_err(failed)?;
                self.current = Some(Pending { dir, temp, name, file });
                Ok(())
            }
        }
    }

    fn commit(&mut self) -> Result<()> {
        if let Some(pending) = self.current.take() {
            pending
                .dir
                .rename(&pending.temp, &pending.dir, &pending.name)
                .map_err(|error| host_error(error, &pending.name))?;
            self.copied.files += 1;
        }
        Ok(())
    }
}

/// Makes a directory and those above it, beneath `self`.
trait CreateParents {
    fn create_dir_with_parents(&self, path: &Path) -> std::io::Result<()>;
}

impl CreateParents for Dir {
    fn create_dir_with_parents(&self, path: &Path) -> std::io::Result<()> {
        if path == Path::new(".") {
            return Ok(());
        }
        let mut builder = DirBuilder::new();
        self.create_dir_with(path, builder.recursive(true))
    }
}
