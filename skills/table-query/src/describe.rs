//! Says what is in a table.

use crate::cell::{Cell, Row};
use crate::component::exports::skillhost::table_query::tables::{Column, Description, Format};
use crate::number::Number;
use crate::query::Place;
use crate::source::Table;

/// Characters of a cell that are shown.
const SHOWN: usize = 100;

/// What is known of a column so far.
struct Known {
    name: String,
    filled: u64,
    numbers: u64,
    least: Cell,
    greatest: Cell,
    example: String,
}

/// Reads all of a table.
pub(crate) fn describe(place: Place<'_>, file: String, format: Option<Format>) -> Result<Description, String> {
    let table = Table::open(place.root, &[file], format)?;
    let new = |name: &String| Known {
        name: name.clone(),
        filled: 0,
        numbers: 0,
        least: Cell::NOTHING,
        greatest: Cell::NOTHING,
        example: String::new(),
    };
    let mut columns: Vec<Known> = table.columns.iter().map(new).collect();
    let seen = table.scan(&table.columns, &mut |row: &mut Row| {
        for (column, cell) in columns.iter_mut().zip(row) {
            column.add(cell);
        }
        Ok(())
    })?;
    Ok(Description {
        columns: columns.into_iter().map(Known::shown).collect(),
        rows: seen.rows,
        bytes: table.bytes(),
        bad_rows: seen.bad,
        bad_row_samples: seen.samples,
    })
}

impl Known {
    fn add(&mut self, cell: &Cell) {
        if cell.is_empty() {
            return;
        }
        self.filled += 1;
        self.numbers += u64::from(Number::read(&cell.text).is_some());
        if self.filled == 1 {
            self.example = clipped(&cell.text);
        }
        if self.least.is_empty() || cell.before(&self.least) {
            self.least.set(cell.kind, &cell.text);
        }
        if self.greatest.is_empty() || self.greatest.before(cell) {
            self.greatest.set(cell.kind, &cell.text);
        }
    }

    fn shown(self) -> Column {
        Column {
            name: self.name,
            filled: self.filled,
            numbers: self.numbers,
            least: clipped(&self.least.text),
            greatest: clipped(&self.greatest.text),
            example: self.example,
        }
    }
}

fn clipped(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((at, _)) => format!("{}…", text.get(..at).unwrap_or_default()),
        None => text.to_owned(),
    }
}
