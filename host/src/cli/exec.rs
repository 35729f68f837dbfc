//! `sandbox exec`: one command in a sandbox.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{ArgGroup, Args};

use super::app::{App, shown};
use super::failure::{CANCELLED, Ended, FAILED, Failure, LIMIT};
use super::feed::Feed;
use super::skills::{millis, pair};
use crate::api::types::{Command, ExecAnswer, ExecRequest, Outcome, Request};
use crate::error::{Error, Result};
use crate::host::Output;
use crate::units::{parse_duration, parse_size};

/// Runs a command in a sandbox
#[derive(Debug, Args)]
#[command(
    override_usage = "skillhost sandbox exec [OPTIONS] ID (--shell LINE | -- ARGV…)",
    group = ArgGroup::new("command").required(true),
    after_help = "\
Text output is the command's own: its standard output and standard error, byte for byte. A command that ends with another
code than 0 makes the exit code 1 and its own is told on standard error; one that its deadline or memory ends makes it 4.
With --stream and --output json the command's output goes to standard error as it comes, and the answer to standard output.

Examples:
  skillhost sandbox exec ID -- ls -l
  skillhost sandbox exec ID --timeout 10m --stream --shell 'make -j2 2>&1 | tee build.log'
  skillhost sandbox exec ID --stdin data.csv -- sort -u"
)]
pub(super) struct Exec {
    /// The sandbox
    id: String,
    /// End it after this long [default: 120s, at most 600s]
    #[arg(long, value_name = "TIME", env = "SKILLHOST_TIMEOUT", hide_env_values = true, value_parser = parse_duration)]
    timeout: Option<Duration>,
    /// Where it runs; relative paths start at /workspace, the default
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// Environment added for it
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// What it reads; - is standard input [default: nothing]
    #[arg(long, value_name = "FILE|-")]
    stdin: Option<String>,
    /// Keep this much of each stream: 500000, 5MiB [default: 1000000]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    max_output: Option<u64>,
    /// Show its output as it comes, and all of it
    #[arg(long)]
    stream: bool,
    /// A line for the sandbox's shell
    #[arg(long, value_name = "LINE", group = "command")]
    shell: Option<String>,
    /// A program and its arguments, verbatim
    #[arg(last = true, value_name = "ARGV", group = "command")]
    argv: Vec<String>,
}

impl Exec {
    pub(super) async fn run(self, app: &App) -> Ended {
        let feed = self.stdin.as_deref().map(Feed::open).transpose()?;
        let stream = self.stream;
        let request = ExecRequest {
            timeout_ms: self.timeout_ms()?,
            container_id: self.id,
            command: match self.shell {
                Some(line) => Command::Shell(line),
                None => Command::Argv(self.argv),
            },
            cwd: self.cwd,
            env: self.env.into_iter().collect::<BTreeMap<_, _>>(),
            max_output: self.max_output,
            stdin: feed.is_some(),
            stream,
        };
        let json = app.json();
        let mut show = move |output| match shown(output) {
            Some(Output::Stdout(bytes)) if json => Some(Output::Stderr(bytes)),
            other => other,
        };
        let answer = app.call_with::<ExecAnswer>(Request::Exec(request), feed, &mut show).await?;
        match json {
            true => app.print_json(&answer.json).await?,
            false => show_text(app, &answer.typed, stream).await?,
        }
        Ok(exit_code(&answer.typed))
    }

    fn timeout_ms(&self) -> Result<Option<u64>> {
        if let Some(timeout) = self.timeout {
            return Ok(Some(millis(timeout)));
        }
        // The name that users of an earlier system know.
        let Ok(said) = std::env::var("SANDBOX_TIMEOUT_SEC") else {
            return Ok(None);
        };
        said.trim().parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(1_000)).map(Some).ok_or_else(|| {
            Error::invalid_argument(format!("SANDBOX_TIMEOUT_SEC is {said:?}; write whole seconds, as in 120"))
        })
    }
}

async fn show_text(app: &App, answer: &ExecAnswer, streamed: bool) -> Result<(), Failure> {
    if !streamed {
        app.print_bytes(answer.stdout.clone()).await?;
        app.print_error_bytes(answer.stderr.clone()).await?;
    }
    app.note(&answer.message).await?;
    match answer.outcome {
        Outcome::Exited(0) => Ok(()),
        _ => app.note(&format!("{} (exit code {})", end(answer), answer.exit_code)).await,
    }
}

/// How it ended, in a word or two; the answer's message has the rest.
fn end(answer: &ExecAnswer) -> String {
    match &answer.outcome {
        Outcome::Exited(_) => "the command failed".into(),
        Outcome::Signaled(signal) => format!("the command was ended by signal {signal}"),
        Outcome::TimedOut => "timed out".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::OutOfMemory => "out of memory".into(),
        Outcome::NotStarted(reason) if answer.message.is_empty() => format!("not started: {reason}"),
        Outcome::NotStarted(_) => "not started".into(),
    }
}

fn exit_code(answer: &ExecAnswer) -> i32 {
    match answer.outcome {
        Outcome::Exited(0) => 0,
        Outcome::Exited(_) | Outcome::Signaled(_) | Outcome::NotStarted(_) => FAILED,
        Outcome::TimedOut | Outcome::OutOfMemory => LIMIT,
        Outcome::Cancelled => CANCELLED,
    }
}
