//! Tries clients of the Model Context Protocol that nobody here wrote, and shows what held in a table.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::host::Profile;
use crate::run::{cargo, say};
use crate::{guests, host, setup};

/// Names the file that each client's test adds its row to: what was tried, and what failed over each transport.
const TABLE: &str = "SKILLHOST_CLIENTS";

/// Tries those whose names have one of `names` in them, or all.
pub(crate) fn clients(names: &[String]) -> Result<()> {
    setup::wasm_target()?;
    guests::build(Profile::Debug)?;
    host::build(Profile::Debug)?;
    if let Err(error) = host::images(Profile::Debug, &["default"]) {
        say(&format!(
            "no containers here, so clients are tried with local sandboxes alone where these are asked for: {error:#}"
        ));
    }
    let table = tempfile::NamedTempFile::new()?;
    let mut command = cargo();
    // As all tests are built, so that nothing is built twice.
    command.args(["test", "--workspace", "--test", "clients", "--no-fail-fast", "--", "--include-ignored"]);
    command.args(names.iter().map(|name| name.replace(['-', '.'], "_"))).env(TABLE, table.path());
    let status = command.status().context("cargo could not be started")?;
    let rows = fs::read_to_string(table.path())?;
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.sort_unstable();
    println!("{}", shown(&rows));
    if !status.success() {
        bail!("a client failed");
    }
    if rows.is_empty() {
        bail!("no client was tried");
    }
    Ok(())
}

/// The rows as a table, and beneath it what failed.
fn shown(rows: &[&str]) -> String {
    let mut table = String::from("| client | stdio | HTTP |\n| --- | --- | --- |\n");
    let mut failures = String::new();
    for row in rows {
        let mut fields = row.split('\t');
        let client = fields.next().unwrap_or_default();
        table.push_str(&format!("| {client} |"));
        for (transport, failed) in ["stdio", "HTTP"].into_iter().zip(fields) {
            let how = if failed.is_empty() { "good" } else { "**failed**" };
            table.push_str(&format!(" {how} |"));
            if !failed.is_empty() {
                failures.push_str(&format!("\n{client} over {transport}: {failed}"));
            }
        }
        table.push('\n');
    }
    table + &failures
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_failure_is_named_beneath_the_table() {
        let shown = super::shown(&["a==1\t\t", "b==2\tloop: 400 no name\t"]);
        assert!(shown.contains("| a==1 | good | good |\n| b==2 | **failed** | good |\n"), "{shown}");
        assert!(shown.ends_with("b==2 over stdio: loop: 400 no name"), "{shown}");
    }
}
