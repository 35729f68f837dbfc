//! Packages as tar archives: written so that the same files are the same bytes, and read as a stranger wrote them.
//!
//! What is in an archive is a regular file or a directory, or the archive is refused by the entry's name. No entry has a say in where
//! or as whose file it is written: only its path, whether it is a program, and its bytes are taken.

use std::io::{Cursor, Read};

use flate2::read::GzDecoder;
use skillhost_api::error::{Error, Result};
use tar::{Archive, Builder, EntryType, Header};

use super::package::{MAX_BYTES, MAX_FILES, SkillPackage, bad};

/// The most bytes of an archive: that of the files, and what tar puts around each.
pub(crate) const MAX_ARCHIVE: u64 = MAX_BYTES + 4096 * MAX_FILES as u64;
/// The most entries that are looked at, directories included.
const MAX_ENTRIES: usize = 4 * MAX_FILES;
/// Bits that make a program another one than who starts it expects.
const SPECIAL_BITS: u32 = 0o7000;

/// The package's files as a tar archive, without a time or a user in it.
pub(crate) fn write(package: &SkillPackage) -> Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    for (path, file) in package.files() {
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(if file.executable { 0o755 } else { 0o644 });
        header.set_size(file.bytes.len() as u64);
        header.set_mtime(0);
        builder.append_data(&mut header, path, file.bytes.as_slice()).map_err(|error| bad(path, &error.to_string()))?;
    }
    Ok(builder.into_inner()?)
}

/// Adds the files of a `.tar.gz` to a package.
pub(crate) fn read_gz(bytes: &[u8], package: &mut SkillPackage) -> Result<()> {
    read(GzDecoder::new(bytes), package)
}

/// Adds the files of a tar archive to a package.
pub(crate) fn read_tar(bytes: &[u8], package: &mut SkillPackage) -> Result<()> {
    read(Cursor::new(bytes), package)
}

fn read(archive: impl Read, package: &mut SkillPackage) -> Result<()> {
    let broken = |error: std::io::Error| Error::invalid_argument(format!("it is no archive that can be read: {error}"));
    // Whatever it unpacks to, no more of it is read.
    let mut archive = Archive::new(archive.take(MAX_ARCHIVE));
    let mut entries = 0_usize;
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        entries += 1;
        if entries > MAX_ENTRIES {
            return Err(Error::too_large(format!("it has more than {MAX_ENTRIES} entries")));
        }
        let path = entry.path_bytes();
        let Ok(path) = std::str::from_utf8(&path).map(str::to_owned) else {
            return Err(bad(&String::from_utf8_lossy(&path), "its name is not UTF-8"));
        };
        let header = entry.header();
        let mode = header.mode().map_err(broken)?;
        match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => {}
            // It is made for the files in it, if there are any.
            EntryType::Directory => continue,
            // Words about the archive as a whole.
            EntryType::XGlobalHeader => continue,
            EntryType::Symlink => return Err(bad(&path, "it is a symbolic link")),
            EntryType::Link => return Err(bad(&path, "it is a hard link")),
            EntryType::Char | EntryType::Block | EntryType::Fifo => return Err(bad(&path, "it is a device or a pipe")),
            _ => return Err(bad(&path, "it is neither a file nor a directory")),
        }
        if mode & SPECIAL_BITS != 0 {
            return Err(bad(&path, "it has a set-uid, set-gid or sticky bit"));
        }
        let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
        let declared = entry.size();
        if declared > package.room() {
            return Err(Error::too_large(format!(
                "{path}: with its {declared} bytes the files have more than {MAX_BYTES}"
            )));
        }
        // Nothing is set aside for what is only said to come.
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(broken)?;
        if bytes.len() as u64 != declared {
            return Err(bad(&path, "the archive ends in the middle of it"));
        }
        package.add(&path, bytes, mode & 0o100 != 0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn archive(entries: &[(&str, EntryType, u32)]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (path, kind, mode) in entries {
            let mut header = Header::new_gnu();
            // As a stranger would: the library refuses to write such names.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_size(if *kind == EntryType::Regular { 1 } else { 0 });
            header.set_cksum();
            builder.append(&header, if *kind == EntryType::Regular { b"x".as_slice() } else { b"" }).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn refused(entries: &[(&str, EntryType, u32)]) -> String {
        let mut package = SkillPackage::default();
        read_tar(&archive(entries), &mut package).unwrap_err().message
    }

    #[test]
    fn what_is_written_is_read_and_is_the_same_each_time() {
        let mut package = SkillPackage::default();
        package.add("SKILL.md", b"text".to_vec(), false).unwrap();
        package.add(&format!("scripts/{}.sh", "long".repeat(40)), b"#!".to_vec(), true).unwrap();
        let written = write(&package).unwrap();
        assert_eq!(write(&package).unwrap(), written);
        let mut again = SkillPackage::default();
        read_tar(&written, &mut again).unwrap();
        assert_eq!(again.digest(), package.digest());
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&written).unwrap();
        let mut from_gz = SkillPackage::default();
        read_gz(&gz.finish().unwrap(), &mut from_gz).unwrap();
        assert_eq!(from_gz.digest(), package.digest());
    }

    #[test]
    fn whatever_is_no_plain_file_is_refused_by_its_name() {
        let file = EntryType::Regular;
        for (path, kind, mode, said) in [
            ("../out", file, 0o644, "leads out"),
            ("a/../../out", file, 0o644, "leads out"),
            ("/etc/out", file, 0o644, "absolute"),
            ("link", EntryType::Symlink, 0o777, "symbolic link"),
            ("hard", EntryType::Link, 0o644, "hard link"),
            ("null", EntryType::Char, 0o644, "device"),
            ("pipe", EntryType::Fifo, 0o644, "pipe"),
            ("suid", file, 0o4755, "set-uid"),
        ] {
            let message = refused(&[(path, kind, mode)]);
            assert!(message.contains(said) && message.contains(path), "{path}: {message}");
        }
        let message = refused(&[("a", file, 0o644), ("A", file, 0o644)]);
        assert!(message.contains("same name"), "{message}");
        let message = refused(&[("a", file, 0o644), ("a", file, 0o644)]);
        assert!(message.contains("same name"), "{message}");
    }

    #[test]
    fn an_archive_that_ends_early_or_unpacks_to_too_much_is_refused() {
        let whole = archive(&[("a", EntryType::Regular, 0o644)]);
        assert!(read_tar(&whole[..512], &mut SkillPackage::default()).is_err());
        let mut header = Header::new_gnu();
        header.set_path("huge").unwrap();
        header.set_size(u64::MAX >> 8);
        header.set_mode(0o644);
        header.set_cksum();
        let error = read_tar(header.as_bytes(), &mut SkillPackage::default()).unwrap_err();
        assert!(error.message.contains("huge"), "{error}");
        let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        bomb.write_all(header.as_bytes()).unwrap();
        assert!(read_gz(&bomb.finish().unwrap(), &mut SkillPackage::default()).is_err());
    }
}
