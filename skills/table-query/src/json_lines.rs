//! Files with one JSON object a line.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use crate::cell::{Cell, Kind, Row};
use crate::rows::{COLUMNS_AT_MOST, Each, ROW_AT_MOST, Seen};

/// How much is read at once.
const BUFFER: usize = 256 * 1024;

/// What a line is used for: each of its fields is offered.
trait Fields {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error>;
}

/// Reads one object.
struct Object<'a, F>(&'a mut F);

impl<'de, F: Fields> DeserializeSeed<'de> for Object<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: Fields> Visitor<'de> for Object<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            self.0.field(&name, &mut map)?;
        }
        Ok(())
    }
}

fn read<F: Fields>(line: &[u8], fields: &mut F) -> serde_json::Result<()> {
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    Object(fields).deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Reads the lines of one file.
struct Lines<'a> {
    reader: BufReader<File>,
    name: &'a str,
    line: Vec<u8>,
    number: u64,
}

impl<'a> Lines<'a> {
    fn new(file: File, name: &'a str) -> Self {
        Self { reader: BufReader::with_capacity(BUFFER, file), name, line: Vec::new(), number: 0 }
    }

    /// Reads the next line that is not blank; whether there was one. Of one that is too long the beginning is kept.
    fn next(&mut self) -> Result<bool, String> {
        loop {
            self.number += 1;
            self.line.clear();
            let read = self.read_line().map_err(|error| format!("{}:{}: {error}", self.name, self.number))?;
            if read == 0 {
                return Ok(false);
            }
            if !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    fn read_line(&mut self) -> io::Result<usize> {
        let most = ROW_AT_MOST as u64 + 1;
        let got = (&mut self.reader).take(most).read_until(b'\n', &mut self.line)?;
        if self.is_too_long() && self.line.last() != Some(&b'\n') {
            self.reader.skip_until(b'\n')?;
        }
        Ok(got)
    }

    fn is_too_long(&self) -> bool {
        self.line.len() > ROW_AT_MOST
    }
}

/// The names of fields, in the order of their first appearance.
#[derive(Default)]
struct Names {
    order: Vec<String>,
    known: HashSet<String>,
}

impl Fields for Names {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        if !self.known.contains(name) {
            if self.order.len() == COLUMNS_AT_MOST {
                return Err(A::Error::custom("too many names"));
            }
            self.known.insert(name.to_owned());
            self.order.push(name.to_owned());
        }
        map.next_value::<IgnoredAny>().map(drop)
    }
}

/// The names of all fields that any line has.
pub(crate) fn columns(file: File, name: &str) -> Result<Vec<String>, String> {
    let mut lines = Lines::new(file, name);
    let mut names = Names::default();
    while lines.next()? {
        // What is wrong with a line is said when its content is wanted.
        let _ = read(&lines.line, &mut names);
        if names.order.len() == COLUMNS_AT_MOST {
            return Err(format!(
                "{name}:{}: the rows so far have {COLUMNS_AT_MOST} different names; is it a table?",
                lines.number
            ));
        }
    }
    Ok(names.order)
}

/// The wanted cells of one line.
struct Picked<'a> {
    /// By the name of a field: which cells want it, and what within it.
    places: HashMap<&'a str, Vec<(usize, &'a str)>>,
    row: Row,
}

impl Fields for Picked<'_> {
    fn field<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<(), A::Error> {
        let Some(places) = self.places.get(name) else {
            return map.next_value::<IgnoredAny>().map(drop);
        };
        let value: Value = map.next_value()?;
        for (at, within) in places {
            let Some(cell) = self.row.get_mut(*at) else { continue };
            if within.is_empty() {
                fill(cell, &value);
            } else if cell.kind == Kind::Nothing
                && let Some(value) = within.split('.').try_fold(&value, |value, name| value.get(name))
            {
                fill(cell, value);
            }
        }
        Ok(())
    }
}

fn fill(cell: &mut Cell, value: &Value) {
    match value {
        Value::Null => cell.set(Kind::Nothing, ""),
        Value::String(text) => cell.set(Kind::Text, text),
        other => cell.set(Kind::Json, &other.to_string()),
    }
}

/// Gives each line's cells of the columns `wanted` to `each`. `a.b` is field `b` of the object in field `a`, unless
/// there is a field of that name.
pub(crate) fn scan(
    file: File,
    name: &str,
    wanted: &[String],
    seen: &mut Seen,
    each: &mut Each<'_>,
) -> Result<(), String> {
    let mut places: HashMap<&str, Vec<(usize, &str)>> = HashMap::new();
    for (at, column) in wanted.iter().enumerate() {
        places.entry(column).or_default().push((at, ""));
        if let Some((head, rest)) = column.split_once('.') {
            places.entry(head).or_default().push((at, rest));
        }
    }
    let mut picked = Picked { places, row: vec![Cell::NOTHING; wanted.len()] };
    let mut lines = Lines::new(file, name);
    while lines.next()? {
        seen.rows += 1;
        if lines.is_too_long() {
            seen.bad(name, lines.number, &format!("more than {ROW_AT_MOST} bytes"));
            continue;
        }
        picked.row.iter_mut().for_each(|cell| cell.set(Kind::Nothing, ""));
        match read(&lines.line, &mut picked) {
            Ok(()) => each(&mut picked.row)?,
            Err(error) => seen.bad(name, lines.number, &format!("not a JSON object: {error}")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::table;

    #[test]
    fn values_are_as_they_are_written() {
        let text = "{\"a\": 1.50, \"b\": \"x\\ny\", \"c\": [1, {}]}\n\n{\"b\": null, \"a\": true}\r\n";
        let read = table("a.jsonl", text).rows(&["a", "b", "c"]);
        assert_eq!(read.rows, [["1.5", "x\ny", "[1,{}]"], ["true", "", ""]]);
        assert_eq!(read.seen.rows, 2);
    }

    #[test]
    fn fields_within_fields() {
        let text =
            "{\"u\": {\"n\": \"in\", \"d\": {\"e\": 5}}}\n{\"u\": 3}\n{\"u.n\": \"own\", \"u\": {\"n\": \"in\"}}\n";
        assert_eq!(table("a.jsonl", text).rows(&["u.n", "u.d.e"]).rows, [["in", "5"], ["", ""], ["own", ""]]);
    }

    #[test]
    fn columns_are_those_of_all_lines() {
        assert_eq!(table("a.jsonl", "{\"a\":1}\nrubbish\n{\"b\":2,\"a\":3}\n").columns(), ["a", "b"]);
    }

    #[test]
    fn bad_lines_are_counted_and_named() {
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(ROW_AT_MOST));
        let text = format!("{{\"a\":1}}\n[1]\n{{\"a\":\n{long}\n{{\"a\":2}} x\n{{\"a\":3}}");
        let read = table("a.jsonl", text).rows(&["a"]);
        assert_eq!(read.rows, [["1"], ["3"]]);
        assert_eq!((read.seen.rows, read.seen.bad), (6, 4));
        for (sample, start) in
            read.seen.samples.iter().zip(["a.jsonl:2: ", "a.jsonl:3: ", "a.jsonl:4: more", "a.jsonl:5: "])
        {
            assert!(sample.starts_with(start), "{sample}");
        }
    }

    #[test]
    fn what_has_a_new_name_in_each_row_is_no_table() {
        let text: String = (0..5000).map(|n| format!("{{\"k{n}\": 1}}\n")).collect();
        let error = table("a.jsonl", text).open().err().unwrap();
        assert!(error.starts_with("a.jsonl:4096: "), "{error}");
    }
}
