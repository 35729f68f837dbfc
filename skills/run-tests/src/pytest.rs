//! What our plugin of pytest (`report.py`) writes: a JSON object for each result.

use serde_json::Value;

use crate::component::exports::skillhost::run_tests::tests::Location;
use crate::tally::Tally;

/// Takes one of them.
pub(crate) fn line(line: &str, tally: &mut Tally) -> Result<(), String> {
    let result: Value = serde_json::from_str(line).map_err(|error| format!("pytest's report is damaged: {error}"))?;
    let text = |name: &str| result.get(name).and_then(Value::as_str).unwrap_or_default();
    match text("outcome") {
        "passed" => tally.passed += 1,
        "skipped" => tally.skipped += 1,
        "failed" | "error" => {
            tally.failed += 1;
            let line = result.get("line").and_then(Value::as_u64).and_then(|line| u32::try_from(line).ok());
            let place = line.map(|line| Location { file: text("file").to_owned(), line, column: None });
            let seconds = result.get("seconds").and_then(Value::as_f64);
            tally.note(text("name"), text("message"), place, seconds.map(|seconds| (seconds * 1000.0) as u64));
        }
        other => return Err(format!("pytest's report has an outcome {other:?}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_outcome_counts() {
        let mut tally = Tally::default();
        for text in [
            r#"{"name": "t.py::a", "outcome": "passed", "seconds": 0.1}"#,
            r#"{"name": "t.py::b", "outcome": "skipped", "seconds": 0}"#,
            r#"{"name": "t.py::c", "outcome": "failed", "seconds": 0.25, "message": "assert 1 == 2", "file": "t.py", "line": 7}"#,
            r#"{"name": "u.py", "outcome": "error", "seconds": null, "message": "ImportError"}"#,
        ] {
            line(text, &mut tally).unwrap();
        }
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 2, 1));
        let place = tally.failures[0].place.as_ref().unwrap();
        assert_eq!((place.file.as_str(), place.line, tally.failures[0].duration_ms), ("t.py", 7, Some(250)));
        assert_eq!((tally.failures[1].message.as_str(), tally.failures[1].place.is_none()), ("ImportError", true));
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for text in ["", "{", "[]", r#"{"outcome": "perfect"}"#] {
            assert!(line(text, &mut Tally::default()).unwrap_err().starts_with("pytest's report"), "{text}");
        }
    }
}
