//! Tells that nothing has happened to a catalogue, without a look at it.
//!
//! The kernel queues the event of a change before the call that makes it returns. So as long as the queue of all [`Places`] is
//! empty, all is as it was when the queue was opened, and asking costs one question instead of three for each skill.
//!
//! What shows in no queue is what this must not be trusted with:
//!
//! - What other machines do to a network file system: [`Still::of`] has none where a place is not on a local one.
//! - A file with a second name, through which it can be written: none either.
//! - A directory above all places that is moved, or something that is mounted over it: the roots themselves are asked for
//!   each time.
//!
//! (What is mounted inside a root, and a second name that a file is given later, are seen with the next event or by the next
//! host process. Whoever runs a skill looks for himself.)

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::fs::{FileType, lstat, stat, statfs};
use rustix::io::Errno;

use super::discovery::Roots;
use super::places::{Entries, Places};

/// What changes what is there. Reading is not among it.
const CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// File systems whose every change is made by this machine's kernel, by their numbers in statfs(2).
const LOCAL: [u32; 8] = [
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0x0102_1994, // tmpfs
    0x794c_7630, // overlayfs, which a container's root is; whoever writes beneath it breaks more than this
];

/// What tells a directory from another that comes to be in its place.
type Identity = Option<(u64, u64)>;

/// A queue of what happens to a catalogue.
#[derive(Debug)]
pub struct Still {
    queue: OwnedFd,
    places: HashMap<i32, Entries>,
    roots: Vec<(Identity, PathBuf)>,
    /// Something has happened, and its event was taken from the queue.
    over: bool,
}

impl Still {
    /// One that is quiet from now on until something happens to these places, or to the roots they are of. `files` are those
    /// that the catalogue was made of. None where something could happen unnoticed.
    pub fn of(roots: &Roots, places: &Places, mut files: impl Iterator<Item = PathBuf>) -> Option<Self> {
        let roots = roots.0.iter().flat_map(|root| [root.dir.clone(), root.dir.with_file_name("plugins")]);
        let roots = roots.map(|root| (identity(&root), root)).collect();
        let queue = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
        let mut still = Self { queue, places: HashMap::new(), roots, over: false };
        for dir in places.directories() {
            is_local(dir).then_some(())?;
            let number = inotify::add_watch(&still.queue, dir, CHANGES).ok()?;
            let entries = places.entries(dir)?.clone();
            // Two ways to one directory have one number.
            still.places.entry(number).and_modify(|both| *both = Entries::All).or_insert(entries);
        }
        files.all(|file| is_alone(&file)).then_some(still)
    }

    /// Whether nothing has happened.
    pub fn holds(&mut self) -> bool {
        self.over = self.over || self.roots.iter().any(|(was, root)| identity(root) != *was) || !self.is_quiet();
        !self.over
    }

    fn is_quiet(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = Reader::new(&self.queue, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    if self.matters(event.wd(), event.events(), name) {
                        return false;
                    }
                }
                Err(error) => return error == Errno::AGAIN,
            }
        }
    }

    fn matters(&self, number: i32, what: ReadFlags, name: Option<&OsStr>) -> bool {
        match (self.places.get(&number), name) {
            (Some(Entries::Only(names)), Some(name)) => names.contains(name),
            // What became of the directory itself; or of the queue, of which some was lost.
            _ => !what.is_empty(),
        }
    }
}

fn identity(dir: &Path) -> Identity {
    stat(dir).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn is_local(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|system| LOCAL.iter().any(|local| is_type(system.f_type, *local)))
}

/// The number is signed on some machines and of 32 or 64 bits.
fn is_type(found: impl TryInto<i128>, known: u32) -> bool {
    found.try_into().is_ok_and(|found| found & 0xffff_ffff == i128::from(known))
}

/// Whether a file can be written by no name but this one.
fn is_alone(file: &Path) -> bool {
    lstat(file).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_nlink == 1)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::discovery::{Catalog, Root, Source};
    use super::super::loaded::Shelf;
    use super::super::{frontmatter, manifest};
    use super::*;

    struct Home {
        temp: tempfile::TempDir,
        roots: Roots,
    }

    impl Home {
        fn new() -> Self {
            let temp = tempfile::tempdir().unwrap();
            let home = Self { roots: Roots(Vec::new()), temp };
            fs::create_dir_all(home.at("way/to/skills/one/assets/deep")).unwrap();
            symlink("to", home.at("way/link")).unwrap();
            let skill = home.at("way/to/skills/one");
            let manifest = "[skill]\nname = \"one\"\nversion = \"1.0.0\"\ncomponent = \"target/one.wasm\"\n";
            fs::create_dir(skill.join("target")).unwrap();
            fs::write(skill.join("target/one.wasm"), "").unwrap();
            fs::write(skill.join(manifest::FILE), manifest).unwrap();
            fs::write(skill.join(frontmatter::FILE), "---\ndescription: d\n---\n").unwrap();
            let roots = ["way/link/skills", "none/skills"].map(|dir| Root { dir: home.at(dir), source: Source::User });
            Self { roots: Roots(roots.into()), ..home }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.temp.path().join(path)
        }

        fn still(&self) -> Option<Still> {
            let catalog = Catalog::discover(&self.roots, &Shelf::default());
            assert!(catalog.skills["one"].loaded.is_ok());
            let files =
                ["skill.toml", "SKILL.md", "target/one.wasm"].map(|file| self.at("way/to/skills/one").join(file));
            Still::of(&self.roots, &Places::of(&self.roots, &catalog), files.into_iter())
        }
    }

    fn write(path: &Path) {
        use std::io::Write as _;
        fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"#").unwrap();
    }

    #[test]
    fn every_change_is_seen_by_who_asks_next() {
        type Change = fn(&Home);
        let changes: [(&str, Change); 16] = [
            ("a manifest written", |home| write(&home.at("way/to/skills/one/skill.toml"))),
            ("a text written", |home| write(&home.at("way/to/skills/one/SKILL.md"))),
            ("a component written", |home| write(&home.at("way/to/skills/one/target/one.wasm"))),
            ("a component replaced", |home| {
                fs::write(home.at("way/to/skills/one/target/new"), "x").unwrap();
                fs::rename(home.at("way/to/skills/one/target/new"), home.at("way/to/skills/one/target/one.wasm"))
                    .unwrap();
            }),
            ("a component's directory replaced", |home| {
                fs::rename(home.at("way/to/skills/one/target"), home.at("way/to/skills/one/old")).unwrap();
            }),
            ("a file made unreadable", |home| {
                fs::set_permissions(home.at("way/to/skills/one/SKILL.md"), fs::Permissions::from_mode(0o0)).unwrap();
            }),
            ("a file removed", |home| fs::remove_file(home.at("way/to/skills/one/SKILL.md")).unwrap()),
            ("a skill made", |home| fs::create_dir(home.at("way/to/skills/two")).unwrap()),
            ("a skill removed", |home| fs::remove_dir_all(home.at("way/to/skills/one")).unwrap()),
            ("a skill renamed", |home| {
                fs::rename(home.at("way/to/skills/one"), home.at("way/to/skills/two")).unwrap();
            }),
            ("plugins made", |home| fs::create_dir(home.at("way/to/plugins")).unwrap()),
            ("a root moved", |home| fs::rename(home.at("way/to/skills"), home.at("way/to/else")).unwrap()),
            ("the way moved", |home| fs::rename(home.at("way/to"), home.at("way/else")).unwrap()),
            ("what is above it all moved", |home| fs::rename(home.at("way"), home.at("else")).unwrap()),
            ("a link that leads elsewhere", |home| {
                fs::remove_file(home.at("way/link")).unwrap();
                symlink("elsewhere", home.at("way/link")).unwrap();
            }),
            ("another root made", |home| fs::create_dir_all(home.at("none/skills")).unwrap()),
        ];
        for (what, change) in changes {
            let home = Home::new();
            let mut still = home.still().unwrap();
            assert!(still.holds() && still.holds(), "before: {what}");
            change(&home);
            assert!(!still.holds(), "{what}");
            assert!(!still.holds(), "and for good: {what}");
        }
    }

    #[test]
    fn what_changes_nothing_ends_nothing() {
        let home = Home::new();
        let mut still = home.still().unwrap();
        fs::write(home.at("note"), "x").unwrap();
        fs::write(home.at("way/to/note"), "x").unwrap();
        fs::write(home.at("way/to/skills/one/assets/deep/picture"), "x").unwrap();
        fs::write(home.at("way/to/skills/one/target/other.wasm"), "x").unwrap();
        for file in ["skill.toml", "SKILL.md", "target/one.wasm"] {
            fs::read(home.at("way/to/skills/one").join(file)).unwrap();
        }
        Catalog::discover(&home.roots, &Shelf::default());
        assert!(still.holds());
    }

    #[test]
    fn what_could_change_unnoticed_is_not_trusted() {
        let home = Home::new();
        let component = home.at("way/to/skills/one/target/one.wasm");
        fs::hard_link(&component, home.at("second")).unwrap();
        assert!(home.still().is_none(), "it can be written by another name");
        fs::remove_file(home.at("second")).unwrap();
        assert!(home.still().is_some());
        fs::rename(&component, home.at("way/to/skills/one/real.wasm")).unwrap();
        symlink("../real.wasm", &component).unwrap();
        assert!(home.still().is_none(), "it is elsewhere");
        let proc = Roots(vec![Root { dir: "/proc/self/skills".into(), source: Source::User }]);
        let places = Places::of(&proc, &Catalog::default());
        assert!(Still::of(&proc, &places, std::iter::empty()).is_none(), "no file system of files");
    }

    #[test]
    fn events_that_were_lost_are_changes() {
        let home = Home::new();
        let mut still = home.still().unwrap();
        let most = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        // None of them matters, and two that are the same in a row are one.
        for number in 0..=most.trim().parse::<usize>().unwrap() {
            let (from, to) = if number % 2 == 0 { ("way/to/a", "way/to/b") } else { ("way/to/b", "way/to/a") };
            let _ = fs::write(home.at("way/to/a"), "");
            fs::rename(home.at(from), home.at(to)).unwrap();
        }
        assert!(!still.holds());
    }
}
