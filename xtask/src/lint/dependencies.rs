//! What a program that only calls skillhost, or that has a host of its own, does not have to build.

use anyhow::{Result, bail};

use super::none;
use crate::run::{cargo, output};

/// A package, how it is asked for, and the packages that nothing of it may need.
const WITHOUT: &[(&str, &[&str], &[&str])] = &[
    (
        "skillhost-api",
        &["--features", "client"],
        &["bollard", "clap", "hyper", "rmcp", "rusqlite", "schemars", "skillhost", "wasmtime"],
    ),
    // The engine's client is there, and what makes the requests of skills: hyper and TLS.
    ("skillhost", &["--no-default-features"], &["clap", "openssh", "rmcp", "schemars"]),
];

pub(super) fn check() -> Result<()> {
    let mut problems = Vec::new();
    for (package, how, unwanted) in WITHOUT {
        let tree = cargo_tree(package, how)?;
        let needed = tree.lines().filter_map(|line| line.split_whitespace().next()).skip(1);
        let mut found: Vec<&str> = needed.filter(|name| unwanted.contains(name)).collect();
        found.sort_unstable();
        found.dedup();
        problems.extend(found.iter().map(|name| format!("{package} {} needs {name}", how.join(" "))));
    }
    none(&problems)
}

/// The packages that `package` needs, each at the beginning of a line; itself first.
fn cargo_tree(package: &str, how: &[&str]) -> Result<String> {
    let tree = output(cargo().args(["tree", "--edges", "normal", "--prefix", "none", "--package", package]).args(how))?;
    if !tree.status.success() {
        bail!("`cargo tree --package {package}` failed: {}", String::from_utf8_lossy(&tree.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&tree.stdout).into_owned())
}
