//! Describing a component in a process of its own.
//!
//! A component's types are read by a library that was written for components that tools make. A stranger's may be made
//! for the reader: packages whose interfaces use each other in a ring, for one, make it recurse until the stack is used
//! up, and that ends the process it happens in. So the host does it in another one, which has nothing to lose: no
//! environment, no files, little memory and time. It happens once for each component, for the answer is kept.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::component::MAX_COMPONENT;
use super::descriptor::{self, Descriptor};
use crate::error::{Error, Result};

/// The first argument that makes `skillhost` do this: a component on standard input, the answer on standard output.
pub const VERB: &str = "describe-component";

/// The most bytes of an answer.
const MAX_ANSWER: u64 = 64 * 1024 * 1024;
/// Address space of the process.
const MAX_MEMORY: u64 = 4 * 1024 * 1024 * 1024;
/// Processor time of the process, in seconds.
const MAX_SECONDS: u64 = 30;

/// Has `program`, a `skillhost`, describe the component.
pub fn describe(program: &Path, component: &[u8]) -> Result<Descriptor> {
    let failed = |error: std::io::Error| Error::from(error).context("the component cannot be described");
    let mut command = Command::new(program);
    command.arg(VERB).env_clear().current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(failed)?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let mut answer = Vec::new();
    let read = std::thread::scope(|scope| {
        scope.spawn(|| {
            // A process that ended early reads no more, and its end tells why.
            let _ = input.map(|mut input| input.write_all(component));
        });
        output.map_or(Ok(0), |output| output.take(MAX_ANSWER).read_to_end(&mut answer))
    });
    // Past the bound it would wait for ever to be read.
    let _ = child.kill();
    let status = child.wait().map_err(failed)?;
    read.map_err(failed)?;
    match serde_json::from_slice::<Result<Descriptor>>(&answer) {
        Ok(Ok(described)) if described.digest == descriptor::digest(component) => Ok(described),
        Ok(Err(error)) => Err(error),
        _ => Err(Error::invalid_argument(format!(
            "the component's types cannot be read: they are put together in a way that no tool makes, and the process that \
             read them ended ({status}); build it again, with a current toolchain"
        ))),
    }
}

/// Describes the component on standard input. Returns the exit code.
pub fn answer() -> i32 {
    for (resource, limit) in
        [(Resource::As, MAX_MEMORY), (Resource::Cpu, MAX_SECONDS), (Resource::Core, 0), (Resource::Fsize, 0)]
    {
        // Lowering a limit is always allowed.
        let _ = setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) });
    }
    let mut component = Vec::new();
    let described = match std::io::stdin().lock().take(MAX_COMPONENT + 1).read_to_end(&mut component) {
        Ok(_) => descriptor::describe(&component),
        Err(error) => Err(error.into()),
    };
    let written = serde_json::to_vec(&described).map_err(std::io::Error::other).and_then(|answer| {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(&answer)?;
        stdout.flush()
    });
    i32::from(written.is_err())
}
