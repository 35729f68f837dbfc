//! What `go test -json` says: an event a line, and the compiler's errors between them.

use std::collections::HashMap;

use serde_json::Value;

use crate::component::exports::skillhost::run_tests::tests::Location;
use crate::tally::{Tally, append, location};

/// How many running tests' output is kept.
const RUNNING: usize = 200;

/// What Go says around each test.
const FRAME: [&str; 7] = ["=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- FAIL", "--- PASS", "FAIL"];

/// Reads it line by line.
#[derive(Debug, Default)]
pub(crate) struct GoTest {
    /// What running tests (or packages) have said, by package and name.
    said: HashMap<(String, String), String>,
}

impl GoTest {
    pub(crate) fn line(&mut self, line: &str, tally: &mut Tally) {
        let Ok(event) = serde_json::from_str::<Value>(line) else {
            return compiler(line, tally);
        };
        let text = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default();
        let (package, test, action) = (text("Package"), text("Test"), text("Action"));
        let key = (package.to_owned(), test.to_owned());
        match action {
            "output" if self.said.len() < RUNNING || self.said.contains_key(&key) => {
                let said = self.said.entry(key).or_default();
                let line = text("Output").trim_end_matches('\n');
                if !FRAME.iter().any(|frame| line.trim_start().starts_with(frame)) {
                    append(said, line);
                }
            }
            "build-output" => compiler(text("Output").trim_end(), tally),
            "pass" | "skip" | "fail" => {
                let said = self.said.remove(&key).unwrap_or_default();
                if test.is_empty() {
                    // Of a whole package: only news when no test of it failed.
                    if action == "fail" && !tally.failures.iter().any(|it| it.name.starts_with(package)) {
                        tally.note(package, &said, place(&said), None);
                    }
                    return;
                }
                match action {
                    "pass" => tally.passed += 1,
                    "skip" => tally.skipped += 1,
                    _ => {
                        tally.failed += 1;
                        let seconds = event.get("Elapsed").and_then(Value::as_f64);
                        let duration_ms = seconds.map(|seconds| (seconds * 1000.0) as u64);
                        tally.note(&format!("{package}.{test}"), &said, place(&said), duration_ms);
                    }
                }
            }
            _ => {}
        }
    }
}

/// The first place in what a test said: `    a_test.go:12: message`.
fn place(said: &str) -> Option<Location> {
    said.lines().filter(|line| line.contains(".go:")).find_map(|line| {
        // In a trace of calls: a path, and what comes after the line.
        location(line.trim()).filter(|place| place.file.ends_with(".go"))
    })
}

/// An error of the compiler: `./a.go:3:5: undefined: x`.
fn compiler(line: &str, tally: &mut Tally) {
    if let Some(place) = location(line).filter(|place| place.file.ends_with(".go")) {
        let message = line.splitn(4, ':').last().unwrap_or_default();
        tally.note("compiler", message, Some(place), None);
    } else if line.starts_with("go: ") {
        tally.note("go", line, None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Tally {
        let (mut go, mut tally) = (GoTest::default(), Tally::default());
        lines.iter().for_each(|line| go.line(line, &mut tally));
        tally
    }

    #[test]
    fn events_are_counted() {
        let tally = read(&[
            r#"{"Action":"run","Package":"x/y","Test":"TestA"}"#,
            r#"{"Action":"output","Package":"x/y","Test":"TestA","Output":"=== RUN   TestA\n"}"#,
            r#"{"Action":"output","Package":"x/y","Test":"TestA","Output":"    a_test.go:12: got 1\n"}"#,
            r#"{"Action":"output","Package":"x/y","Test":"TestA","Output":"--- FAIL: TestA (0.50s)\n"}"#,
            r#"{"Action":"fail","Package":"x/y","Test":"TestA","Elapsed":0.5}"#,
            r#"{"Action":"pass","Package":"x/y","Test":"TestB","Elapsed":0}"#,
            r#"{"Action":"skip","Package":"x/y","Test":"TestC","Elapsed":0}"#,
            r#"{"Action":"fail","Package":"x/y","Elapsed":0.6}"#,
        ]);
        assert_eq!((tally.passed, tally.failed, tally.skipped, tally.failures.len()), (1, 1, 1, 1));
        let failure = &tally.failures[0];
        assert_eq!((failure.name.as_str(), failure.message.as_str()), ("x/y.TestA", "a_test.go:12: got 1"));
        assert_eq!((failure.place.as_ref().map(|place| place.line), failure.duration_ms), (Some(12), Some(500)));
    }

    #[test]
    fn a_package_that_fails_without_a_test_is_a_failure() {
        let tally = read(&[
            "# x/y",
            "./a.go:3:5: undefined: z",
            r#"{"Action":"output","Package":"x/y","Output":"FAIL\tx/y [build failed]\n"}"#,
            r#"{"Action":"fail","Package":"x/y","Elapsed":0}"#,
        ]);
        let names: Vec<_> = tally.failures.iter().map(|failure| failure.name.as_str()).collect();
        assert_eq!(names, ["compiler", "x/y"]);
        assert_eq!((tally.failures[0].message.as_str(), tally.failed), ("undefined: z", 0));
    }
}
