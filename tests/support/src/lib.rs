//! What the tests need to be built first.
//!
//! Guests are compiled by the test that uses them, into a target directory of their own: cargo holds a lock on the one
//! that the tests themselves are built in. Whatever cannot be built ends the test with the reason; nothing is skipped.

#![allow(clippy::panic)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The target that guests are built for.
pub const GUEST_TARGET: &str = "wasm32-wasip2";

/// The workspace's root.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_owned()
}

/// Builds the guest in `tests/guests/NAME` (its package is `guest-NAME`) and returns its component.
pub fn guest(name: &str) -> PathBuf {
    // The tests of one process would only wait for each other inside cargo.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let target = workspace().join("target/guests");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(workspace()).args(["build", "--quiet", "--release", "--target", GUEST_TARGET]);
    command.args(["--package", &format!("guest-{name}")]).arg("--target-dir").arg(&target);
    run(&mut command, "if the target is missing, `cargo xtask setup` adds it");
    target.join(GUEST_TARGET).join("release").join(format!("guest_{}.wasm", name.replace('-', "_")))
}

/// Runs `command` to its end; what went wrong, with `remedy`, ends the test.
pub fn run(command: &mut Command, remedy: &str) {
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?} cannot be started: {error}; {remedy}"),
    };
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        panic!("{command:?} failed ({}); {remedy}\n{out}{err}", output.status);
    }
}
