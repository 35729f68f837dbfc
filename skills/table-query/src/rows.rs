//! What a table is read as: rows, each within bounds, and what was found besides good ones.

use crate::cell::Row;

/// A longer row is most likely a quote that is never closed.
pub(crate) const ROW_AT_MOST: usize = 1024 * 1024;
/// How many columns a table can have.
pub(crate) const COLUMNS_AT_MOST: usize = 4096;
/// How many bad rows are described.
const SAMPLES: usize = 5;

/// What was found besides good rows.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// All rows.
    pub(crate) rows: u64,
    /// Those that could not be understood.
    pub(crate) bad: u64,
    /// The first few of them.
    pub(crate) samples: Vec<String>,
}

impl Seen {
    pub(crate) fn bad(&mut self, file: &str, line: u64, what: &str) {
        self.bad += 1;
        if self.samples.len() < SAMPLES {
            self.samples.push(format!("{file}:{line}: {what}"));
        }
    }

    /// Adds what was found in another table.
    pub(crate) fn and(&mut self, other: Self) {
        self.rows += other.rows;
        self.bad += other.bad;
        self.samples.extend(other.samples);
        self.samples.truncate(SAMPLES);
    }
}

/// Takes a row, and may change its cells, which are filled anew for the next one.
pub(crate) type Each<'a> = dyn FnMut(&mut Row) -> Result<(), String> + 'a;
