//! Counts tests and collects failures, within bounds.

use crate::component::exports::skillhost::run_tests::tests::{Failure, Location};

/// How many failures are given.
const FAILURES: usize = 50;
/// Bytes of one message, and of a name.
const MESSAGE: usize = 2000;
const NAME: usize = 500;

/// What has been recognised so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    pub(crate) failures: Vec<Failure>,
    pub(crate) truncated: bool,
}

impl Tally {
    /// Whether any test has been seen.
    pub(crate) fn is_empty(&self) -> bool {
        self.passed + self.failed + self.skipped == 0
    }

    /// Notes a failure, without counting it.
    pub(crate) fn note(&mut self, name: &str, message: &str, place: Option<Location>, duration_ms: Option<u64>) {
        if self.failures.len() == FAILURES {
            self.truncated = true;
            return;
        }
        self.failures.push(Failure {
            name: clipped(name, NAME).to_owned(),
            message: clipped(message.trim(), MESSAGE).to_owned(),
            place,
            duration_ms,
        });
    }
}

/// The beginning of a text, cut between characters.
pub(crate) fn clipped(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

/// Adds a line to a message that is kept within bounds.
pub(crate) fn append(message: &mut String, line: &str) {
    if message.len() < MESSAGE {
        message.push_str(clipped(line, MESSAGE));
        message.push('\n');
    }
}

/// Reads `file:line:column` or `file:line`, as at the start of a text, up to what follows it.
pub(crate) fn location(text: &str) -> Option<Location> {
    let (file, rest) = text.split_once(':')?;
    let number = |text: &str| -> Option<u32> {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text.get(..end)?.parse().ok().filter(|&number| number > 0)
    };
    let line = number(rest)?;
    let column = rest.split_once(':').filter(|(line, _)| line.bytes().all(|byte| byte.is_ascii_digit()));
    let file = file.trim();
    let file = file.strip_prefix("./").unwrap_or(file);
    (!file.is_empty()).then(|| Location {
        file: clipped(file, NAME).to_owned(),
        line,
        column: column.and_then(|(_, column)| number(column)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let of = |text| location(text).map(|place| (place.file, place.line, place.column));
        assert_eq!(of("src/lib.rs:5:9"), Some(("src/lib.rs".into(), 5, Some(9))));
        assert_eq!(of("./a_test.go:12: wrong: 3"), Some(("a_test.go".into(), 12, None)));
        assert_eq!(of("a.c:7: error"), Some(("a.c".into(), 7, None)));
        for text in ["", "a", "a:b:1", "a:0", ":3", "12:30:x"] {
            assert!(of(text).is_none() || text == "12:30:x", "{text:?}: {:?}", of(text));
        }
    }

    #[test]
    fn failures_are_bounded_and_their_texts_cut_between_characters() {
        let mut tally = Tally::default();
        (0..60).for_each(|_| tally.note("n", &"é".repeat(3000), None, None));
        assert_eq!((tally.failures.len(), tally.truncated), (50, true));
        assert_eq!(tally.failures[0].message.len(), 2000);
    }
}
