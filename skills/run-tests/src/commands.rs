//! The command of each runner.

use crate::component::exports::skillhost::run_tests::tests::Runner;
use crate::detect::Found;

/// Where the project is in the sandbox: in its own `/tmp`, which goes with it.
pub(crate) const TREE: &str = "/tmp/project";
/// Where pytest finds our plugin, and what the plugin writes.
pub(crate) const PLUGIN: &str = "/tmp/run-tests/run_tests_report.py";
pub(crate) const REPORT: &str = "/tmp/run-tests/report.jsonl";

/// What pytest says when it is not there.
const NO_PYTEST: &str = "No module named pytest";

/// What to run.
#[derive(Debug, PartialEq)]
pub(crate) struct Run {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
}

/// The command that runs the tests that were found.
pub(crate) fn of(found: &Found, filter: Option<&str>) -> Result<Run, String> {
    if filter.is_some_and(|filter| filter.is_empty() || filter.starts_with('-')) {
        return Err("`filter` is empty or begins with `-`; give a part of tests' names".into());
    }
    let mut argv: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(|&word| word.to_owned()));
    match (found.runner, filter) {
        (Runner::Cargo, filter) => {
            add(&["cargo", "test", "--offline", "--no-fail-fast"]);
            filter.into_iter().for_each(|filter| add(&["--", filter]));
        }
        (Runner::Pytest, filter) => {
            // No cache: it would only be thrown away.
            add(&["python3", "-m", "pytest", "-q", "--color=no", "-p", "no:cacheprovider", "-p", "run_tests_report"]);
            filter.into_iter().for_each(|filter| add(&["-k", filter]));
        }
        (Runner::Go, filter) => {
            add(&["go", "test", "-json"]);
            filter.into_iter().for_each(|filter| add(&["-run", filter]));
            add(&["./..."]);
        }
        // As `npm test` does it, with the project's own programs first; npm itself would only be one more thing to have.
        (Runner::Npm, None) => {
            add(&["sh", "-c", &format!("PATH=\"$PWD/node_modules/.bin:$PATH\"; export PATH; {}", found.what)]);
        }
        (Runner::Make, None) => add(&["make", &found.what]),
        (Runner::Npm | Runner::Make, Some(_)) => {
            return Err("`filter` has no meaning for npm and make; leave it out, or choose another `runner`".into());
        }
    }
    Ok(Run { argv, env: environment() })
}

/// Everything is written beneath `/tmp`, and nothing is looked for in a network that is not there.
fn environment() -> Vec<(String, String)> {
    let plugin = PLUGIN.rsplit_once('/').map_or("", |(directory, _)| directory);
    // With a `src` directory, a project that is not installed is found there.
    let python = format!("{plugin}:{TREE}/src");
    [
        ("HOME", "/tmp/run-tests/home"),
        ("CARGO_HOME", "/tmp/run-tests/cargo"),
        ("CARGO_TERM_COLOR", "never"),
        ("CI", "true"),
        ("GOCACHE", "/tmp/run-tests/go-cache"),
        ("GOFLAGS", "-buildvcs=false"),
        ("GOPATH", "/tmp/run-tests/go"),
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("NO_COLOR", "1"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONPATH", python.as_str()),
        ("RUN_TESTS_REPORT", REPORT),
        ("RUST_BACKTRACE", "0"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// The program that was missing, by how the command ended: `not_started` when it could not be run at all.
pub(crate) fn missing(run: &Run, runner: Runner, not_started: bool, exit_code: i32, tail: &str) -> Option<String> {
    let program = run.argv.first().cloned().unwrap_or_default();
    if not_started {
        return Some(program);
    }
    if runner == Runner::Pytest && exit_code == 1 && tail.contains(NO_PYTEST) {
        return Some("pytest".to_owned());
    }
    // A shell's or make's: `sh: 1: node: not found`, `bash: node: command not found`.
    let lacks = |line: &str| {
        let rest =
            line.trim().strip_suffix(": not found").or_else(|| line.trim().strip_suffix(": command not found"))?;
        Some(rest.rsplit_once(": ").map_or(rest, |(_, name)| name).to_owned())
    };
    let of_shell = (runner == Runner::Npm && exit_code == 127) || (runner == Runner::Make && exit_code == 2);
    of_shell.then(|| tail.lines().rev().find_map(lacks)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(runner: Runner, what: &str) -> Found {
        Found { runner, by: String::new(), what: what.into() }
    }

    fn line(runner: Runner, filter: Option<&str>) -> String {
        of(&found(runner, "test"), filter).unwrap().argv.join(" ")
    }

    #[test]
    fn filters_are_passed_where_they_mean_something() {
        assert_eq!(line(Runner::Cargo, Some("a::b")), "cargo test --offline --no-fail-fast -- a::b");
        assert_eq!(line(Runner::Go, Some("TestA")), "go test -json -run TestA ./...");
        assert!(line(Runner::Pytest, Some("a or b")).ends_with("-k a or b"));
        assert_eq!(line(Runner::Make, None), "make test");
        assert!(of(&found(Runner::Make, "test"), Some("x")).unwrap_err().contains("no meaning"));
        assert!(of(&found(Runner::Cargo, ""), Some("--config=x")).unwrap_err().contains("begins with `-`"));
    }

    #[test]
    fn a_missing_program_is_named() {
        let of = |runner, not_started, code, tail: &str| {
            missing(&super::of(&found(runner, "t"), None).unwrap(), runner, not_started, code, tail)
        };
        assert_eq!(of(Runner::Cargo, true, 127, ""), Some("cargo".into()));
        assert_eq!(of(Runner::Pytest, false, 1, "/usr/bin/python3: No module named pytest\n"), Some("pytest".into()));
        assert_eq!(of(Runner::Npm, false, 127, "sh: 1: node: not found\n"), Some("node".into()));
        assert_eq!(
            of(Runner::Make, false, 2, "make: cc: No such file\nsh: 1: tap: not found\nmake: *** 2"),
            Some("tap".into())
        );
        assert_eq!(of(Runner::Npm, false, 1, "page: not found\n"), None);
    }
}
