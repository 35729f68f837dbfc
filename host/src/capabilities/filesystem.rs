//! `wasi:filesystem/types`, of which the functions here are ours. All others are wasmtime-wasi's.
//!
//! | function | wasmtime-wasi's | ours |
//! | --- | --- | --- |
//! | `open-at` | opens what is there; of a named pipe that waits for its other end, in a thread that no deadline ends | opens regular files and directories, and never waits; a file that it makes is the workspace's owner's |
//! | `create-directory-at` | makes a directory of the host's user | makes one of the workspace's owner |
//! | `set-times-at` | opens the file to set its times | needs no more than its name |
//! | `read-directory` | holds the names of a whole directory in memory | reads some when they are asked for |
//!
//! What a skill has open is counted ([`OpenFiles`]): descriptors are the host process's, which has only so many.
//!
//! Paths are resolved as wasmtime-wasi does, by the same library, and never lead out of the directory that they start
//! at. The system's calls run on threads that may wait, for a disk can be slow.

use std::any::Any;
use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};

use cap_fs_ext::{OpenOptionsFollowExt as _, OpenOptionsSyncExt as _};
use cap_primitives::fs::{DirOptions, FollowSymlinks, OpenOptions, OpenOptionsExt as _};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, chownat, fstat};
use rustix::io::Errno;
use rustix::process::geteuid;
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource, ResourceTable, ResourceType};
use wasmtime_wasi::OpenMode;
use wasmtime_wasi::filesystem::{Descriptor, Dir, File};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorType, DirectoryEntry, ErrorCode, NewTimestamp, OpenFlags, PathFlags,
};
use wasmtime_wasi::p2::{FsError, FsResult};

/// The interface, as wasmtime-wasi has put it into the linker.
const INTERFACE: &str = "wasi:filesystem/types@0.2.12";
/// How many names of a directory are read at a time.
const BATCH: usize = 256;

/// The files and directories that an invocation has open, whatever of it holds them: a descriptor, or a stream that was
/// made of one.
pub struct OpenFiles {
    limit: usize,
    open: Vec<Weak<dyn Any + Send + Sync>>,
    refused: bool,
}

impl OpenFiles {
    /// At most `limit` at a time.
    pub fn new(limit: usize) -> Self {
        Self { limit, open: Vec::new(), refused: false }
    }

    /// Whether one was refused.
    pub fn refused(&self) -> bool {
        self.refused
    }

    /// Whether there is room for one more. The answer to a skill that has none is `quota`.
    fn room(&mut self) -> Result<(), ErrorCode> {
        self.open.retain(|open| open.strong_count() > 0);
        if self.open.len() < self.limit {
            return Ok(());
        }
        self.refused = true;
        Err(ErrorCode::Quota)
    }

    fn count<T: Any + Send + Sync>(&mut self, open: &Arc<T>) {
        let open: Arc<dyn Any + Send + Sync> = open.clone();
        self.open.push(Arc::downgrade(&open));
    }
}

/// The part of a store that these functions see.
pub struct FilesystemView<'a> {
    pub(crate) table: &'a mut ResourceTable,
    pub(crate) files: &'a mut OpenFiles,
}

/// Gives these functions their part of a store.
pub trait FilesystemAccess: Send {
    /// That part.
    fn filesystem(&mut self) -> FilesystemView<'_>;
}

/// Names of a directory, read as they are asked for.
struct DirectoryNames {
    dir: Arc<Mutex<rustix::fs::Dir>>,
    ready: VecDeque<Result<DirectoryEntry, ErrorCode>>,
    ended: bool,
}

const OPEN_AT: &str = "[method]descriptor.open-at";
const CREATE_DIRECTORY_AT: &str = "[method]descriptor.create-directory-at";
const SET_TIMES_AT: &str = "[method]descriptor.set-times-at";
const READ_DIRECTORY: &str = "[method]descriptor.read-directory";
const ENTRIES: &str = "directory-entry-stream";
const NEXT_ENTRY: &str = "[method]directory-entry-stream.read-directory-entry";

/// Puts these functions in the place of wasmtime-wasi's, which must be in the linker already.
pub(crate) fn add_to_linker<T: FilesystemAccess + 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    for name in [OPEN_AT, CREATE_DIRECTORY_AT, SET_TIMES_AT, READ_DIRECTORY, ENTRIES, NEXT_ENTRY] {
        is_there(linker, INTERFACE, name)?;
    }
    linker.allow_shadowing(true);
    let mut types = linker.instance(INTERFACE)?;
    types.func_wrap_async(
        OPEN_AT,
        |mut store: StoreContextMut<'_, T>,
         (dir, at, path, open, flags): (Resource<Descriptor>, PathFlags, String, OpenFlags, DescriptorFlags)| {
            Box::new(async move { told(open_at(store.data_mut().filesystem(), &dir, at, path, open, flags).await) })
        },
    )?;
    types.func_wrap_async(
        CREATE_DIRECTORY_AT,
        |mut store: StoreContextMut<'_, T>, (dir, path): (Resource<Descriptor>, String)| {
            Box::new(async move { told(create_directory_at(store.data_mut().filesystem(), &dir, path).await) })
        },
    )?;
    types.func_wrap_async(
        SET_TIMES_AT,
        |mut store: StoreContextMut<'_, T>,
         (dir, at, path, accessed, modified): (
            Resource<Descriptor>,
            PathFlags,
            String,
            NewTimestamp,
            NewTimestamp,
        )| {
            Box::new(async move {
                told(set_times_at(store.data_mut().filesystem(), &dir, at, path, accessed, modified).await)
            })
        },
    )?;
    types.resource(ENTRIES, ResourceType::host::<DirectoryNames>(), |mut store, rep| {
        store.data_mut().filesystem().table.delete(Resource::<DirectoryNames>::new_own(rep))?;
        Ok(())
    })?;
    types.func_wrap_async(READ_DIRECTORY, |mut store: StoreContextMut<'_, T>, (dir,): (Resource<Descriptor>,)| {
        Box::new(async move { told(read_directory(store.data_mut().filesystem(), &dir).await) })
    })?;
    types.func_wrap_async(
        NEXT_ENTRY,
        |mut store: StoreContextMut<'_, T>, (entries,): (Resource<DirectoryNames>,)| {
            Box::new(async move { told(next_entry(store.data_mut().filesystem(), &entries).await) })
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}

/// An error unless wasmtime-wasi has defined it. Where it has another version of the interface, or another name, ours would
/// lie beside its own and be called by nobody.
pub(super) fn is_there<T: 'static>(linker: &mut Linker<T>, interface: &str, name: &str) -> wasmtime::Result<()> {
    linker.allow_shadowing(false);
    // What is there cannot be defined again.
    match linker.instance(interface)?.func_wrap(name, |_, (): ()| Ok(())) {
        Err(_) => Ok(()),
        Ok(()) => Err(wasmtime::Error::msg(format!(
            "wasmtime-wasi has no `{name}` in `{interface}`, which skillhost puts a safer one in place of: \
             adapt what is in its capabilities/ to this wasmtime-wasi"
        ))),
    }
}

/// What the guest is told; an error where it is ended instead.
fn told<T>(result: FsResult<T>) -> wasmtime::Result<(Result<T, ErrorCode>,)> {
    Ok((match result {
        Ok(value) => Ok(value),
        Err(error) => Err(error.downcast()?),
    },))
}

/// The directory behind a handle.
fn directory(view: &FilesystemView<'_>, handle: &Resource<Descriptor>) -> FsResult<Dir> {
    match view.table.get(handle)? {
        Descriptor::Dir(dir) => Ok(dir.clone()),
        Descriptor::File(_) => Err(ErrorCode::NotDirectory.into()),
    }
}

/// The same, of one that may be changed.
fn writable_directory(view: &FilesystemView<'_>, handle: &Resource<Descriptor>) -> FsResult<Dir> {
    let dir = directory(view, handle)?;
    if dir.perms.write_not_permitted() { Err(ErrorCode::NotPermitted.into()) } else { Ok(dir) }
}

/// Runs a call of the system where it may wait.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, ErrorCode> + Send + 'static) -> FsResult<T> {
    Ok(tokio::task::spawn_blocking(work).await.map_err(FsError::trap)??)
}

fn follow(at: PathFlags) -> FollowSymlinks {
    if at.contains(PathFlags::SYMLINK_FOLLOW) { FollowSymlinks::Yes } else { FollowSymlinks::No }
}

/// What the system says of a file that has nobody at its other end, or no driver, is what we say of all its kind.
fn refused(error: &io::Error) -> ErrorCode {
    match Errno::from_io_error(error) {
        Some(Errno::NXIO | Errno::NODEV) => ErrorCode::Unsupported,
        _ => error.into(),
    }
}

/// Gives what was just made beneath `dir` to whoever has `dir`. A workspace belongs to its commands' user; what a host makes
/// there that is root, its commands could not change.
fn hand_over(dir: &fs::File, made: &fs::File) -> io::Result<()> {
    let (host, owner, made_by) = (geteuid(), fstat(dir)?.st_uid, fstat(made)?.st_uid);
    if host.is_root() && made_by == host.as_raw() {
        // A directory's descriptor may be of its name alone.
        chownat(made, "", Some(Uid::from_raw(owner)), None, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

async fn create_directory_at(view: FilesystemView<'_>, dir: &Resource<Descriptor>, path: String) -> FsResult<()> {
    let dir = writable_directory(&view, dir)?;
    blocking(move || {
        let path = Path::new(&path);
        cap_primitives::fs::create_dir(&dir.dir, path, &DirOptions::new())?;
        // Where it is another by now, that is whoever's it is already.
        if let Ok(made) = cap_primitives::fs::open_dir_nofollow(&dir.dir, path) {
            hand_over(&dir.dir, &made)?;
        }
        Ok(())
    })
    .await
}

/// The options with which a file is opened.
struct OpenRequest {
    options: OpenOptions,
    creates: bool,
    exclusive: bool,
    mode: OpenMode,
    directory: bool,
}

impl OpenRequest {
    fn new(at: PathFlags, open: OpenFlags, flags: DescriptorFlags) -> Result<Self, ErrorCode> {
        let sync = [
            DescriptorFlags::FILE_INTEGRITY_SYNC,
            DescriptorFlags::DATA_INTEGRITY_SYNC,
            DescriptorFlags::REQUESTED_WRITE_SYNC,
        ];
        if sync.into_iter().any(|flag| flags.contains(flag)) {
            return Err(ErrorCode::Unsupported);
        }
        let create = open.contains(OpenFlags::CREATE);
        let exclusive = open.contains(OpenFlags::EXCLUSIVE);
        let truncate = open.contains(OpenFlags::TRUNCATE);
        let directory = open.contains(OpenFlags::DIRECTORY);
        if directory && (create || exclusive || truncate) {
            return Err(ErrorCode::Invalid);
        }
        let write = flags.contains(DescriptorFlags::WRITE);
        // What is not opened to write is opened to read: a system opens nothing for neither.
        let read = flags.contains(DescriptorFlags::READ) || !write;
        let write = write || create || truncate;
        let mut options = OpenOptions::new();
        options.read(read).write(write).truncate(truncate).follow(follow(at));
        match exclusive {
            true => options.create_new(create),
            false => options.create(create),
        };
        // Neither a pipe without another end nor a device is waited for, and a terminal never becomes the host's.
        options.nonblock(true).custom_flags(OFlags::NOCTTY.bits().cast_signed());
        let mut mode = OpenMode::empty();
        mode.set(OpenMode::READ, read);
        mode.set(OpenMode::WRITE, write);
        Ok(Self { options, creates: create, exclusive, mode, directory })
    }

    fn open_or_make(&self, dir: &fs::File, path: &Path) -> io::Result<fs::File> {
        let open = |options: &OpenOptions| cap_primitives::fs::open(dir, path, options);
        if !self.creates || !geteuid().is_root() {
            return open(&self.options);
        }
        // Made by a call of its own, so that what was there already stays whose it is.
        match open(self.options.clone().create_new(true)) {
            Ok(made) => hand_over(dir, &made).map(|()| made),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !self.exclusive => open(&self.options),
            Err(error) => Err(error),
        }
    }

    /// Opens it. Says whether it is a directory.
    fn open(&self, dir: &fs::File, path: &Path) -> Result<(fs::File, bool), ErrorCode> {
        let file = self.open_or_make(dir, path).map_err(|error| refused(&error))?;
        let kind = file.metadata()?.file_type();
        match (kind.is_dir(), kind.is_file()) {
            (true, _) => Ok((file, true)),
            (_, true) if self.directory => Err(ErrorCode::NotDirectory),
            (_, true) => Ok((file, false)),
            _ => Err(ErrorCode::Unsupported),
        }
    }
}

async fn open_at(
    view: FilesystemView<'_>,
    dir: &Resource<Descriptor>,
    at: PathFlags,
    path: String,
    open: OpenFlags,
    flags: DescriptorFlags,
) -> FsResult<Resource<Descriptor>> {
    let dir = directory(&view, dir)?;
    let asked = OpenRequest::new(at, open, flags)?;
    if asked.mode.contains(OpenMode::WRITE) && dir.perms.write_not_permitted() {
        return Err(ErrorCode::NotPermitted.into());
    }
    view.files.room()?;
    let (perms, mode) = (dir.perms, asked.mode);
    let (file, is_dir) = blocking(move || asked.open(&dir.dir, Path::new(&path))).await?;
    let descriptor = if is_dir {
        let dir = Dir::new(file, perms, mode, false);
        view.files.count(&dir.dir);
        Descriptor::Dir(dir)
    } else {
        let file = File::new(file, perms, mode, false);
        view.files.count(&file.file);
        Descriptor::File(file)
    };
    Ok(view.table.push(descriptor)?)
}

async fn set_times_at(
    view: FilesystemView<'_>,
    dir: &Resource<Descriptor>,
    at: PathFlags,
    path: String,
    accessed: NewTimestamp,
    modified: NewTimestamp,
) -> FsResult<()> {
    let dir = writable_directory(&view, dir)?;
    let times = Timestamps { last_access: timespec(&accessed)?, last_modification: timespec(&modified)? };
    blocking(move || {
        let mut options = OpenOptions::new();
        // A descriptor of the name alone: what it names is not opened.
        options.read(true).follow(follow(at)).custom_flags(OFlags::PATH.bits().cast_signed());
        let named = cap_primitives::fs::open(&dir.dir, Path::new(&path), &options)?;
        rustix::fs::utimensat(&named, "", &times, AtFlags::EMPTY_PATH).map_err(io::Error::from)?;
        Ok(())
    })
    .await
}

fn timespec(time: &NewTimestamp) -> Result<Timespec, ErrorCode> {
    Ok(match time {
        NewTimestamp::NoChange => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        NewTimestamp::Now => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        NewTimestamp::Timestamp(time) => {
            let seconds = time.seconds.checked_add(u64::from(time.nanoseconds / 1_000_000_000));
            let tv_sec = seconds.and_then(|seconds| seconds.try_into().ok()).ok_or(ErrorCode::Overflow)?;
            Timespec { tv_sec, tv_nsec: (time.nanoseconds % 1_000_000_000).into() }
        }
    })
}

async fn read_directory(view: FilesystemView<'_>, dir: &Resource<Descriptor>) -> FsResult<Resource<DirectoryNames>> {
    let dir = directory(&view, dir)?;
    view.files.room()?;
    let opened = blocking(move || {
        // A descriptor of its own, so that two readers of one directory do not share a position.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::openat(&dir.dir, ".", flags, Mode::empty()).map_err(io::Error::from)?;
        Ok(rustix::fs::Dir::new(dir).map_err(io::Error::from)?)
    })
    .await?;
    let dir = Arc::new(Mutex::new(opened));
    view.files.count(&dir);
    Ok(view.table.push(DirectoryNames { dir, ready: VecDeque::new(), ended: false })?)
}

async fn next_entry(view: FilesystemView<'_>, entries: &Resource<DirectoryNames>) -> FsResult<Option<DirectoryEntry>> {
    let entries = view.table.get_mut(entries)?;
    if entries.ready.is_empty() && !entries.ended {
        let dir = entries.dir.clone();
        let read = tokio::task::spawn_blocking(move || {
            let mut dir = dir.lock();
            // `.` and `..` are no entries.
            let some = dir.by_ref().filter_map(|read| entry(read).transpose()).take(BATCH);
            some.collect::<VecDeque<_>>()
        });
        entries.ready = read.await.map_err(FsError::trap)?;
        entries.ended = entries.ready.len() < BATCH;
    }
    Ok(entries.ready.pop_front().transpose()?)
}

fn entry(read: rustix::io::Result<rustix::fs::DirEntry>) -> Result<Option<DirectoryEntry>, ErrorCode> {
    let read = read.map_err(io::Error::from)?;
    let name = read.file_name().to_str().map_err(|_| ErrorCode::IllegalByteSequence)?;
    if [".", ".."].contains(&name) {
        return Ok(None);
    }
    let type_ = match read.file_type() {
        FileType::RegularFile => DescriptorType::RegularFile,
        FileType::Directory => DescriptorType::Directory,
        FileType::Symlink => DescriptorType::SymbolicLink,
        FileType::Fifo => DescriptorType::Fifo,
        FileType::Socket => DescriptorType::Socket,
        FileType::CharacterDevice => DescriptorType::CharacterDevice,
        FileType::BlockDevice => DescriptorType::BlockDevice,
        FileType::Unknown => DescriptorType::Unknown,
    };
    Ok(Some(DirectoryEntry { type_, name: name.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct State(wasmtime_wasi::WasiCtx, wasmtime::component::ResourceTable);

    impl wasmtime_wasi::WasiView for State {
        fn ctx(&mut self) -> wasmtime_wasi::WasiCtxView<'_> {
            wasmtime_wasi::WasiCtxView { ctx: &mut self.0, table: &mut self.1 }
        }
    }

    #[test]
    fn what_an_update_of_wasmtime_wasi_would_leave_unhooked_is_an_error() {
        let mut linker = Linker::<State>::new(&wasmtime::Engine::default());
        let missing = |linker: &mut _, interface, name| is_there::<State>(linker, interface, name).is_err();
        assert!(missing(&mut linker, INTERFACE, OPEN_AT), "before it is defined");
        let mut linker = Linker::<State>::new(&wasmtime::Engine::default());
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).unwrap();
        for name in [OPEN_AT, CREATE_DIRECTORY_AT, SET_TIMES_AT, READ_DIRECTORY, ENTRIES, NEXT_ENTRY] {
            assert!(!missing(&mut linker, INTERFACE, name), "{name} is not wasmtime-wasi's");
        }
        assert!(missing(&mut linker, "wasi:filesystem/types@0.2.99", OPEN_AT));
        assert!(missing(&mut linker, INTERFACE, "[method]descriptor.open-elsewhere"));
    }
}
