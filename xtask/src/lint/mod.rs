//! Everything that can be said of the sources without running them.

mod claims;
mod dependencies;
mod imports;
mod layers;
mod length;
mod names;
mod sources;
mod wit_docs;

use anyhow::{Result, bail};

use crate::run::{cargo, run, say};
use crate::test;

/// Runs every check, so that one run names everything that is wrong.
pub(crate) fn lint() -> Result<()> {
    let mut failed = Vec::new();
    let mut check = |name: &'static str, result: Result<()>| {
        if let Err(error) = result {
            say(&format!("{name}: {error:#}"));
            failed.push(name);
        }
    };
    say("cargo fmt --check");
    check("fmt", run(cargo().args(["fmt", "--all", "--check"])));
    say("dependencies, layers, lengths, names, docs of WIT, claims of security, lists of tests");
    check("dependencies", dependencies::check());
    check("layers", layers::check());
    check("length", length::check());
    check("names", names::check());
    check("wit-docs", wit_docs::check());
    check("claims", claims::check());
    check("tests", test::check());
    say("cargo check of what a client builds");
    // In the workspace every feature is on.
    check("client", run(cargo().args(["check", "--package", "skillhost-api", "--features", "client"])));
    say("cargo clippy");
    check("clippy", run(cargo().args(["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])));
    if failed.is_empty() {
        say("lint: all is well");
        return Ok(());
    }
    bail!("lint: {} (see above)", failed.join(", "))
}

/// Fails with all of `problems`, if there are any.
fn none(problems: &[String]) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    bail!("\n  {}", problems.join("\n  "))
}
