//! Where the rows of a result go: into the answer, or into a file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::cell::{Cell, Kind};
use crate::component::exports::skillhost::table_query::tables::Written;
use crate::source;

/// Bytes of cells in an answer: what a model can still be shown, and a caller still be sent.
const ANSWER_AT_MOST: usize = 256 * 1024;

/// Where rows go.
pub(crate) enum Output {
    Answer { rows: Vec<Vec<String>>, bytes: usize, full: bool },
    File(Box<Pending>),
}

/// A file that is being written beside its final place.
pub(crate) struct Pending {
    name: String,
    path: PathBuf,
    partial: PathBuf,
    rows: u64,
    sink: Sink,
}

enum Sink {
    Delimited(Box<csv::Writer<File>>),
    JsonLines { file: BufWriter<File>, names: Vec<String> },
}

impl Output {
    /// Rows for the answer.
    pub(crate) fn answer() -> Self {
        Self::Answer { rows: Vec::new(), bytes: 0, full: false }
    }

    /// Rows for a file of the workspace with these columns.
    pub(crate) fn file(root: &Path, name: &str, columns: &[String]) -> Result<Self, String> {
        let path = source::inside(root, name)?;
        let format = source::by_ending(name)
            .ok_or_else(|| format!("`{name}` should end in .csv, .tsv or .jsonl: that says how it is written"))?;
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let failed = |error: &dyn std::fmt::Display| format!("`{name}` cannot be written: {error}");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(&error))?;
        }
        let file = File::create(&partial).map_err(|error| failed(&error))?;
        let sink = match source::delimiter(format) {
            Some(delimiter) => {
                let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(file);
                writer.write_record(columns).map_err(|error| failed(&error))?;
                Sink::Delimited(Box::new(writer))
            }
            None => {
                let names = columns.iter().map(|name| serde_json::Value::from(name.as_str()).to_string()).collect();
                Sink::JsonLines { file: BufWriter::with_capacity(128 * 1024, file), names }
            }
        };
        Ok(Self::File(Box::new(Pending { name: name.to_owned(), path, partial, rows: 0, sink })))
    }

    /// Takes a row.
    pub(crate) fn take(&mut self, row: &[Cell]) -> Result<(), String> {
        match self {
            Self::Answer { rows, bytes, full } => {
                // Quotes and a comma for each cell, and a bracket or two.
                *bytes += 4 + row.iter().map(|cell| cell.text.len() + 3).sum::<usize>();
                *full |= *bytes > ANSWER_AT_MOST;
                if !*full {
                    rows.push(row.iter().map(|cell| cell.text.clone()).collect());
                }
                Ok(())
            }
            Self::File(file) => {
                file.rows += 1;
                file.sink.write(row).map_err(|error| format!("`{}` cannot be written: {error}", file.name))
            }
        }
    }

    /// The rows of the answer; or the file, which is now in its place.
    pub(crate) fn finish(self) -> Result<(Vec<Vec<String>>, Option<Written>), String> {
        match self {
            Self::Answer { rows, .. } => Ok((rows, None)),
            Self::File(mut file) => {
                let bytes = file.settle().map_err(|error| format!("`{}` cannot be written: {error}", file.name))?;
                Ok((Vec::new(), Some(Written { file: file.name.clone(), rows: file.rows, bytes })))
            }
        }
    }
}

impl Pending {
    fn settle(&mut self) -> io::Result<u64> {
        match &mut self.sink {
            Sink::Delimited(writer) => writer.flush()?,
            Sink::JsonLines { file, .. } => file.flush()?,
        }
        let bytes = fs::metadata(&self.partial)?.len();
        fs::rename(&self.partial, &self.path)?;
        Ok(bytes)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Not there any more when all went well.
        let _ = fs::remove_file(&self.partial);
    }
}

impl Sink {
    fn write(&mut self, row: &[Cell]) -> io::Result<()> {
        match self {
            Self::Delimited(writer) => writer.write_record(row.iter().map(|cell| &cell.text)).map_err(io::Error::other),
            Self::JsonLines { file, names } => {
                for (at, (name, cell)) in names.iter().zip(row).enumerate() {
                    write!(file, "{}{name}:", if at == 0 { '{' } else { ',' })?;
                    match cell.kind {
                        Kind::Nothing => file.write_all(b"null")?,
                        Kind::Json => file.write_all(cell.text.as_bytes())?,
                        Kind::Text => serde_json::to_writer(&mut *file, &cell.text)?,
                    }
                }
                file.write_all(b"}\n")
            }
        }
    }
}
