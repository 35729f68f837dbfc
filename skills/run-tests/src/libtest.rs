//! What `cargo test` says: the text of Rust's test programs, and the compiler's errors before it.

use std::collections::HashMap;

use crate::tally::{Tally, append, location};

/// How many failing tests are remembered until what they said comes.
const PENDING: usize = 1000;

/// Reads it line by line.
#[derive(Debug, Default)]
pub(crate) struct Libtest {
    /// Tests of the program at hand that failed and whose output has not come.
    failed: HashMap<String, ()>,
    /// The block that is being read: a test's name and its output.
    block: Option<(String, String)>,
    /// A compiler's error whose place has not come.
    error: Option<String>,
}

impl Libtest {
    pub(crate) fn line(&mut self, line: &str, tally: &mut Tally) {
        if let Some(rest) = line.strip_prefix("test ")
            && let Some((name, outcome)) = rest.rsplit_once(" ... ")
            && self.outcome(name, outcome, tally)
        {
            return;
        }
        if let Some(name) = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" ----")) {
            self.end_block(tally);
            let name = name.strip_suffix(" stdout").unwrap_or(name);
            if self.failed.remove(name).is_some() {
                self.block = Some((name.to_owned(), String::new()));
            }
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.end_block(tally);
            if line.starts_with("test result: ") {
                self.end_program(tally);
            }
        } else if let Some((_, output)) = &mut self.block {
            append(output, line);
        } else {
            self.compiler(line, tally);
        }
    }

    /// `ok`, `FAILED`, `ignored, why`, each with a duration after it at times.
    fn outcome(&mut self, name: &str, outcome: &str, tally: &mut Tally) -> bool {
        let outcome = outcome.split([' ', ',']).next().unwrap_or_default();
        let name = name.strip_suffix(" - should panic").unwrap_or(name);
        match outcome {
            "ok" => tally.passed += 1,
            "ignored" => tally.skipped += 1,
            "FAILED" => {
                tally.failed += 1;
                if self.failed.len() < PENDING {
                    self.failed.insert(name.to_owned(), ());
                } else {
                    tally.truncated = true;
                }
            }
            _ => return false,
        }
        true
    }

    fn compiler(&mut self, line: &str, tally: &mut Tally) {
        if line.starts_with("error[") || (line.starts_with("error: ") && !line.starts_with("error: test failed")) {
            self.end_error(tally);
            self.error = Some(line.to_owned());
        } else if let Some(error) = &self.error {
            if let Some(place) = line.trim_start().strip_prefix("--> ") {
                tally.note("compiler", error, location(place), None);
                self.error = None;
            } else if line.is_empty() {
                self.end_error(tally);
            }
        }
    }

    fn end_error(&mut self, tally: &mut Tally) {
        // The compiler's last words say nothing of their own.
        if let Some(error) = self.error.take()
            && !error.starts_with("error: could not compile")
            && !error.starts_with("error: aborting due to")
            && !error.contains(" target failed:")
            && !error.contains(" targets failed:")
        {
            tally.note("cargo", &error, None, None);
        }
    }

    fn end_block(&mut self, tally: &mut Tally) {
        let Some((name, output)) = self.block.take() else { return };
        let (message, place) = panic_of(&output);
        tally.note(&name, &message, place.as_deref().and_then(location), None);
    }

    /// Tests whose output never came.
    fn end_program(&mut self, tally: &mut Tally) {
        let mut silent: Vec<String> = self.failed.drain().map(|(name, ())| name).collect();
        silent.sort();
        silent.iter().for_each(|name| tally.note(name, "", None, None));
    }

    pub(crate) fn end(&mut self, tally: &mut Tally) {
        self.end_block(tally);
        self.end_program(tally);
        self.end_error(tally);
    }
}

/// The message of a panic and its place: `thread 'x' panicked at src/lib.rs:5:9:` with the message on the next lines, or,
/// before Rust 1.73, `thread 'x' panicked at 'message', src/lib.rs:5:9`. Without a panic, all that was said.
fn panic_of(output: &str) -> (String, Option<String>) {
    let Some((_, after)) = output.split_once("' panicked at ").or_else(|| output.split_once(") panicked at ")) else {
        return (output.to_owned(), None);
    };
    let after = after.split("\nnote: ").next().unwrap_or(after);
    let after = after.split("\nstack backtrace:").next().unwrap_or(after);
    if let Some(quoted) = after.strip_prefix('\'') {
        // The message can hold whatever it likes, the place cannot.
        return match quoted.trim_end().rsplit_once("', ") {
            Some((message, place)) => (message.to_owned(), Some(place.to_owned())),
            None => (quoted.to_owned(), None),
        };
    }
    match after.split_once('\n') {
        Some((place, message)) => (message.to_owned(), Some(place.trim_end_matches(':').to_owned())),
        None => (String::new(), Some(after.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Tally {
        let (mut libtest, mut tally) = (Libtest::default(), Tally::default());
        text.lines().for_each(|line| libtest.line(line, &mut tally));
        libtest.end(&mut tally);
        tally
    }

    #[test]
    fn counts_and_failures_of_several_programs() {
        let tally = read(
            "\nrunning 4 tests\ntest a::ok ... ok\ntest a::skip ... ignored, slow\ntest a::new ... FAILED\n\
             test a::old - should panic ... FAILED\n\nfailures:\n\n---- a::new stdout ----\n\
             thread 'a::new' panicked at src/lib.rs:5:9:\nassertion `left == right` failed\n  left: 1\n right: 2\n\
             note: run with `RUST_BACKTRACE=1`\n\n---- a::old stdout ----\n\
             thread 'a::old' panicked at 'it's, bad', src/old.rs:7:3\nnote: run with\n\n\nfailures:\n    a::new\n    \
             a::old\n\ntest result: FAILED. 1 passed; 2 failed; 1 ignored\n\nrunning 1 test\n\
             test src/lib.rs - f (line 3) ... ok\n\ntest result: ok. 1 passed; 0 failed\n",
        );
        assert_eq!((tally.passed, tally.failed, tally.skipped), (2, 2, 1));
        let of = |at: usize| {
            let failure = &tally.failures[at];
            let place = failure.place.as_ref().map(|place| (place.file.as_str(), place.line, place.column));
            (failure.name.as_str(), failure.message.as_str(), place)
        };
        let message = "assertion `left == right` failed\n  left: 1\n right: 2";
        assert_eq!(of(0), ("a::new", message, Some(("src/lib.rs", 5, Some(9)))));
        assert_eq!(of(1), ("a::old", "it's, bad", Some(("src/old.rs", 7, Some(3)))));
    }

    #[test]
    fn newer_panics_name_the_thread_with_a_number() {
        let (message, place) = panic_of("\nthread 'x' (123) panicked at a.rs:1:2:\nboom\n");
        assert_eq!((message.trim(), place.as_deref()), ("boom", Some("a.rs:1:2")));
    }

    #[test]
    fn a_failure_without_a_panic_is_what_it_said() {
        let tally = read("test t ... FAILED\nfailures:\n---- t stdout ----\nError: no such file\ntest result: FAILED.");
        assert_eq!(
            (tally.failures[0].message.as_str(), tally.failures[0].place.is_none()),
            ("Error: no such file", true)
        );
    }

    #[test]
    fn what_a_test_prints_is_no_result() {
        let tally = read(
            "test a ... FAILED\nfailures:\n---- a stdout ----\n---- b stdout ----\ntest fake ... nonsense\n\
             test result: FAILED. 0 passed; 1 failed",
        );
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (0, 1, 1));
    }

    #[test]
    fn a_program_that_died_leaves_its_failures() {
        let tally = read("test a ... FAILED\ntest b ... ");
        assert_eq!((tally.failed, tally.failures[0].name.as_str()), (1, "a"));
    }

    #[test]
    fn errors_of_the_compiler_and_of_cargo() {
        let tally = read(
            "   Compiling x v0.1.0\nerror[E0425]: cannot find value `y` in this scope\n --> src/lib.rs:2:5\n  |\n\
             error: could not compile `x` due to previous error\n\nerror: no matching package named `z` found\n",
        );
        let places: Vec<_> =
            tally.failures.iter().map(|f| (f.name.as_str(), f.place.as_ref().map(|p| p.line))).collect();
        assert_eq!(places, [("compiler", Some(2)), ("cargo", None)]);
        assert_eq!(tally.failures[1].message, "error: no matching package named `z` found");
    }
}
