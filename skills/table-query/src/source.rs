//! Tables: files whose rows are read one at a time, as often as needed.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Component, Path, PathBuf};

use crate::component::exports::skillhost::table_query::tables::Format;
use crate::rows::{COLUMNS_AT_MOST, Each, Seen};
use crate::{delimited, json_lines};

/// How many columns are named to who asked for one that is not there.
const NAMED: usize = 30;

/// A table of one or several files.
pub(crate) struct Table {
    parts: Vec<Part>,
    /// The names of all columns, in the order of their first appearance. Each is there once.
    pub(crate) columns: Vec<String>,
}

/// One file.
struct Part {
    /// As the caller calls it.
    name: String,
    path: PathBuf,
    format: Format,
}

impl Table {
    /// Opens files beneath `root` and finds out their columns.
    pub(crate) fn open(root: &Path, files: &[String], format: Option<Format>) -> Result<Self, String> {
        if files.is_empty() {
            return Err("`files` is empty; name at least one file of the workspace".into());
        }
        let mut table = Self { parts: Vec::new(), columns: Vec::new() };
        let mut known = HashSet::new();
        for name in files {
            let path = inside(root, name)?;
            let format = match format {
                Some(format) => format,
                None => by_ending(name)
                    .ok_or_else(|| format!("the ending of `{name}` does not say how it is written; give `format`"))?,
            };
            let part = Part { name: name.clone(), path, format };
            let found = match delimiter(format) {
                Some(delimiter) => delimited::columns(part.open()?, name, delimiter)?,
                None => json_lines::columns(part.open()?, name)?,
            };
            table.columns.extend(found.into_iter().filter(|column| known.insert(column.clone())));
            table.parts.push(part);
        }
        if table.columns.len() > COLUMNS_AT_MOST {
            return Err(format!("{} has more than {COLUMNS_AT_MOST} columns; is it a table?", table.name()));
        }
        Ok(table)
    }

    /// What to call it.
    pub(crate) fn name(&self) -> String {
        self.parts.iter().map(|part| part.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Whether there is such a column, or a field within one.
    pub(crate) fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|known| known == column)
            || (self.parts.iter().any(|part| part.format == Format::JsonLines)
                && column.split_once('.').is_some_and(|(head, _)| self.columns.iter().any(|known| known == head)))
    }

    /// What to say of a column that is not there.
    pub(crate) fn lacks(&self, column: &str) -> String {
        let named: Vec<&str> = self.columns.iter().take(NAMED).map(String::as_str).collect();
        let more = self.columns.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        format!("{} has no column `{column}`; it has: {}{more}", self.name(), named.join(", "))
    }

    /// Gives each row's cells of the columns `wanted` to `each`.
    pub(crate) fn scan(&self, wanted: &[String], each: &mut Each<'_>) -> Result<Seen, String> {
        let mut seen = Seen::default();
        for part in &self.parts {
            match delimiter(part.format) {
                Some(delimiter) => delimited::scan(part.open()?, &part.name, delimiter, wanted, &mut seen, each)?,
                None => json_lines::scan(part.open()?, &part.name, wanted, &mut seen, each)?,
            }
        }
        Ok(seen)
    }

    /// The bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().filter_map(|part| part.path.metadata().ok()).map(|meta| meta.len()).sum()
    }
}

impl Part {
    fn open(&self) -> Result<File, String> {
        let file =
            File::open(&self.path).map_err(|error| format!("`{}` cannot be read: {}", self.name, error.kind()))?;
        match file.metadata() {
            Ok(meta) if meta.is_file() => Ok(file),
            _ => Err(format!("`{}` is not a file", self.name)),
        }
    }
}

/// The path of a file of the workspace, which is at `root` for this component and `/workspace` for everybody.
pub(crate) fn inside(root: &Path, name: &str) -> Result<PathBuf, String> {
    let path = Path::new(name);
    let relative = path.strip_prefix("/workspace").unwrap_or(path);
    let stays = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !stays || relative.file_name().is_none() {
        return Err(format!("`{name}` is not a path of a file in the workspace, such as `data/people.csv`"));
    }
    Ok(root.join(relative))
}

/// How a file is written, by the ending of its name.
pub(crate) fn by_ending(name: &str) -> Option<Format> {
    let (_, ending) = name.rsplit_once('.')?;
    Some(match ending.to_ascii_lowercase().as_str() {
        "csv" => Format::Csv,
        "tsv" | "tab" => Format::Tabs,
        "jsonl" | "ndjson" => Format::JsonLines,
        _ => return None,
    })
}

/// What stands between fields; none where fields have names.
pub(crate) fn delimiter(format: Format) -> Option<u8> {
    match format {
        Format::Csv => Some(b','),
        Format::Semicolons => Some(b';'),
        Format::Tabs => Some(b'\t'),
        Format::JsonLines => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_workspace() {
        for (name, path) in [("a.csv", "/w/a.csv"), ("./d/a.csv", "/w/d/a.csv"), ("/workspace/a.csv", "/w/a.csv")] {
            assert_eq!(inside(Path::new("/w"), name), Ok(path.into()));
        }
        for name in ["", ".", "/workspace", "../a.csv", "d/../a.csv", "/etc/passwd", "/workspacex/a"] {
            assert!(inside(Path::new("/w"), name).unwrap_err().contains("not a path"), "{name}");
        }
    }

    #[test]
    fn the_ending_says_the_format() {
        assert_eq!(by_ending("a.b.CSV"), Some(Format::Csv));
        assert_eq!((by_ending("a.txt"), by_ending("csv")), (None, None));
    }
}
