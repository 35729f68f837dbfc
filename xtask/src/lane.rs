//! Test commands that run one after the other, and what libtest counted in them.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Instant;

use anyhow::{Context as _, Result};

use crate::engine::{self, Kind};
use crate::run::{say, shown};

/// Where tests that skip themselves say so.
const SKIPS: &str = "SKILLHOST_SKIPS";
/// The backend that end-to-end tests use; Docker without it.
pub(crate) const BACKEND: &str = "SKILLHOST_TEST_BACKEND";
/// The ordinary user as whom they run the program.
pub(crate) const USER: &str = "SKILLHOST_TEST_UID";
/// The engine of our own that they use, when it is one.
pub(crate) const ENGINE: &str = "SKILLHOST_TEST_ENGINE";
/// Set: each user's host is a door to another one of theirs.
pub(crate) const DOOR: &str = "SKILLHOST_TEST_DOOR";
/// The image that tests on an engine of our own need.
pub(crate) const IMAGES: [&str; 1] = ["skillhost/default:1"];

/// How a skip of all tests on an engine begins.
pub(crate) fn left_out(kind: Kind) -> String {
    format!("all on the engine {}", kind.name())
}

/// Commands that run tests, one after the other.
pub(crate) struct Step {
    pub(crate) commands: Vec<Command>,
    /// The engine of our own that is started for them. No other step has one of this kind: they would share its images.
    pub(crate) engine: Option<Kind>,
}

impl Step {
    /// One that takes what there is.
    pub(crate) fn new(command: Command) -> Self {
        Self { commands: vec![command], engine: None }
    }
}

/// When the output of a command is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Show {
    AsItComes,
    /// In one piece, so that it does not stand between the lines of another lane.
    AtItsEnd,
}

/// Bytes of what one failed test said that are said again at the end.
const LAST_WORDS: usize = 4000;

/// What libtest counted, over all its programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    passed: u64,
    failed: u64,
    ignored: u64,
    /// The commands of which something failed.
    pub(crate) failures: Vec<String>,
    /// What each failed test said, which is far above by the time all have run.
    pub(crate) said: Vec<String>,
    /// Whether what comes now belongs to the last of those.
    is_saying: bool,
}

impl Tally {
    /// Runs steps of the queue until none is left; those whose engine cannot be had here are written into `skips`.
    pub(crate) fn of(steps: &Mutex<VecDeque<Step>>, show: Show, skips: &Path) -> Result<Self> {
        let mut tally = Self::default();
        let next = || steps.lock().ok()?.pop_front();
        while let Some(Step { commands, engine: kind }) = next() {
            let mut engine = None;
            if let Some(kind) = kind {
                if let Some(why) = engine::lacks(kind) {
                    let mut skips = fs::File::options().append(true).open(skips)?;
                    writeln!(skips, "{}: {why}", left_out(kind))?;
                    continue;
                }
                engine = Some((kind, engine::start(kind, &IMAGES)?));
            }
            for mut command in commands {
                command.env(SKIPS, skips);
                if let Some((kind, engine)) = &engine {
                    engine.applied(&mut command).env(ENGINE, kind.name());
                }
                match show {
                    Show::AsItComes => tally.run(command, &mut io::stdout())?,
                    Show::AtItsEnd => {
                        let mut said = Vec::new();
                        let ran = tally.run(command, &mut said);
                        io::stdout().write_all(&said)?;
                        ran?;
                    }
                }
            }
        }
        Ok(tally)
    }

    fn run(&mut self, mut command: Command, to: &mut impl Write) -> Result<()> {
        let started = Instant::now();
        let what = format!("`{}`{}", shown(&command), environment(&command));
        say(&what);
        self.is_saying = false;
        let (said, saying) = io::pipe()?;
        // In the order in which it was said, whichever of the two it was said on.
        command.stderr(saying.try_clone()?).stdout(saying);
        let mut child = command.spawn().with_context(|| format!("`{}` could not be started", shown(&command)))?;
        // It has the ends to which it is said.
        drop(command);
        for line in BufReader::new(said).split(b'\n') {
            let mut line = line?;
            self.read(&String::from_utf8_lossy(&line));
            line.push(b'\n');
            to.write_all(&line)?;
        }
        let ended = child.wait()?;
        say(&format!("{what} took {} s", started.elapsed().as_secs()));
        if !ended.success() {
            self.failures.push(what);
        }
        Ok(())
    }

    /// Takes a line such as `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …`, or one of what a failed test said, which
    /// stands between `---- its::name stdout ----` and the list that begins with `failures:`.
    fn read(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.said.push(String::new());
            self.is_saying = true;
        } else if line == "failures:" {
            self.is_saying = false;
        }
        if let Some(said) = self.said.last_mut().filter(|said| self.is_saying && said.len() < LAST_WORDS) {
            said.push_str(&line[..line.floor_char_boundary(LAST_WORDS - said.len())]);
            said.push('\n');
        }
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

    /// This and another.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.failures.extend(other.failures);
        self.said.extend(other.said);
        Self {
            passed: self.passed + other.passed,
            failed: self.failed + other.failed,
            ignored: self.ignored + other.ignored,
            failures: self.failures,
            said: self.said,
            is_saying: false,
        }
    }

    /// The totals in words; `skipped` of the passed ones did not run.
    pub(crate) fn shown(&self, skipped: u64) -> String {
        format!(
            "{} passed, {} failed, {} skipped, {} ignored",
            self.passed.saturating_sub(skipped),
            self.failed,
            skipped,
            self.ignored
        )
    }
}

/// Which backend and user a command tests, to be shown after it.
fn environment(command: &Command) -> String {
    let set = |name: &str| {
        let value = command.get_envs().find(|(set, _)| *set == name)?.1?;
        Some(format!(" {name}={}", value.display()))
    };
    let set: String = [BACKEND, DOOR, USER, ENGINE].into_iter().filter_map(set).collect();
    if set.is_empty() { set } else { format!(" with{set}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_added_up() {
        let mut tally = Tally::default();
        for line in [
            "running 3 tests",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s",
            "test result: FAILED. 10 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
            "test result: odd",
        ] {
            tally.read(line);
        }
        let other = Tally { passed: 1, failures: vec!["x".into()], ..Tally::default() };
        let both = tally.and(other);
        assert_eq!(both, Tally { passed: 14, failed: 2, ignored: 1, failures: vec!["x".into()], ..Tally::default() });
        assert_eq!(both.shown(4), "10 passed, 2 failed, 4 skipped, 1 ignored");
    }

    #[test]
    fn what_failed_tests_said_is_kept_and_bounded() {
        let mut tally = Tally::default();
        let long = "ü".repeat(LAST_WORDS);
        for line in [
            "test a::first ... FAILED",
            "failures:",
            "",
            "---- a::first stdout ----",
            "thread panicked",
            "---- a::second stdout ----",
            &long,
            &long,
            "failures:",
            "    a::first",
        ] {
            tally.read(line);
        }
        let [first, second] = &tally.said[..] else { panic!("{tally:?}") };
        assert_eq!(first, "---- a::first stdout ----\nthread panicked\n");
        assert!(second.starts_with("---- a::second stdout ----\nüü") && second.len() <= LAST_WORDS + 1, "{second}");
    }

    #[test]
    fn what_a_command_says_is_counted_wherever_it_says_it_and_its_failure_is_named() {
        let (mut tally, mut said) = (Tally::default(), Vec::new());
        for script in
            ["echo 'test result: ok. 2 passed; 0 failed' >&2", "echo 'test result: x. 1 passed; 1 failed'; exit 1"]
        {
            let mut command = crate::run::program("sh");
            command.args(["-c", script]);
            tally.run(command, &mut said).unwrap();
        }
        assert_eq!((tally.passed, tally.failed, tally.failures.len()), (3, 1, 1));
        assert!(tally.failures[0].contains("exit 1"), "{:?}", tally.failures);
        assert_eq!(said.split(|byte| *byte == b'\n').count(), 3);
    }
}
