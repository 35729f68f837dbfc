//! From nothing to the first result of a command in a sandbox.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result};
use skillhost::host::BackendChoice;

use crate::row::{Control, Row, Unit};
use crate::sample::{Sampled, Side, interleave};
use crate::world::{Bench, InProcess, Scratch, docker, image, output, quietly};

pub(super) const DOCKER: Row = Row {
    name: "launch/docker",
    what: "launch of a container, and `true` in it; stopping it is not counted",
    unit: Unit::Time,
    goal: None,
    controls: &[Control { what: "docker run --network none IMAGE true; removing it is not counted", goal: None }],
    run: on_docker,
};

pub(super) const LOCAL: Row = Row {
    name: "launch/local",
    what: "launch of a local sandbox, and `true` in it; stopping it is not counted",
    unit: Unit::Time,
    goal: None,
    controls: &[Control { what: "bwrap with all its namespaces, and `true` in it", goal: None }],
    run: on_this_machine,
};

fn launch<'a>(host: &'a InProcess<'_>) -> Side<'a> {
    Side::new(|| {
        let start = Instant::now();
        let sandbox = host.launch()?;
        host.exec(&sandbox, &["true"])?;
        let took = start.elapsed();
        host.stop(&sandbox)?;
        Ok(took.into())
    })
}

fn on_docker(bench: &Bench) -> Result<Sampled> {
    let scratch = Scratch::new(&[])?;
    let host = InProcess::with_backend(bench, &scratch, BackendChoice::Docker)?;
    let image = image()?;
    let name = format!("skillhost-bench-{}", std::process::id());
    let control = Side::new(|| {
        let start = Instant::now();
        quietly(&mut docker(["run", "--pull", "never", "--network", "none", "--name", &name, &image, "true"]))?;
        let took = start.elapsed();
        quietly(&mut docker(["rm", "--force", &name]))?;
        Ok(took.into())
    });
    interleave(bench.pace, launch(&host), vec![Ok(control)])
}

fn on_this_machine(bench: &Bench) -> Result<Sampled> {
    let scratch = Scratch::new(&[])?;
    let host = InProcess::with_backend(bench, &scratch, BackendChoice::Local)?;
    interleave(bench.pace, launch(&host), vec![bubblewrap()])
}

/// Bubblewrap with what a local sandbox has too: every namespace, a `/dev`, `/proc` and `/tmp` of its own.
fn bubblewrap() -> Result<Side<'static>, String> {
    let command = || {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
        command.args(["--tmpfs", "/tmp", "true"]);
        command
    };
    output(Command::new("bwrap").arg("--version")).map_err(|_| "install bubblewrap".to_owned())?;
    quietly(&mut command()).map_err(|error| format!("bubblewrap does not work here: {error:#}"))?;
    Ok(Side::timed(move || quietly(&mut command()).context("bubblewrap")))
}
