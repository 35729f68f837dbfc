//! Runs every test and says how many passed, failed and were skipped.
//!
//! Cargo's own output is shown as it comes; its `test result:` lines are added up on the way. A test that finds that it
//! cannot run here (there is no container engine) appends a line with its name and the reason to the file that
//! `SKILLHOST_SKIPS` names, because libtest knows no test that skips itself and would show it as passed.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use crate::run::{cargo, say, shown};
use crate::{guests, host, setup};

/// Where tests that skip themselves say so.
const SKIPS: &str = "SKILLHOST_SKIPS";
/// Set to `1`: a test that could not run is a failure.
const REQUIRE: &str = "SKILLHOST_REQUIRE_DOCKER";

pub(crate) fn test(arguments: &[OsString]) -> Result<()> {
    let required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    setup::wasm_target()?;
    guests::build()?;
    match host::provide_images() {
        Err(error) if required => {
            return Err(error.context(format!("{REQUIRE}=1, but there are no images to test with")));
        }
        Err(error) => say(&format!("tests that need a container will be skipped: {error:#}")),
        Ok(()) => {}
    }

    let skips = tempfile::NamedTempFile::new()?;
    let mut command = cargo();
    command.args(["test", "--workspace"]).args(arguments).env(SKIPS, skips.path()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("`{}` could not be started", shown(&command)))?;
    let mut totals = Totals::default();
    let mut out = std::io::stdout().lock();
    for line in BufReader::new(child.stdout.take().context("the output of cargo")?).split(b'\n') {
        let line = line?;
        out.write_all(&line)?;
        out.write_all(b"\n")?;
        totals.read(&String::from_utf8_lossy(&line));
    }
    let status = child.wait()?;

    let skipped = fs::read_to_string(skips.path())?;
    let skipped: Vec<&str> = skipped.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in &skipped {
        say(&format!("skipped: {line}"));
    }
    say(&totals.shown(skipped.len() as u64));
    if !status.success() {
        bail!("`{}` failed ({status})", shown(&command));
    }
    if required && !skipped.is_empty() {
        bail!("{REQUIRE}=1, but {} tests were skipped", skipped.len());
    }
    Ok(())
}

/// What libtest counted, over all its programs.
#[derive(Debug, Default, PartialEq)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Totals {
    /// Takes a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`.
    fn read(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("test result: ").and_then(|(_, rest)| rest.split_once(". ")) else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// The totals in words; `skipped` of the passed ones did not run.
    fn shown(&self, skipped: u64) -> String {
        format!(
            "{} passed, {} failed, {} skipped, {} ignored",
            self.passed.saturating_sub(skipped),
            self.failed,
            skipped,
            self.ignored
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Totals;

    #[test]
    fn results_are_added_up() {
        let mut totals = Totals::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
            "test result: odd",
        ] {
            totals.read(line);
        }
        assert_eq!(totals, Totals { passed: 13, failed: 2, ignored: 1 });
        assert_eq!(totals.shown(4), "9 passed, 2 failed, 4 skipped, 1 ignored");
    }
}
