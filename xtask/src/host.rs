//! The `skillhost` program itself.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::run::{cargo, program, run, say, target};

/// Builds the program and says where it is.
pub(crate) fn build() -> Result<PathBuf> {
    say("building skillhost (a first build takes minutes)");
    // All of the workspace, as `cargo test` takes it: for one package alone, dependencies have fewer features, and
    // Wasmtime would be compiled for both. Programs only, for a skill is no library of this machine's: the names of what
    // it exports are more than a linker takes.
    run(cargo().args(["build", "--workspace", "--bins"]))?;
    Ok(path())
}

/// Where the program is, once it is built.
pub(crate) fn path() -> PathBuf {
    target().join("debug").join("skillhost").with_extension(std::env::consts::EXE_EXTENSION)
}

/// The program, to be run in the workspace.
pub(crate) fn skillhost() -> Command {
    program(path())
}

/// Provides the image of every role.
pub(crate) fn provide_images() -> Result<()> {
    build()?;
    say("providing the images of sandbox-images.toml");
    run(skillhost().args(["images", "build"]))
}
