//! The conversation with the host: launch, copy in, count, publish.

use serde_json::json;

use crate::component::exports::skillhost::code_stats::stats::{Place, Report};
use crate::key;
use crate::tally::{Records, Tally};
use skillhost_guest::log::Level;
use skillhost_guest::sandbox::{
    Chunk, Command, Container, ExecOptions, LaunchOptions, Outcome, Process, ProcessResult, RunOptions,
};
use skillhost_guest::types::Error;
use skillhost_guest::{blackboard, files, log};

const ROLE: &str = "default";
/// The sandbox's own `/tmp`: it goes with the sandbox, where the workspace would have to be tidied.
const TREE: &str = "/tmp/tree";
const READ_AT_MOST: u32 = 256 * 1024;
/// How much of an error output is worth repeating.
const COMPLAINTS_AT_MOST: usize = 2000;

/// Where [`SCRIPT`] is put: the audit log shows a command that can be read, not a page of it.
const SCRIPT_PATH: &str = "/tmp/count.py";
const SCRIPT: &str = include_str!("count.py");

pub(crate) fn count(path: String, largest: usize) -> Result<Report, String> {
    let container = launch().map_err(|error| error.describe("a sandbox could not be launched"))?;
    let info = container.info();

    let copied = files::copy_in(&container, "project", &path, TREE)
        .map_err(|error| error.describe(&format!("`{path}` could not be copied into the sandbox")))?;
    if !copied.message.is_empty() {
        log::log(Level::Warn, &copied.message);
    }

    let tally = tally(&container, &path, copied.files, largest)?;
    let (total, languages, largest) = tally.finish();
    let summary_key = key::summary(&path);
    let summary = json!({
        "path": path,
        "files": total.files,
        "lines": total.lines,
        "bytes": total.bytes,
        "languages": languages.iter().map(|l| {
            json!({ "name": l.name, "files": l.files, "lines": l.lines, "bytes": l.bytes })
        }).collect::<Vec<_>>(),
    });
    blackboard::publish(&summary_key, &summary.to_string())
        .map_err(|error| error.describe("the summary could not be published"))?;

    Ok(Report {
        path,
        files: total.files,
        lines: total.lines,
        bytes: total.bytes,
        languages,
        largest,
        sandbox: Place { backend: info.backend, isolation: info.isolation, role: info.role, container_id: info.id },
        summary_key,
    })
}

fn launch() -> Result<Container, Error> {
    Container::launch(&LaunchOptions { role: ROLE.into(), ..LaunchOptions::default() })
}

/// Counts the tree in the sandbox. Its output is read as it comes, so no tree is too large for this component's memory.
fn tally(container: &Container, path: &str, expected: u64, largest: usize) -> Result<Tally, String> {
    container
        .write_file(SCRIPT_PATH, SCRIPT.as_bytes())
        .map_err(|error| error.describe("the counting script could not be written"))?;
    let argv = ["python3", SCRIPT_PATH, TREE].map(String::from).to_vec();
    let options = ExecOptions {
        run: RunOptions { timeout_ms: Some(240_000), ..RunOptions::default() },
        ..ExecOptions::default()
    };
    let process = container
        .start(&Command::Argv(argv), &options)
        .map_err(|error| error.describe("counting could not be started"))?;

    let mut tally = Tally::new(TREE, path, largest);
    let mut complaints = Vec::new();
    read_all(&process, &mut complaints, expected, &mut tally)?;
    let end = process.wait().map_err(|error| error.describe("the end of the counting is not known"))?;
    match end.outcome {
        Outcome::Exited(0) => Ok(tally),
        _ => Err(ended(&end, &complaints)),
    }
}

fn read_all(process: &Process, complaints: &mut Vec<u8>, expected: u64, tally: &mut Tally) -> Result<(), String> {
    let mut records = Records::default();
    while let Some(chunk) =
        process.read(READ_AT_MOST).map_err(|error| error.describe("the counts could not be read"))?
    {
        match chunk {
            Chunk::Stdout(bytes) => {
                records.push(&bytes, |record| tally.add(record))?;
                log::progress(tally.files(), Some(expected.max(tally.files())), "counting");
            }
            Chunk::Stderr(bytes) => {
                let room = COMPLAINTS_AT_MOST.saturating_sub(complaints.len());
                complaints.extend(bytes.into_iter().take(room));
            }
        }
    }
    Ok(())
}

fn ended(end: &ProcessResult, complaints: &[u8]) -> String {
    let how = match &end.outcome {
        Outcome::Exited(code) => format!("failed with exit code {code}"),
        Outcome::Signaled(signal) => format!("was ended by signal {signal}"),
        Outcome::TimedOut => "took too long; choose a smaller directory".into(),
        Outcome::Cancelled => "was cancelled".into(),
        Outcome::OutOfMemory => "ran out of memory; choose a smaller directory".into(),
        Outcome::NotStarted(why) => format!("did not start ({why}); the role `{ROLE}` needs python3"),
    };
    let complaints = String::from_utf8_lossy(complaints);
    match complaints.trim() {
        "" => format!("counting {how}"),
        said => format!("counting {how}: {said}"),
    }
}
