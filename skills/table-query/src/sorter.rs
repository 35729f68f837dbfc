//! Sorts more records than fit into memory.
//!
//! A record is a key, compared byte by byte, and a payload. Records that no longer fit are written in order to one file
//! (a *run*), and at the end the runs are merged. The file has no name: it is unlinked as soon as it is open, so that a
//! call that is cut off leaves nothing in the workspace.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

/// Bytes of records held at once.
pub(crate) const HELD_AT_MOST: usize = 12 * 1024 * 1024;
/// Bytes of all buffers that runs are read through, and the least of one.
const BUFFERS: usize = 12 * 1024 * 1024;
const BUFFER_AT_LEAST: usize = 4 * 1024;
/// Records are kept in pieces of memory, so that growing never means copying all of it.
const PIECE: usize = 1024 * 1024;
/// What a record costs besides its bytes.
const OVERHEAD: usize = size_of::<Place>();

/// A record's place in memory.
struct Place {
    piece: u32,
    at: u32,
    key: u32,
    all: u32,
}

/// Collects records, and gives them back in order.
pub(crate) struct Sorter {
    pieces: Vec<Vec<u8>>,
    places: Vec<Place>,
    held: usize,
    /// How many bytes may be held.
    room: usize,
    /// No more records than this are wanted.
    limit: Option<usize>,
    scratch: PathBuf,
    spill: Option<Spill>,
}

/// The file of runs.
struct Spill {
    file: File,
    /// Where each begins; it ends where the next does.
    runs: Vec<u64>,
    end: u64,
}

impl Sorter {
    /// An empty one. `scratch` is a path for the file, should it be needed; only the first `limit` records will be given.
    pub(crate) fn new(scratch: &Path, limit: Option<usize>) -> Self {
        Self::with_room(scratch, limit, HELD_AT_MOST)
    }

    fn with_room(scratch: &Path, limit: Option<usize>, room: usize) -> Self {
        let (pieces, places) = (Vec::new(), Vec::new());
        Self { pieces, places, held: 0, room, limit, scratch: scratch.to_owned(), spill: None }
    }

    /// Adds a record. Those with equal keys come out in the order in which they were added.
    pub(crate) fn add(&mut self, key: &[u8], payload: &[u8]) -> Result<(), String> {
        let size = key.len() + payload.len();
        if self.held + size + OVERHEAD > self.room && !self.places.is_empty() {
            self.make_room()?;
        }
        self.hold(key, payload);
        Ok(())
    }

    fn hold(&mut self, key: &[u8], payload: &[u8]) {
        let size = key.len() + payload.len();
        if self.pieces.last().is_none_or(|piece| piece.capacity() - piece.len() < size) {
            self.pieces.push(Vec::with_capacity(PIECE.max(size)));
        }
        let number = self.pieces.len() - 1;
        let Some(piece) = self.pieces.last_mut() else { return };
        self.places.push(Place {
            piece: number as u32,
            at: piece.len() as u32,
            key: key.len() as u32,
            all: size as u32,
        });
        piece.extend_from_slice(key);
        piece.extend_from_slice(payload);
        self.held += size + OVERHEAD;
    }

    fn record<'a>(pieces: &'a [Vec<u8>], place: &Place) -> (&'a [u8], &'a [u8]) {
        let from = pieces.get(place.piece as usize).and_then(|piece| piece.get(place.at as usize..));
        let record = from.and_then(|from| from.get(..place.all as usize)).unwrap_or_default();
        record.split_at_checked(place.key as usize).unwrap_or_default()
    }

    fn sort(&mut self) {
        let pieces = &self.pieces;
        // Stable.
        self.places.sort_by(|a, b| Self::record(pieces, a).0.cmp(Self::record(pieces, b).0));
        if let Some(limit) = self.limit {
            self.places.truncate(limit);
        }
    }

    /// Drops what is not among the first `limit`, when that helps; else writes a run.
    fn make_room(&mut self) -> Result<(), String> {
        self.sort();
        let kept: usize = self.places.iter().map(|place| place.all as usize + OVERHEAD).sum();
        let (pieces, places) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.places));
        self.held = 0;
        if kept <= self.room / 2 {
            for place in &places {
                let (key, payload) = Self::record(&pieces, place);
                self.hold(key, payload);
            }
            return Ok(());
        }
        self.spill(&pieces, &places).map_err(|error| {
            format!("rows that do not fit into memory could not be kept in {}: {error}", self.scratch.display())
        })
    }

    fn spill(&mut self, pieces: &[Vec<u8>], places: &[Place]) -> io::Result<()> {
        let spill = match &mut self.spill {
            Some(spill) => spill,
            None => {
                let file = File::options().read(true).write(true).create_new(true).open(&self.scratch)?;
                fs::remove_file(&self.scratch)?;
                self.spill.insert(Spill { file, runs: Vec::new(), end: 0 })
            }
        };
        spill.runs.push(spill.end);
        spill.file.seek(SeekFrom::Start(spill.end))?;
        let mut out = BufWriter::with_capacity(256 * 1024, &mut spill.file);
        for place in places {
            let (key, payload) = Self::record(pieces, place);
            out.write_all(&(key.len() as u32).to_le_bytes())?;
            out.write_all(&(payload.len() as u32).to_le_bytes())?;
            out.write_all(key)?;
            out.write_all(payload)?;
            spill.end += 8 + key.len() as u64 + payload.len() as u64;
        }
        out.flush()
    }

    /// Gives every record, in order, to `each`, until that says that it has had enough (`false`).
    pub(crate) fn finish(mut self, each: impl FnMut(&[u8], &[u8]) -> Result<bool, String>) -> Result<(), String> {
        let Some(mut spill) = self.spill.take() else {
            self.sort();
            return give(self.places.iter().map(|place| Self::record(&self.pieces, place)), each);
        };
        if !self.places.is_empty() {
            self.sort();
            let (pieces, places) = (std::mem::take(&mut self.pieces), std::mem::take(&mut self.places));
            self.spill = Some(spill);
            let written = self.spill(&pieces, &places);
            written.map_err(|error| format!("rows that do not fit into memory could not be kept: {error}"))?;
            let Some(again) = self.spill.take() else { return Ok(()) };
            spill = again;
        }
        let limit = self.limit.unwrap_or(usize::MAX);
        drop(self);
        spill.merge(limit, each)
    }
}

fn give<'a>(
    records: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<bool, String>,
) -> Result<(), String> {
    for (key, payload) in records {
        if !each(key, payload)? {
            break;
        }
    }
    Ok(())
}

/// A run that is being read.
struct Run {
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    /// What of the buffer has been used.
    used: usize,
}

impl Spill {
    fn merge(mut self, limit: usize, mut each: impl FnMut(&[u8], &[u8]) -> Result<bool, String>) -> Result<(), String> {
        let unreadable = |error: io::Error| format!("rows that were kept in a file could not be read back: {error}");
        let room = (BUFFERS / self.runs.len().max(1)).max(BUFFER_AT_LEAST);
        let ends = self.runs.iter().skip(1).copied().chain([self.end]);
        let mut runs: Vec<Run> =
            self.runs.iter().zip(ends).map(|(&at, end)| Run { at, end, buffer: Vec::new(), used: 0 }).collect();
        // Of equal keys, the run that was written first.
        let mut next = BinaryHeap::new();
        for (number, run) in runs.iter_mut().enumerate() {
            if let Some((key, payload)) = run.next(&mut self.file, room).map_err(unreadable)? {
                next.push(Reverse((key, number, payload)));
            }
        }
        for _ in 0..limit {
            let Some(Reverse((key, number, payload))) = next.pop() else { break };
            if !each(&key, &payload)? {
                break;
            }
            let Some(run) = runs.get_mut(number) else { continue };
            if let Some((key, payload)) = run.next(&mut self.file, room).map_err(unreadable)? {
                next.push(Reverse((key, number, payload)));
            }
        }
        Ok(())
    }
}

impl Run {
    fn next(&mut self, file: &mut File, room: usize) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
        if self.at == self.end && self.used == self.buffer.len() {
            return Ok(None);
        }
        let head = self.take(file, 8, room)?;
        let (key, payload) = head.split_at(4);
        let length = |bytes: &[u8]| bytes.try_into().map(|bytes| u32::from_le_bytes(bytes) as usize).unwrap_or(0);
        let (key, payload) = (length(key), length(payload));
        Ok(Some((self.take(file, key, room)?, self.take(file, payload, room)?)))
    }

    /// The next `count` bytes.
    fn take(&mut self, file: &mut File, count: usize, room: usize) -> io::Result<Vec<u8>> {
        if self.buffer.len() - self.used < count {
            self.buffer.drain(..self.used);
            self.used = 0;
            let wanted = room.max(count) - self.buffer.len();
            let wanted = (wanted as u64).min(self.end - self.at);
            file.seek(SeekFrom::Start(self.at))?;
            let got = file.take(wanted).read_to_end(&mut self.buffer)?;
            self.at += got as u64;
        }
        let bytes = self.buffer.get(self.used..self.used + count).ok_or(io::ErrorKind::UnexpectedEof)?.to_vec();
        self.used += count;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Records = Vec<(Vec<u8>, Vec<u8>)>;

    fn sorted(records: &Records, limit: Option<usize>, room: usize) -> (Records, bool) {
        let directory = tempfile::tempdir().unwrap();
        let scratch = directory.path().join("scratch");
        let mut sorter = Sorter::with_room(&scratch, limit, room);
        for (key, payload) in records {
            sorter.add(key, payload).unwrap();
            assert!(!scratch.exists(), "the file has no name");
        }
        let spilled = sorter.spill.is_some();
        let mut out = Vec::new();
        sorter
            .finish(|key, payload| {
                out.push((key.to_vec(), payload.to_vec()));
                Ok(true)
            })
            .unwrap();
        (out, spilled)
    }

    #[test]
    fn a_record_larger_than_all_room_is_one_more_record() {
        let records = vec![(b"b".to_vec(), vec![1; 5000]), (b"a".to_vec(), vec![2; 5000]), (b"c".to_vec(), vec![])];
        let (out, spilled) = sorted(&records, None, 100);
        assert!(spilled);
        assert_eq!(out, [records[1].clone(), records[0].clone(), records[2].clone()]);
    }

    #[test]
    fn the_first_few_never_touch_the_disk() {
        let records: Vec<_> =
            (0..10_000u32).map(|n| (n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec(), vec![0; 8])).collect();
        let (out, spilled) = sorted(&records, Some(5), 4000);
        let mut all = records;
        all.sort();
        assert!(!spilled);
        assert_eq!(out, all[..5]);
    }

    #[test]
    fn who_has_enough_gets_no_more() {
        let directory = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::with_room(&directory.path().join("s"), None, 64);
        (0..100u8).for_each(|n| sorter.add(&[n], &[n]).unwrap());
        let mut seen = 0;
        sorter
            .finish(|_, _| {
                seen += 1;
                Ok(seen < 3)
            })
            .unwrap();
        assert_eq!(seen, 3);
    }

    proptest! {
        #[test]
        fn whatever_the_room_it_is_a_stable_sort(
            keys in prop::collection::vec(prop::collection::vec(0u8..3, 0..3), 0..200),
            room in 32usize..4000,
            limit in prop::option::of(0usize..50),
        ) {
            let records: Vec<_> =
                keys.into_iter().enumerate().map(|(at, key)| (key, at.to_le_bytes().to_vec())).collect();
            let (out, _) = sorted(&records, limit, room);
            let mut expected = records;
            expected.sort_by(|a, b| a.0.cmp(&b.0));
            expected.truncate(limit.unwrap_or(usize::MAX));
            prop_assert_eq!(out, expected);
        }
    }
}
