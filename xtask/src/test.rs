//! Runs every test and says how many passed, failed and were skipped.
//!
//! Cargo's own output is shown, and its `test result:` lines are added up on the way. A test that finds that it
//! cannot run here (there is no container engine) appends a line with its name and the reason to the file that
//! `SKILLHOST_SKIPS` names, because libtest knows no test that skips itself and would show it as passed.
//!
//! Two [lanes](crate::lane) run side by side, for many tests wait more than they compute: for an engine, for a deadline.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::engine::{self, Kind};
use crate::host::Profile;
use crate::lane::{BACKEND, ENGINE, IMAGES, Show, Step, Tally, USER};
use crate::run::{cargo, output, program, run, say};
use crate::{guests, host, setup};

/// Any that is not root does; it needs no account.
const ORDINARY_USER: &str = "1000";
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
const ONCE: [&str; 16] = [
    "calls_see_changes",
    "clients",
    "http",
    "http_crowd",
    "http_project",
    "http_protocol",
    "list_actions",
    "mcp",
    "mcp_attacks",
    "mcp_crowd",
    "mcp_lines",
    "mcp_sdk",
    "python_skill",
    "skill_files",
    "table_query",
    "watch_skills",
];
/// What takes long without taking all cores: it runs beside the rest.
const BESIDE: [&str; 4] = ["many_execs", "nothing_accumulates", "supervisor_shells", "table_query"];
/// The package of the end-to-end tests.
const END_TO_END: &str = "skillhost-e2e";
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
    let tally = match arguments.is_empty() {
        true => {
            let targets = targets()?;
            let (first, second) = (first(&targets)?, second());
            let skips = skips.path();
            thread::scope(|scope| {
                let second = scope.spawn(|| Tally::of(second, Show::AtItsEnd, skips));
                let first = Tally::of(first, Show::AsItComes, skips);
                let second = second.join().map_err(|_| anyhow::anyhow!("the second lane panicked"))?;
                Ok::<_, anyhow::Error>(first?.and(second?))
            })?
        }
        // Who names tests gets these and no more.
        false => {
            let mut named = cargo();
            named.args(["test", "--workspace", "--no-fail-fast"]).args(arguments);
            Tally::of(vec![Step::new(named)], Show::AsItComes, skips.path())?
        }
    };

    let skipped = fs::read_to_string(skips.path())?;
    let skipped: Vec<&str> = skipped.lines().filter(|line| !line.trim().is_empty()).collect();
    for line in &skipped {
        say(&format!("skipped: {line}"));
    }
    say(&tally.shown(skipped.len() as u64));
    if !tally.failures.is_empty() {
        bail!("failed: {}", tally.failures.join(", "));
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

/// A program of tests.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    name: String,
    /// Whether it is one of the end-to-end tests.
    is_end_to_end: bool,
}

/// All programs of tests that stand in files of their own.
fn targets() -> Result<BTreeSet<Target>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        targets: Vec<Found>,
    }
    #[derive(Deserialize)]
    struct Found {
        name: String,
        kind: Vec<String>,
    }
    let said = output(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Metadata = serde_json::from_slice(&said.stdout).context("what `cargo metadata` says")?;
    let all = metadata.packages.into_iter().flat_map(|package| {
        let is_end_to_end = package.name == END_TO_END;
        package.targets.into_iter().map(move |found| (found, is_end_to_end))
    });
    let tests = all.filter(|(found, _)| found.kind.iter().any(|kind| kind == "test"));
    Ok(tests.map(|(Found { name, .. }, is_end_to_end)| Target { name, is_end_to_end }).collect())
}

/// Everything but what runs beside it, with containers; then the end-to-end tests again with local sandboxes, and, for root,
/// as an ordinary user.
fn first(targets: &BTreeSet<Target>) -> Result<Vec<Step>> {
    let rest = targets.iter().map(|target| target.name.as_str()).filter(|name| !BESIDE.contains(name));
    let mut all = these(rest);
    all.args(["--lib", "--bins", "--examples"]);
    let mut docs = cargo();
    docs.args(["test", "--workspace", "--no-fail-fast", "--doc"]);
    let mut steps = vec![Step::new(all), Step::new(docs)];
    let mut users = vec![None];
    // Whom this process belongs to.
    if fs::metadata("/proc/self")?.uid() == 0 {
        users.push(Some(ORDINARY_USER));
    }
    for user in users {
        let again = targets.iter().filter(|target| target.is_end_to_end).map(|target| target.name.as_str());
        let mut local = these(again.filter(|name| !ONCE.contains(name)));
        // What only a container engine has lies in modules of this name.
        local.args(["--", "--skip", "docker::"]).env(BACKEND, "local");
        if let Some(user) = user {
            local.env(USER, user);
        }
        steps.push(Step::new(local));
    }
    Ok(steps)
}

/// What runs beside the first lane: what takes long, and engines of our own.
fn second() -> Vec<Step> {
    let mut steps = vec![Step::new(these(BESIDE.into_iter()))];
    if engine::allowed() {
        let on =
            |(kind, tests): (Kind, &'static [&str])| Step { command: these(tests.iter().copied()), engine: Some(kind) };
        steps.extend(ON_ENGINES.map(on));
    } else {
        say("engines of the tests' own take root: they are left out");
    }
    steps
}

/// These programs of tests.
fn these<'a>(names: impl Iterator<Item = &'a str>) -> Command {
    let mut command = cargo();
    // All of the workspace: for one package alone, dependencies have fewer features and are built again.
    command.args(["test", "--workspace", "--no-fail-fast"]).args(names.flat_map(|name| ["--test", name]));
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
