//! Puts the rows of two tables beside each other.
//!
//! As much of the second table as memory holds is kept by its key, and the first is read against it; then the next part
//! of the second, until it ends. No key can have too many rows for this, and nothing is written anywhere.

use std::collections::HashMap;
use std::ops::ControlFlow;

use crate::cell::{Cell, Row};
use crate::condition::Condition;
use crate::rows::Seen;
use crate::source::Table;

/// Bytes of the second table that are held at once.
const HELD_AT_MOST: usize = 16 * 1024 * 1024;
/// What a row and a cell cost besides their text.
const ROW_OVERHEAD: usize = 64;
const CELL_OVERHEAD: usize = size_of::<Cell>() + 8;

/// One side of a join.
pub(crate) struct Side<'a> {
    pub(crate) table: &'a Table,
    /// The columns that are read.
    pub(crate) wanted: &'a [String],
    /// Which of them make the key.
    pub(crate) key: &'a [usize],
    /// What a row has to meet before it is joined.
    pub(crate) conditions: &'a [Condition],
}

impl Side<'_> {
    /// The row's key; none when a part of it is empty.
    fn key(&self, row: &[Cell], into: &mut Vec<u8>) -> bool {
        into.clear();
        self.key.iter().filter_map(|&at| row.get(at)).all(|cell| {
            // Numbers of JSON and of CSV are the same when they are written the same.
            into.extend_from_slice(&(cell.text.len() as u32).to_le_bytes());
            into.extend_from_slice(cell.text.as_bytes());
            !cell.is_empty()
        })
    }

    fn meets(&self, row: &[Cell]) -> bool {
        self.conditions.iter().all(|condition| condition.holds(row))
    }
}

/// Gives each pair of rows to `each`, the left one's cells first; with `keep_left`, a left row that has no partner is
/// given with empty cells.
pub(crate) fn join(
    left: &Side<'_>,
    right: &Side<'_>,
    keep_left: bool,
    each: &mut dyn FnMut(&mut Row) -> Result<(), String>,
) -> Result<Seen, String> {
    with_room(left, right, keep_left, HELD_AT_MOST, each)
}

fn with_room(
    left: &Side<'_>,
    right: &Side<'_>,
    keep_left: bool,
    room: usize,
    each: &mut dyn FnMut(&mut Row) -> Result<(), String>,
) -> Result<Seen, String> {
    let mut seen = Seen::default();
    // A bit for each left row: whether it has found a partner.
    let mut partnered: Vec<u64> = Vec::new();
    let mut done = 0;
    loop {
        let (held, next, found) = hold(right, done, room)?;
        let (first, last) = (done == 0, next.is_break());
        if first {
            seen.and(found);
        }
        let (ControlFlow::Continue(upto) | ControlFlow::Break(upto)) = next;
        done = upto;
        let found = pass(left, &held, right.wanted.len(), keep_left, last, &mut partnered, each)?;
        if first {
            seen.and(found);
        }
        if last {
            return Ok(seen);
        }
    }
}

/// Rows of the second table, by their key.
type Held = HashMap<Vec<u8>, Vec<Row>>;

/// Holds as many rows after the first `skip` as there is room for, and says up to which row that was: `Break` when it
/// was the last one.
fn hold(right: &Side<'_>, skip: u64, room: usize) -> Result<(Held, ControlFlow<u64, u64>, Seen), String> {
    let mut held: Held = HashMap::new();
    let mut key = Vec::new();
    let (mut number, mut upto, mut bytes, mut full) = (0, skip, 0, false);
    let seen = right.table.scan(right.wanted, &mut |row| {
        number += 1;
        if number <= skip || full {
            return Ok(());
        }
        if bytes >= room {
            full = true;
            return Ok(());
        }
        upto = number;
        if right.meets(row) && right.key(row, &mut key) {
            let text: usize = row.iter().map(|cell| cell.text.len() + CELL_OVERHEAD).sum();
            bytes += text + key.len() + ROW_OVERHEAD;
            // Cloned, for the row's own memory is kept for the next one and may be larger.
            held.entry(key.clone()).or_default().push(row.clone());
        }
        Ok(())
    })?;
    Ok((held, if full { ControlFlow::Continue(upto) } else { ControlFlow::Break(upto) }, seen))
}

/// Reads the first table against what is held.
fn pass(
    left: &Side<'_>,
    held: &Held,
    width: usize,
    keep_left: bool,
    last: bool,
    partnered: &mut Vec<u64>,
    each: &mut dyn FnMut(&mut Row) -> Result<(), String>,
) -> Result<Seen, String> {
    let mut key = Vec::new();
    let mut both = Row::new();
    let mut number = 0usize;
    left.table.scan(left.wanted, &mut |row| {
        let (word, bit) = (number / 64, 1u64 << (number % 64));
        number += 1;
        if !left.meets(row) {
            return Ok(());
        }
        let partners = if left.key(row, &mut key) { held.get(&key) } else { None };
        for partner in partners.into_iter().flatten() {
            both.clear();
            both.extend(row.iter().chain(partner).cloned());
            each(&mut both)?;
        }
        if !keep_left {
            return Ok(());
        }
        let before = partnered.get(word).is_some_and(|bits| bits & bit != 0);
        if last && partners.is_none() && !before {
            both.clear();
            both.extend(row.iter().cloned());
            both.resize(row.len() + width, Cell::NOTHING);
            return each(&mut both);
        }
        if !last && partners.is_some() && !before {
            partnered.resize(partnered.len().max(word + 1), 0);
            if let Some(bits) = partnered.get_mut(word) {
                *bits |= bit;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::table;

    fn joined(keep_left: bool, room: usize) -> Vec<Vec<String>> {
        let left = table("l.csv", "id,who\n1,a\n2,b\n,c\n1,d\n9,e\n");
        let right =
            table("r.jsonl", "{\"k\":1,\"v\":\"x\"}\n{\"k\":2,\"v\":\"y\"}\n{\"v\":\"z\"}\n{\"k\":1,\"v\":\"w\"}\n");
        let wanted = |names: [&str; 2]| names.map(String::from);
        let (left_wanted, right_wanted) = (wanted(["id", "who"]), wanted(["k", "v"]));
        let (left_table, right_table) = (left.open().unwrap(), right.open().unwrap());
        let left = Side { table: &left_table, wanted: &left_wanted, key: &[0], conditions: &[] };
        let right = Side { table: &right_table, wanted: &right_wanted, key: &[0], conditions: &[] };
        let mut rows = Vec::new();
        let seen = with_room(&left, &right, keep_left, room, &mut |row| {
            rows.push(row.iter().map(|cell| cell.text.clone()).collect());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen.rows, 9, "each table counts once, however often it is read");
        rows
    }

    #[test]
    fn partners_are_those_with_the_same_key() {
        let expected = [
            ["1", "a", "1", "x"],
            ["1", "a", "1", "w"],
            ["2", "b", "2", "y"],
            ["1", "d", "1", "x"],
            ["1", "d", "1", "w"],
        ];
        assert_eq!(joined(false, 1 << 20), expected);
    }

    #[test]
    fn a_left_join_keeps_who_has_no_partner() {
        let rows = joined(true, 1 << 20);
        assert_eq!(rows.len(), 7);
        assert!(rows.contains(&["", "c", "", ""].map(String::from).to_vec()), "{rows:?}");
        assert!(rows.contains(&["9", "e", "", ""].map(String::from).to_vec()), "{rows:?}");
    }

    #[test]
    fn little_room_changes_only_the_order() {
        for keep_left in [false, true] {
            let (mut much, mut little) = (joined(keep_left, 1 << 20), joined(keep_left, 1));
            much.sort();
            little.sort();
            assert_eq!(much, little);
        }
    }
}
