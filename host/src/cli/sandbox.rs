//! `sandbox`: isolated environments and what is done in them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::app::{Answer, App, shown};
use super::exec::Exec;
use super::failure::Ended;
use super::feed::Feed;
use super::global::absolute;
use super::print::table;
use super::skills::{millis, pair};
use crate::api::types::{
    CopyAnswer, CopyRequest, FileAnswer, HostPath, LaunchAnswer, LaunchRequest, Network, Request, SandboxList,
    SandboxStatus, SandboxSummary, StopAnswer,
};
use crate::api::wire::MAX_JSON;
use crate::error::Error;
use crate::host::Output;
use crate::units::{parse_duration, show_time};

/// Launches, uses and ends sandboxes
#[derive(Debug, Args)]
pub(super) struct Sandbox {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Launch(Launch),
    Exec(Exec),
    /// Lists your session's sandboxes
    #[command(after_help = "Example:\n  skillhost sandbox list")]
    List,
    /// Shows one sandbox
    #[command(after_help = "Example:\n  skillhost sandbox status ID")]
    Status {
        /// The sandbox
        id: String,
    },
    /// Ends a sandbox and all that runs in it
    #[command(after_help = "Example:\n  skillhost sandbox stop ID")]
    Stop {
        /// The sandbox
        id: String,
    },
    /// Prints a file of a sandbox, byte for byte
    #[command(after_help = "\
With --output json the answer has the file as `content`, base64 where it is not UTF-8 (then `content_encoding` says so).

Example:
  skillhost sandbox read ID report.txt > report.txt")]
    Read {
        /// The sandbox
        id: String,
        /// The file; relative paths start at /workspace
        path: String,
    },
    /// Writes a file of a sandbox, and makes its parent directories
    #[command(after_help = "\
Examples:
  skillhost sandbox write ID data/in.csv --from in.csv
  echo hello | skillhost sandbox write ID hello.txt")]
    Write {
        /// The sandbox
        id: String,
        /// The file; relative paths start at /workspace
        path: String,
        /// What is written; - is standard input
        #[arg(long, value_name = "FILE|-", default_value = "-")]
        from: String,
    },
    /// Copies a file or directory into a sandbox
    #[command(after_help = "Example:\n  skillhost sandbox copy-in ID src /workspace/src")]
    CopyIn {
        /// The sandbox
        id: String,
        /// The path here
        host: PathBuf,
        /// The path there; relative ones start at /workspace
        sandbox: String,
    },
    /// Copies a file or directory out of a sandbox
    #[command(after_help = "Example:\n  skillhost sandbox copy-out ID /workspace/out out")]
    CopyOut {
        /// The sandbox
        id: String,
        /// The path there; relative ones start at /workspace
        sandbox: String,
        /// The path here
        host: PathBuf,
    },
}

impl Sandbox {
    pub(super) async fn run(self, app: &App) -> Ended {
        match self.verb {
            Verb::Launch(launch) => launch.run(app).await,
            Verb::Exec(exec) => exec.run(app).await,
            Verb::List => {
                let answer = app.call::<SandboxList>(Request::ListSandboxes).await?;
                app.answer(&answer, list).await?;
                Ok(0)
            }
            Verb::Status { id } => {
                let answer = app.call::<SandboxStatus>(Request::SandboxStatus { container_id: id }).await?;
                app.answer(&answer, status).await?;
                Ok(0)
            }
            Verb::Stop { id } => {
                let answer = app.call::<StopAnswer>(Request::StopSandbox { container_id: id }).await?;
                let message = match answer.typed.message.as_str() {
                    "" => format!("{} is stopped", answer.typed.container_id),
                    message => message.to_owned(),
                };
                told(app, &answer, &message).await
            }
            Verb::Read { id, path } => read(app, id, path).await,
            Verb::Write { id, path, from } => {
                let feed = Feed::open(&from)?;
                let request = Request::WriteFile { container_id: id, path };
                let answer = app.call_with::<FileAnswer>(request, Some(feed), &mut shown).await?;
                let file = &answer.typed;
                let message = format!("wrote {} bytes to {}", file.bytes, file.path);
                told(app, &answer, &with_more(message, &file.message)).await
            }
            Verb::CopyIn { id, host, sandbox } => {
                let request = CopyRequest { container_id: id, host: HostPath::Owner(absolute(host)?), sandbox };
                copied(app, Request::CopyIn(request)).await
            }
            Verb::CopyOut { id, sandbox, host } => {
                let request = CopyRequest { container_id: id, host: HostPath::Owner(absolute(host)?), sandbox };
                copied(app, Request::CopyOut(request)).await
            }
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum NetworkChoice {
    None,
    Bridge,
}

impl From<NetworkChoice> for Network {
    fn from(choice: NetworkChoice) -> Self {
        match choice {
            NetworkChoice::None => Self::None,
            NetworkChoice::Bridge => Self::Bridge,
        }
    }
}

/// Launches a sandbox and prints its id, the handle for everything else
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  skillhost sandbox launch --role default
  ID=$(skillhost sandbox launch --memory-mib 2048 --wall-time 10m)")]
struct Launch {
    /// The role of the image; `skillhost images list` shows them
    #[arg(long, default_value = "default")]
    role: String,
    /// Other agents of the session may use it
    #[arg(long)]
    shared: bool,
    /// Cores
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Memory in MiB
    #[arg(long, value_name = "N")]
    memory_mib: Option<u64>,
    /// What it reaches: nothing, or the engine's bridge
    #[arg(long, value_enum)]
    network: Option<NetworkChoice>,
    /// It ends after this long: 10m, 1h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wall_time: Option<Duration>,
    /// Environment of every command in it
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
}

impl Launch {
    async fn run(self, app: &App) -> Ended {
        let request = LaunchRequest {
            role: self.role,
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            network: self.network.map(Network::from),
            wall_time_ms: self.wall_time.map(millis),
            shared: self.shared,
            env: self.env.into_iter().collect::<BTreeMap<_, _>>(),
        };
        let answer = app.call::<LaunchAnswer>(Request::Launch(request)).await?;
        if !app.json() {
            let launched = &answer.typed;
            let message = format!(
                "role {}, backend {}, isolation {}, workspace {}",
                launched.role,
                launched.backend,
                launched.isolation,
                launched.workspace_path.display()
            );
            app.note(&with_more(message, &launched.message)).await?;
        }
        app.answer(&answer, |launched| launched.container_id.clone()).await?;
        Ok(0)
    }
}

fn list(list: &SandboxList) -> String {
    table(
        ["ID", "ROLE", "BACKEND", "OWNER", "SHARED", "CPUS", "MEMORY", "NETWORK", "LAUNCHED"],
        list.containers.iter().map(|sandbox| {
            [
                sandbox.container_id.clone(),
                sandbox.role.clone(),
                sandbox.backend.clone(),
                sandbox.owner_agent_id.clone() + if sandbox.owner_is_me { " (you)" } else { "" },
                if sandbox.shared { "yes" } else { "no" }.into(),
                sandbox.cpus.to_string(),
                format!("{} MiB", sandbox.memory_mib),
                network(sandbox.network).into(),
                show_time(sandbox.launched_at_ms),
            ]
        }),
    )
}

fn network(network: Network) -> &'static str {
    match network {
        Network::None => "none",
        Network::Bridge => "bridge",
    }
}

fn status(status: &SandboxStatus) -> String {
    let mut text = format!("{}  {}, {} commands under way\n", status.container_id, status.status, status.execs);
    if let Some(sandbox) = &status.sandbox {
        text.push_str(&summary(sandbox));
    }
    if !status.message.is_empty() {
        text.push_str(&status.message);
        text.push('\n');
    }
    text
}

fn summary(sandbox: &SandboxSummary) -> String {
    format!(
        "role       {}\nimage      {}\nbackend    {}\nisolation  {}\nowner      {}\nshared     {}\nlimits     {} cpus, {} MiB, network {}\nlaunched   {}\nworkspace  {}\n",
        sandbox.role,
        sandbox.image,
        sandbox.backend,
        sandbox.isolation,
        sandbox.owner_agent_id,
        if sandbox.shared { "yes" } else { "no" },
        sandbox.cpus,
        sandbox.memory_mib,
        network(sandbox.network),
        show_time(sandbox.launched_at_ms),
        sandbox.workspace_path.display()
    )
}

async fn read(app: &App, id: String, path: String) -> Ended {
    let request = Request::ReadFile { container_id: id, path };
    if !app.json() {
        let answer = app.call::<FileAnswer>(request).await?;
        app.note(&answer.typed.message).await?;
        return Ok(0);
    }
    let mut content = Vec::new();
    let mut kept = |output| match output {
        Output::Stdout(bytes) => {
            // What is beyond is not kept, and the whole refused below.
            if content.len() <= MAX_JSON {
                content.extend_from_slice(&bytes);
            }
            None
        }
        other => shown(other),
    };
    let mut answer = app.call_with::<FileAnswer>(request, None, &mut kept).await?;
    if content.len() > MAX_JSON {
        return Err(Error::too_large(format!(
            "the file has {} bytes and JSON output takes at most {MAX_JSON}; with --output text it is printed whole",
            answer.typed.bytes
        ))
        .into());
    }
    if let Value::Object(fields) = &mut answer.json {
        match String::from_utf8(content) {
            Ok(text) => drop(fields.insert("content".into(), text.into())),
            Err(bytes) => {
                fields.insert("content".into(), STANDARD.encode(bytes.into_bytes()).into());
                fields.insert("content_encoding".into(), "base64".into());
            }
        }
    }
    app.print_json(&answer.json).await?;
    Ok(0)
}

async fn copied(app: &App, request: Request) -> Ended {
    let answer = app.call::<CopyAnswer>(request).await?;
    let copy = &answer.typed;
    let message = format!("copied {} files, {} bytes", copy.files, copy.bytes);
    told(app, &answer, &with_more(message, &copy.message)).await
}

fn with_more(message: String, more: &str) -> String {
    if more.is_empty() { message } else { format!("{message}; {more}") }
}

/// The end of a verb whose result is that it was done.
async fn told<T>(app: &App, answer: &Answer<T>, message: &str) -> Ended {
    match app.json() {
        true => app.print_json(&answer.json).await?,
        false => app.note(message).await?,
    }
    Ok(0)
}
