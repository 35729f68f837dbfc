//! Runs every test and says how many passed, failed and were skipped.
//!
//! Cargo's own output is shown as it comes; its `test result:` lines are added up on the way. A test that finds that it
//! cannot run here (there is no container engine) appends a line with its name and the reason to the file that
//! `SKILLHOST_SKIPS` names, because libtest knows no test that skips itself and would show it as passed.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

use crate::engine::{self, Kind};
use crate::host::Profile;
use crate::run::{cargo, program, root, run, say, shown};
use crate::{guests, host, setup};

/// Where tests that skip themselves say so.
const SKIPS: &str = "SKILLHOST_SKIPS";
/// The backend that end-to-end tests use; Docker without it.
const BACKEND: &str = "SKILLHOST_TEST_BACKEND";
/// The ordinary user as whom they run the program.
const USER: &str = "SKILLHOST_TEST_UID";
/// Any that is not root does; it needs no account.
const ORDINARY_USER: &str = "1000";
/// The engine of our own that they use, when it is one.
const ENGINE: &str = "SKILLHOST_TEST_ENGINE";
/// What is run on each of them: what a transport or an engine could change, and little where each call is slow. Skills,
/// policy and the command line are the same everywhere.
const ON_ENGINES: [(Kind, &[&str]); 4] = [
    (
        Kind::Tls,
        &[
            "engines",
            "files",
            "hardening",
            "nothing_survives",
            "output",
            "processes",
            "sharing",
            "shells",
            "supervisor_volume",
        ],
    ),
    (Kind::Ssh, &["engines"]),
    (Kind::Podman, &["engines", "files", "hardening", "nothing_survives", "output"]),
    (Kind::Gvisor, &["engines", "files", "output"]),
];
/// What meets no sandbox, or one that might as well be another, and is as good once as on every backend.
const ONCE: [&str; 10] = [
    "http",
    "list_actions",
    "mcp",
    "mcp_attacks",
    "mcp_crowd",
    "mcp_sdk",
    "python_skill",
    "skill_files",
    "table_query",
    "watch_skills",
];
/// The image that they need.
const IMAGES: [&str; 1] = ["skillhost/default:1"];
/// Set to `1`: a test that could not run is a failure.
const REQUIRE: &str = "SKILLHOST_REQUIRE_DOCKER";

pub(crate) fn test(arguments: &[OsString]) -> Result<()> {
    let required = std::env::var_os(REQUIRE).is_some_and(|value| value == "1");
    setup::wasm_target()?;
    guests::build(Profile::Debug)?;
    host::build(Profile::Debug)?;
    // Images come over the network for the most part; the tests are compiled meanwhile.
    let images = thread::scope(|scope| {
        scope.spawn(|| compile(arguments));
        host::images(Profile::Debug, &[])
    });
    match images {
        Err(error) if required => {
            return Err(error.context(format!("{REQUIRE}=1, but there are no images to test with")));
        }
        Err(error) => say(&format!("tests that need a container will be skipped: {error:#}")),
        Ok(()) => {}
    }

    let skips = tempfile::NamedTempFile::new()?;
    let mut totals = Totals::default();
    let mut failed = Vec::new();
    for mut command in commands(arguments)? {
        command.env(SKIPS, skips.path());
        if !totals.add(&mut command)? {
            failed.push(shown(&command));
        }
    }

    // Who names tests gets these and no more.
    let engines = arguments.is_empty() && engine::allowed();
    if arguments.is_empty() && !engines {
        say("engines of the tests' own take root: they are left out");
    }
    for (kind, tests) in ON_ENGINES.into_iter().filter(|_| engines) {
        if let Some(why) = engine::lacks(kind) {
            writeln!(fs::File::options().append(true).open(skips.path())?, "all on the engine {}: {why}", kind.name())?;
            continue;
        }
        let engine = engine::start(kind, &IMAGES)?;
        let mut command = end_to_end(tests.iter().map(|name| (*name).to_owned()));
        engine.applied(&mut command).env(SKIPS, skips.path()).env(ENGINE, kind.name());
        if !totals.add(&mut command)? {
            failed.push(format!("{} on the engine {}", shown(&command), kind.name()));
        }
    }

    let skipped = fs::read_to_string(skips.path())?;
    let skipped: Vec<&str> = skipped.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in &skipped {
        say(&format!("skipped: {line}"));
    }
    say(&totals.shown(skipped.len() as u64));
    if !failed.is_empty() {
        bail!("failed: `{}`", failed.join("`, `"));
    }
    if required && !skipped.is_empty() {
        bail!("{REQUIRE}=1, but {} tests were skipped", skipped.len());
    }
    Ok(())
}

/// Compiles the tests. What is wrong with them is said when they are run.
fn compile(arguments: &[OsString]) {
    let _ = cargo().args(["test", "--quiet", "--workspace", "--no-run"]).args(arguments).status();
}

/// Everything once, with containers; then the end-to-end tests again with local sandboxes, and, for root, as an ordinary
/// user. Who names tests gets these and no more.
fn commands(arguments: &[OsString]) -> Result<Vec<Command>> {
    let mut all = cargo();
    all.args(["test", "--workspace", "--no-fail-fast"]).args(arguments);
    let mut commands = vec![all];
    if !arguments.is_empty() {
        return Ok(commands);
    }
    let mut users = vec![None];
    // Whom this process belongs to.
    if fs::metadata("/proc/self")?.uid() == 0 {
        users.push(Some(ORDINARY_USER));
    }
    for user in users {
        let mut names = Vec::new();
        for entry in fs::read_dir(root().join("tests/e2e/tests"))? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "rs")
                && let Some(name) = path.file_stem().and_then(|name| name.to_str())
                && !ONCE.contains(&name)
            {
                names.push(name.to_owned());
            }
        }
        let mut local = end_to_end(names.into_iter());
        // What only a container engine has lies in modules of this name.
        local.args(["--", "--skip", "docker::"]).env(BACKEND, "local");
        if let Some(user) = user {
            local.env(USER, user);
        }
        commands.push(local);
    }
    Ok(commands)
}

/// These end-to-end tests.
fn end_to_end(names: impl Iterator<Item = String>) -> Command {
    let mut command = cargo();
    // All of the workspace, as above: for one package alone, dependencies have fewer features and are built again.
    command.args(["test", "--workspace", "--no-fail-fast"]).args(names.flat_map(|name| ["--test".to_owned(), name]));
    command
}

/// Runs a command against an engine of our own.
pub(crate) fn with_engine(kind: Kind, command: &[OsString]) -> Result<()> {
    if !engine::allowed() {
        bail!("an engine of our own takes root");
    }
    if let Some(why) = engine::lacks(kind) {
        bail!("{why}");
    }
    let engine = engine::start(kind, &IMAGES)?;
    let (name, arguments) = command.split_first().context("a command")?;
    let mut command = program(name);
    command.args(arguments).stdin(Stdio::inherit()).env(ENGINE, kind.name());
    run(engine.applied(&mut command))
}

/// What libtest counted, over all its programs.
#[derive(Debug, Default, PartialEq)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Totals {
    /// Runs tests, shows what they say, and counts; whether all is well.
    fn add(&mut self, command: &mut Command) -> Result<bool> {
        let started = Instant::now();
        let what = format!("`{}`{}", shown(command), environment(command));
        say(&what);
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("`{}` could not be started", shown(command)))?;
        let mut out = std::io::stdout().lock();
        for line in BufReader::new(child.stdout.take().context("the output of cargo")?).split(b'\n') {
            let line = line?;
            out.write_all(&line)?;
            out.write_all(b"\n")?;
            self.read(&String::from_utf8_lossy(&line));
        }
        let ended = child.wait()?;
        say(&format!("{what} took {} s", started.elapsed().as_secs()));
        Ok(ended.success())
    }

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

/// Which backend and user a command tests, to be shown after it.
fn environment(command: &Command) -> String {
    let set = |name: &str| {
        let value = command.get_envs().find(|(set, _)| *set == name)?.1?;
        Some(format!(" {name}={}", value.display()))
    };
    let set: String = [BACKEND, USER, ENGINE].into_iter().filter_map(set).collect();
    if set.is_empty() { set } else { format!(" with{set}") }
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
