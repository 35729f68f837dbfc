//! The Test Anything Protocol, which `node --test` and many other programs speak.

use crate::component::exports::skillhost::run_tests::tests::Location;
use crate::tally::{Tally, append, clipped, location};

/// Reads it line by line.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// Tests that contain others say their own result after those: by depth, whether some were seen below.
    below: Vec<bool>,
    /// The failure at hand, with the indentation of its result and its description.
    failure: Option<Failing>,
}

#[derive(Debug, Default)]
struct Failing {
    depth: usize,
    name: String,
    message: String,
    place: Option<Location>,
    duration_ms: Option<u64>,
    /// Whether the block of details is open, and whether its lines are those of the message.
    block: bool,
    in_message: bool,
}

impl Tap {
    pub(crate) fn line(&mut self, line: &str, tally: &mut Tally) {
        let text = line.trim_start();
        let depth = (line.len() - text.len()) / 4;
        if let Some(failing) = &mut self.failure {
            if failing.detail(text) {
                return;
            }
            self.end(tally);
        }
        let (ok, rest) = match (text.strip_prefix("ok "), text.strip_prefix("not ok ")) {
            (Some(rest), _) => (true, rest),
            (_, Some(rest)) => (false, rest),
            _ => return,
        };
        if !rest.starts_with(|c: char| c.is_ascii_digit() || c == '-') || depth > 64 {
            return;
        }
        let contains = self.below.get(depth + 1).copied().unwrap_or(false);
        self.below.resize(depth + 1, false);
        if let Some(seen) = self.below.get_mut(depth) {
            *seen = true;
        }
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
        let rest = rest.strip_prefix('-').unwrap_or(rest).trim();
        let (name, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
        let directive = directive.to_ascii_lowercase();
        if contains {
            // Its tests have been counted one by one.
        } else if directive.starts_with("skip") || directive.starts_with("todo") {
            tally.skipped += 1;
        } else if ok {
            tally.passed += 1;
        } else {
            tally.failed += 1;
            self.failure = Some(Failing { depth, name: clipped(name, 500).to_owned(), ..Failing::default() });
        }
    }

    /// Ends the failure at hand.
    pub(crate) fn end(&mut self, tally: &mut Tally) {
        if let Some(failing) = self.failure.take() {
            tally.note(&failing.name, &failing.message, failing.place, failing.duration_ms);
        }
    }
}

impl Failing {
    /// Takes a line after the result; whether it belongs to it: YAML between `---` and `...`, or a diagnostic `# …`.
    fn detail(&mut self, text: &str) -> bool {
        if !self.block {
            self.block = text == "---";
            if !self.block && text.starts_with("# ") && self.depth == 0 {
                append(&mut self.message, text.trim_start_matches("# "));
                return true;
            }
            return self.block;
        }
        if text == "..." {
            self.block = false;
            return true;
        }
        let value = |key: &str| text.strip_prefix(key).map(|value| value.trim().trim_matches(['\'', '"']));
        if let Some(value) = value("location:") {
            self.place = located(value);
        } else if let Some(value) = value("at:").filter(|value| !value.is_empty()) {
            self.place = self.place.take().or_else(|| located(value));
        } else if let Some(value) = value("duration_ms:") {
            self.duration_ms = value.parse::<f64>().ok().map(|ms| ms as u64);
        } else if let Some(value) = value("error:").or_else(|| value("message:")) {
            self.in_message = value.starts_with(['|', '>']);
            if !self.in_message {
                append(&mut self.message, value);
            }
            return true;
        } else if self.in_message && !is_key(text) {
            append(&mut self.message, text);
            return true;
        }
        self.in_message = false;
        true
    }
}

/// `file:///x/a.js:3:5` or `/x/a.js:3:5`.
fn located(text: &str) -> Option<Location> {
    location(text.strip_prefix("file://").unwrap_or(text))
}

/// Whether a line of a block is a new key.
fn is_key(text: &str) -> bool {
    ["code:", "name:", "expected:", "actual:", "operator:", "stack:", "failureType:", "type:", "exitCode:", "signal:"]
        .iter()
        .any(|key| text.starts_with(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Tally {
        let (mut tap, mut tally) = (Tap::default(), Tally::default());
        text.lines().for_each(|line| tap.line(line, &mut tally));
        tap.end(&mut tally);
        tally
    }

    #[test]
    fn results_and_directives() {
        let tally =
            read("TAP version 13\n1..4\nok 1 - a\nok 2 b # SKIP not here\nnot ok 3 - c # TODO later\nok 4\nokay\n");
        assert_eq!((tally.passed, tally.failed, tally.skipped), (2, 0, 2));
    }

    #[test]
    fn what_node_says_of_a_failure() {
        let tally = read(
            "# Subtest: math\n    # Subtest: adds\n    not ok 1 - adds\n      ---\n      duration_ms: 1.5\n      \
             location: '/p/a.test.js:3:5'\n      failureType: 'testCodeFailure'\n      error: |-\n        Expected values \
             to be strictly equal:\n        \n        1 !== 2\n      code: 'ERR_ASSERTION'\n      ...\n    ok 2 - subs\n    \
             1..2\nnot ok 1 - math\n  ---\n  error: '1 subtest failed'\n  ...\n1..1\n# fail 1\n",
        );
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (1, 1, 1));
        let failure = &tally.failures[0];
        assert_eq!((failure.name.as_str(), failure.duration_ms), ("adds", Some(1)));
        assert_eq!(failure.message, "Expected values to be strictly equal:\n\n1 !== 2");
        let place = failure.place.as_ref().unwrap();
        assert_eq!((place.file.as_str(), place.line, place.column), ("/p/a.test.js", 3, Some(5)));
    }

    #[test]
    fn diagnostics_after_a_failure() {
        let tally = read("not ok 1 - a\n# expected 1\n# got 2\nok 2 - b\n");
        assert_eq!((tally.failures[0].message.as_str(), tally.passed), ("expected 1\ngot 2", 1));
    }
}
