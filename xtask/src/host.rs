//! The `skillhost` program itself.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::run::{cargo, program, run, say, target};

/// Builds the program and says where it is.
pub(crate) fn build() -> Result<PathBuf> {
    say("building skillhost (a first build takes minutes)");
    run(cargo().args(["build", "--package", "skillhost"]))?;
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
