//! Clients that nobody here wrote, each in the environment of `tests/clients/NAME.txt`: connect, list, an agent's loop of
//! three calls, a failure, a long output, over standard input and output and over HTTP with a token.
//!
//! Behind each agent stands a scripted model, at a provider that refuses what providers refuse (`tests/clients/provider.py`).
//! Two of them are tests like all others; `cargo xtask clients` runs all, and shows a table.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::{Value, json};
use skillhost_e2e::http::Server;
use skillhost_e2e::{User, binary, needs_engine, write};
use skillhost_test_support::{python_with, workspace};

/// All skills that ship: what a client meets first.
const SKILLS: [&str; 5] = ["code-stats", "git-digest", "hello", "run-tests", "table-query"];
const STEPS: [&str; 5] = ["connect", "list", "loop", "failure", "long"];
const TOKEN: &str = "a-token-of-the-clients";
/// Names a file for the rows of the table.
const TABLE: &str = "SKILLHOST_CLIENTS";

fn user() -> User {
    let user = User::with_skills(&SKILLS);
    user.run(["host", "stop"]).ok();
    let (config, token, project) = (user.home().join("skillhost.toml"), user.home().join("token"), user.project());
    write(&token, TOKEN);
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let known = format!(
        "{}\n[[http.token]]\nfile = {token:?}\ntenant = \"t\"\nsession = \"s\"\nproject = {project:?}\n",
        fs::read_to_string(&config).unwrap()
    );
    write(&config, known);
    user
}

/// What did not hold: steps, and why.
fn session(python: &std::path::Path, script: &str, arguments: &[&str], asked: &Value) -> Vec<String> {
    let script = workspace().join("tests/clients").join(script);
    let mut command = Command::new(python);
    command.env("PYTHONDONTWRITEBYTECODE", "1").arg(script).arg(asked.to_string()).args(arguments);
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut failed: Vec<(&str, String)> = Vec::new();
    for step in STEPS {
        let said = out.lines().find_map(|line| line.strip_prefix(&format!("failed: {step}: ")));
        let held = out.lines().any(|line| line == format!("held: {step}"));
        let why = said.unwrap_or(if held { continue } else { "it was not tried" });
        // One cause is told once.
        match failed.iter_mut().find(|(known, _)| *known == why) {
            Some((_, steps)) => steps.push_str(&format!(", {step}")),
            None => failed.push((why, step.to_owned())),
        }
    }
    if !failed.is_empty() {
        eprintln!("{asked:#}\n{out}\n{err}");
    }
    failed.into_iter().map(|(why, steps)| format!("{steps}: {why}")).collect()
}

fn client(name: &str, script: &str, arguments: &[&str]) {
    needs_engine!();
    let requirements = workspace().join("tests/clients").join(name).with_added_extension("txt");
    let requirements = fs::read_to_string(requirements).unwrap();
    let python = python_with(name, &requirements);
    let user = user();
    let stdio = json!({"command": binary(), "args": ["mcp", "--project", user.project()], "env": user.env()});
    let stdio = session(&python, script, arguments, &stdio);
    user.run(["host", "stop"]).ok();
    let server = Server::start(&user);
    let http = json!({"url": format!("http://{}/mcp", server.host()), "token": TOKEN});
    let http = session(&python, script, arguments, &http);
    if let Some(table) = std::env::var_os(TABLE) {
        let package = requirements.lines().next().unwrap_or(name);
        let more = arguments.iter().map(|word| format!(", {word}")).collect::<String>();
        let row = format!("{package}{more}\t{}\t{}\n", stdio.join("; "), http.join("; "));
        File::options().append(true).create(true).open(table).unwrap().write_all(row.as_bytes()).unwrap();
    }
    assert!(stdio.is_empty() && http.is_empty(), "stdio: {stdio:#?}\nHTTP: {http:#?}");
}

#[test]
fn mcp_1_9() {
    client("mcp-1.9", "with_mcp_1.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn mcp_1_30() {
    client("mcp-1.30", "with_mcp_1.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn mcp_2() {
    client("mcp-2", "with_mcp_2.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn fastmcp() {
    client("fastmcp", "with_fastmcp.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn pydantic_ai() {
    client("pydantic-ai", "with_pydantic_ai.py", &[]);
}

#[test]
fn openai_agents() {
    client("openai-agents", "with_openai_agents.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn openai_agents_strict() {
    client("openai-agents", "with_openai_agents.py", &["strict"]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn langchain() {
    client("langchain", "with_langchain.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn smolagents() {
    client("smolagents", "with_smolagents.py", &[]);
}

#[test]
#[ignore = "it is one of `cargo xtask clients`"]
fn autogen() {
    client("autogen", "with_autogen.py", &[]);
}
