//! PID 1 of a sandbox: starts commands for the host, and makes sure that nothing of them is left.
//!
//! Static and small, mounted read-only, uid 0 inside with no capabilities but SETUID, SETGID, KILL and SETPCAP. Commands
//! run under uids of their own, so none of them can signal, trace or limit the supervisor or a [`keeper`].
//!
//! `supervisor connect PATH`: connects to the host's socket, which lies in a directory that is the supervisor's alone.
//! Another transport is another verb here and another way to get at a connected descriptor in [`supervisor`].

mod buffers;
mod exec;
mod files;
mod keeper;
mod leader;
mod procs;
mod reserve;
mod supervisor;
mod sys;

use std::path::PathBuf;
use std::process::ExitCode;

use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, getrlimit, setrlimit};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let path = match args.as_slice() {
        [verb, path] if verb == "connect" => PathBuf::from(path),
        _ => return refuse("usage: supervisor connect PATH"),
    };
    if rustix::process::getpid().as_raw_nonzero().get() != 1 {
        return refuse("the supervisor runs only as PID 1 of a sandbox: elsewhere, orphans would escape it");
    }
    match start(path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&format!("the supervisor cannot start: {error}")),
    }
}

fn start(path: PathBuf) -> std::io::Result<()> {
    // Nobody of the same uid reads our memory or our /proc; there should be nobody of it.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Lower than the sandbox's default is refused without CAP_SYS_RESOURCE; leaders raise theirs instead.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-999");
    let files = getrlimit(Resource::Nofile);
    // Six descriptors an exec. What a leader inherits is put back there.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: files.maximum, ..files });
    leader::remember_limit(files);
    supervisor::Supervisor::new(path, sys::signal_fd()?).run();
    Ok(())
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
