//! A file's content as a descriptor that is open for reading.
//!
//! Bytes that go through a socket are copied three times and wake two processes for every few pages; a descriptor goes
//! once, and its receiver copies as fast as `cp` does. The receiver never trusts it: reading it must neither wait for
//! somebody nor mean anything but reading ([`check`]).

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, fstatfs, ftruncate, ioctl_ficlone};
use rustix::io::{pread, retry_on_intr, write};

use crate::ProtocolError;

/// A file that is shorter goes as bytes: a few pages are read and sent faster than a descriptor is.
pub const WORTH_PASSING: u64 = 64 * 1024;

/// What is copied at a time. Larger pieces fall out of the processor's caches between their reading and their writing.
const CHUNK: usize = 256 * 1024;

/// File systems whose files hold what was written to them and are read without anybody's help.
///
/// A list of what is known, not of what is not: in `/proc` and its like a read runs the kernel's code with the reader's
/// rights, on FUSE a program answers it, when it likes. Files of any other file system go as bytes.
const PLAIN: [u64; 11] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xf2f5_2010, // F2FS
    0xca45_1a4e, // bcachefs
    0x2fc1_2fc1, // ZFS
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
    0x794c_7630, // overlayfs
    0x7371_7368, // SquashFS
    0xe0f5_e1e2, // EROFS
];

/// The length of `file` when its descriptor is to be passed rather than its bytes.
pub fn worth_passing(file: impl AsFd) -> Option<u64> {
    let len = u64::try_from(fstat(&file).ok()?.st_size).ok()?;
    (len >= WORTH_PASSING && check(&file).is_ok()).then_some(len)
}

/// Whether `file` may be read from as what it was passed for.
pub fn check(file: impl AsFd) -> Result<(), ProtocolError> {
    let refuse = |what: &str| Err(ProtocolError(format!("{what}, where a regular file open for reading was due")));
    let (Ok(stat), Ok(flags), Ok(system)) = (fstat(&file), fcntl_getfl(&file), fstatfs(&file)) else {
        return refuse("a descriptor that says nothing of itself");
    };
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("a descriptor of no regular file");
    }
    if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE != OFlags::RDONLY {
        return refuse("a descriptor that is not for reading, or not only");
    }
    // The type of the field differs by machine; what is looked for fits 32 bits.
    let magic = (system.f_type as u64) & u64::from(u32::MAX);
    if !PLAIN.contains(&magic) {
        return refuse("a file of a file system that keeps no plain files");
    }
    Ok(())
}

/// A copy under way, to be gone on with until nothing is left.
pub struct Copying<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    at: u64,
    len: u64,
    buffer: Vec<u8>,
}

impl<'a> Copying<'a> {
    /// Copies the first `len` bytes of `from`, or as many as it has, to the empty file `to`.
    pub fn new(from: BorrowedFd<'a>, to: BorrowedFd<'a>, len: u64) -> Self {
        Self { from, to, at: 0, len, buffer: Vec::new() }
    }

    /// Copies a piece: how long it was, 0 when all is copied.
    ///
    /// File systems that can share blocks do so at once. For others the kernel has `copy_file_range` and `sendfile`,
    /// which go by way of a pipe of single pages: plain reads and writes were a quarter faster on ext4, and as fast
    /// between ext4 and tmpfs.
    pub fn step(&mut self) -> rustix::io::Result<u64> {
        if self.buffer.is_empty() {
            if ioctl_ficlone(self.to, self.from).is_ok() {
                return self.cloned();
            }
            self.buffer.resize(usize::try_from(self.len).unwrap_or(usize::MAX).clamp(1, CHUNK), 0);
        }
        let left = usize::try_from(self.len - self.at).unwrap_or(usize::MAX).min(self.buffer.len());
        let piece = self.buffer.get_mut(..left).unwrap_or_default();
        let len = if left == 0 { 0 } else { retry_on_intr(|| pread(self.from, &mut *piece, self.at))? };
        let mut rest = piece.get(..len).unwrap_or_default();
        while !rest.is_empty() {
            let written = retry_on_intr(|| write(self.to, rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        self.at += len as u64;
        Ok(len as u64)
    }

    fn cloned(&mut self) -> rustix::io::Result<u64> {
        let mut len = u64::try_from(fstat(self.to)?.st_size).unwrap_or(0);
        if len > self.len {
            ftruncate(self.to, self.len)?;
            len = self.len;
        }
        // Nothing is left.
        self.buffer.push(0);
        (self.at, self.len) = (len, len);
        Ok(len)
    }
}
