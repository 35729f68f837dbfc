//! TOML whose errors say where: file, line and key.
//!
//! serde knows the place of an error but not the key it stands under; the document's own table knows both. Checks of
//! ranges and forms belong in `Deserialize` implementations (or `deserialize_with`), so that they get their place here
//! and nowhere else.

use std::ops::Range;
use std::path::Path;

use serde::de::DeserializeOwned;
use skillhost_api::error::{Error, Result};
use toml::de::{DeTable, DeValue};

/// Reads `text`, the content of `file`, which only serves for error messages.
pub fn read<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let line = text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
        let message = plain(error.message());
        let place = match key_at(text, &span) {
            Some(key) if !key.is_empty() => format!("{}:{line}: {key}", file.display()),
            _ => format!("{}:{line}", file.display()),
        };
        Error::invalid_argument(format!("{place}: {message}"))
    })
}

/// serde speaks of fields where a manifest has keys.
fn plain(message: &str) -> String {
    message
        .trim_end()
        .replace("unknown field ", "unknown key ")
        .replace("missing field ", "missing key ")
        .replace("duplicate field ", "duplicate key ")
        .replace(", expected one of ", "; known here are ")
}

/// The dotted key at `span`, when the document is well-formed.
fn key_at(text: &str, span: &Range<usize>) -> Option<String> {
    let document = DeTable::parse(text).ok()?;
    let mut path = Vec::new();
    descend(document.get_ref(), span, &mut path);
    Some(path.join("."))
}

fn descend(table: &DeTable<'_>, span: &Range<usize>, path: &mut Vec<String>) -> bool {
    for (key, value) in table {
        path.push(key.get_ref().to_string());
        let here = key.span() == *span || value.span() == *span;
        let inside = match value.get_ref() {
            DeValue::Table(inner) => descend(inner, span, path),
            _ => contains(&value.span(), span),
        };
        if here || inside {
            return true;
        }
        path.pop();
    }
    false
}

fn contains(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}
