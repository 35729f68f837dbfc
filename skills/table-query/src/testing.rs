//! Tables for tests.

use crate::rows::Seen;
use crate::source::Table;

/// A table in a directory of its own.
pub(crate) struct Written {
    directory: tempfile::TempDir,
    file: &'static str,
}

/// What a scan gave.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) seen: Seen,
}

/// Writes one.
pub(crate) fn table(file: &'static str, content: impl AsRef<[u8]>) -> Written {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join(file), content).unwrap();
    Written { directory, file }
}

impl Written {
    pub(crate) fn open(&self) -> Result<Table, String> {
        Table::open(self.directory.path(), &[self.file.to_owned()], None)
    }

    pub(crate) fn columns(&self) -> Vec<String> {
        self.open().unwrap().columns
    }

    pub(crate) fn scan(&self, wanted: &[&str]) -> Result<Scanned, String> {
        let mut rows = Vec::new();
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        let seen = self.open()?.scan(&wanted, &mut |row| {
            rows.push(row.iter().map(|cell| cell.text.clone()).collect());
            Ok(())
        })?;
        Ok(Scanned { rows, seen })
    }

    pub(crate) fn rows(&self, wanted: &[&str]) -> Scanned {
        self.scan(wanted).unwrap()
    }
}
