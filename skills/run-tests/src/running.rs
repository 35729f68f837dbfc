//! The conversation with the host: launch, copy in, look, run, read.

use std::time::Duration;

use skillhost_guest::sandbox::{Chunk, ContainerInfo, Outcome, ProcessResult};
use skillhost_guest::{CommandBuilder, Context as _, Error, Sandbox, log, warn};

use crate::commands::{self, PLUGIN, REPORT, Run, TREE};
use crate::component::exports::skillhost::run_tests::tests::{
    Failure, Missing, Problem, Report, Runner, SandboxInfo, Verdict,
};
use crate::detect::{self, Found, Project};
use crate::output::{Lines, Reader};
use crate::pytest;

/// What a build and its tests may use, files beneath `/tmp` among it.
const MEMORY_MIB: u64 = 3072;
const READ_AT_MOST: u32 = 256 * 1024;
/// Bytes of a file that says how tests are run.
const PROJECT_FILE: u64 = 1024 * 1024;
/// How long what only looks may take.
const LOOK: Duration = Duration::from_secs(60);
/// What pytest exits with when it has collected nothing.
const NOTHING_COLLECTED: i32 = 5;

/// What was asked for.
pub(crate) struct Asked {
    pub(crate) path: String,
    pub(crate) runner: Option<Runner>,
    pub(crate) filter: Option<String>,
    pub(crate) timeout: Duration,
    pub(crate) role: String,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Sandbox(error.to_string())
    }
}

/// A project that was copied into a sandbox.
struct Copied<'a> {
    sandbox: &'a Sandbox,
    names: Vec<String>,
}

impl Project for Copied<'_> {
    fn names(&self) -> &[String] {
        &self.names
    }

    fn read(&self, name: &str) -> Result<Option<String>, String> {
        match self.sandbox.container().read_file(&format!("{TREE}/{name}"), Some(PROJECT_FILE)) {
            Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
            // A directory of that name.
            Err(error) if ["not-found", "invalid-argument"].contains(&error.kind()) => Ok(None),
            Err(error) => Err(error.describe(&format!("`{name}` could not be read"))),
        }
    }
}

/// Runs the tests of a project.
pub(crate) fn run(asked: &Asked) -> Result<Report, Problem> {
    let sandbox = Sandbox::with_role(&asked.role).memory_mib(MEMORY_MIB).launch();
    let sandbox = sandbox.context("a sandbox could not be launched")?;
    let copied = sandbox.copy_in("project", &asked.path, TREE)?;
    if !copied.message.is_empty() {
        warn!("{}", copied.message);
    }

    let project = Copied { sandbox: &sandbox, names: names(&sandbox).map_err(Problem::Sandbox)? };
    let found = detect::find(&project, asked.runner).map_err(Problem::Sandbox)?.ok_or_else(|| nothing_found(asked))?;
    let command = commands::of(&found, asked.filter.as_deref()).map_err(Problem::InvalidArgument)?;
    sandbox.write(PLUGIN, include_bytes!("report.py"))?;
    log::progress(0, None, &command.argv.join(" "));

    let mut reader = Reader::new(found.runner);
    let end = execute(&sandbox, &command, asked.timeout, &mut reader).map_err(Problem::Sandbox)?;
    reader.end();
    let info = sandbox.container().info();
    let not_started = matches!(end.outcome, Outcome::NotStarted(_));
    if let Some(tool) = commands::missing(&command, found.runner, not_started, end.exit_code, &reader.tail()) {
        return Err(Problem::MissingTool(missing(tool, info)));
    }
    if found.runner == Runner::Pytest {
        results(&sandbox, &mut reader).map_err(Problem::Sandbox)?;
    }
    report(found, command, &end, reader, info)
}

fn nothing_found(asked: &Asked) -> Problem {
    let looked = "Cargo.toml, go.mod, pytest's configuration or test_*.py, a test script in package.json, or a makefile \
                  with a target `test` or `check`";
    Problem::NoTestsFound(match asked.runner {
        None => format!("`{}` has no {looked}; give the directory that has", asked.path),
        Some(_) => format!("`{}` has nothing for that runner; what is looked for: {looked}", asked.path),
    })
}

fn missing(tool: String, info: ContainerInfo) -> Missing {
    let remedy = if info.backend == "local" {
        format!(
            "a local sandbox has the programs of this machine's /usr: install {tool} there, or use a container engine"
        )
    } else {
        format!(
            "choose a `role` whose image has {tool}, or add it to the packages of `{}` in sandbox-images.toml",
            info.role
        )
    };
    Missing { tool, role: info.role, backend: info.backend, remedy }
}

/// The names in the project's directory.
fn names(sandbox: &Sandbox) -> Result<Vec<String>, String> {
    let find = sandbox.command("find").args([TREE, "-mindepth", "1", "-maxdepth", "1", "-printf", "%f\\0"]);
    let listed = looking(find).run()?;
    if listed.exit_code != 0 {
        return Err(format!("the project could not be listed: {}", String::from_utf8_lossy(&listed.stderr).trim()));
    }
    let mut names: Vec<String> =
        listed.stdout.split(|&byte| byte == 0).filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect();
    names.sort();
    Ok(names)
}

fn looking(command: CommandBuilder<'_>) -> CommandBuilder<'_> {
    command.cwd(TREE).timeout(LOOK)
}

/// Runs a command to its end, reading what it says as it comes.
fn execute(sandbox: &Sandbox, run: &Run, timeout: Duration, reader: &mut Reader) -> Result<ProcessResult, String> {
    let (program, args) = run.argv.split_first().ok_or("there is no command")?;
    let command = sandbox.command(program).args(args).cwd(TREE).envs(run.env.clone()).timeout(timeout);
    let process = command.start()?;
    let (mut out, mut err) = (Lines::default(), Lines::default());
    while let Some(chunk) = process.read(READ_AT_MOST).context("the output could not be read")? {
        let (lines, bytes) = match chunk {
            Chunk::Stdout(bytes) => (&mut out, bytes),
            Chunk::Stderr(bytes) => (&mut err, bytes),
        };
        reader.keep(&bytes);
        lines.push(&bytes, |line| reader.line(line));
    }
    out.end(|line| reader.line(line));
    err.end(|line| reader.line(line));
    Ok(process.wait().context("how the tests ended is not known")?)
}

/// Reads what our plugin of pytest has written.
fn results(sandbox: &Sandbox, reader: &mut Reader) -> Result<(), String> {
    let process = looking(sandbox.command("cat").arg(REPORT)).start().context("pytest's report could not be read")?;
    let (mut lines, mut damaged) = (Lines::default(), None);
    while let Some(chunk) = process.read(READ_AT_MOST).context("pytest's report could not be read")? {
        // When it could not even begin, there is no file; the run's own output says why.
        let Chunk::Stdout(bytes) = chunk else { continue };
        lines.push(&bytes, |line| {
            if let Err(error) = pytest::line(line, &mut reader.tally) {
                damaged.get_or_insert(error);
            }
        });
    }
    damaged.map_or(Ok(()), Err)
}

fn report(found: Found, run: Run, end: &ProcessResult, reader: Reader, info: ContainerInfo) -> Result<Report, Problem> {
    let verdict = match &end.outcome {
        Outcome::TimedOut => Verdict::TimedOut,
        Outcome::OutOfMemory => Verdict::OutOfMemory,
        Outcome::Cancelled => return Err(Problem::Sandbox("the tests were cancelled".into())),
        _ if reader.tally.failed > 0 => Verdict::Failed,
        Outcome::Exited(0) if reader.tally.is_empty() => Verdict::NothingCounted,
        Outcome::Exited(NOTHING_COLLECTED) if found.runner == Runner::Pytest && reader.tally.is_empty() => {
            Verdict::NothingCounted
        }
        Outcome::Exited(0) => Verdict::Passed,
        _ => Verdict::Broken,
    };
    let output_tail = if verdict == Verdict::Passed { String::new() } else { reader.tail() };
    let tally = reader.tally;
    Ok(Report {
        runner: found.runner,
        found_by: if found.what.is_empty() { found.by } else { format!("{}: {}", found.by, found.what) },
        command: run.argv,
        verdict,
        exit_code: end.exit_code,
        passed: tally.passed,
        failed: tally.failed,
        skipped: tally.skipped,
        duration_ms: end.wall_time_ms,
        failures: tally.failures.into_iter().map(at_home).collect(),
        failures_truncated: tally.truncated,
        output_tail,
        output_bytes: end.stdout_bytes.saturating_add(end.stderr_bytes),
        sandbox: SandboxInfo {
            backend: info.backend,
            isolation: info.isolation,
            role: info.role,
            container_id: info.id,
        },
    })
}

/// Gives a failure's place as the caller knows it: the project lies elsewhere in the sandbox.
fn at_home(mut failure: Failure) -> Failure {
    if let Some(place) = &mut failure.place
        && let Some(relative) = place.file.strip_prefix(TREE).and_then(|rest| rest.strip_prefix('/'))
    {
        place.file = relative.to_owned();
    }
    failure
}
