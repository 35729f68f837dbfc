//! PID 1 of a sandbox: starts commands for the host, and makes sure that nothing of them is left.
//!
//! Static and small, mounted read-only, uid 0 inside with no capabilities but SETUID, SETGID, KILL and SETPCAP. Commands
//! run under uids of their own, so none of them can signal, trace or limit the supervisor or a [`keeper`].
//!
//! `supervisor connect PATH`: connects to the host's socket, which lies in a directory that is the supervisor's alone.
//! `supervisor local`: makes the sandbox itself first ([`local`]).
//! Another transport is another verb here and another way to get at a connected descriptor in [`supervisor`].

mod buffers;
mod exec;
mod files;
mod keeper;
mod leader;
mod local;
mod procs;
mod reserve;
mod supervisor;
mod sys;

use std::path::PathBuf;
use std::process::ExitCode;

use local::Inside;
use procs::OomCounter;
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, Resource, getrlimit, setrlimit};
use rustix::thread::CapabilitySet;
use supervisor::{Around, Supervisor};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let inside = match args.as_slice() {
        [verb, path] if verb == "connect" => {
            Inside { socket: PathBuf::from(path), oom: OomCounter::open(), around: Around::Sandbox }
        }
        [verb] if verb == "local" => local::enter(),
        _ => return refuse("usage: supervisor connect PATH | supervisor local"),
    };
    if inside.around == Around::Sandbox && !rustix::process::getpid().is_init() {
        return refuse("the supervisor runs only as PID 1 of a sandbox: elsewhere, orphans would escape it");
    }
    match start(inside) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&format!("the supervisor cannot start: {error}")),
    }
}

fn start(inside: Inside) -> std::io::Result<()> {
    let Inside { socket, oom, around } = inside;
    // Nobody of the same uid reads our memory or our /proc, or traces us.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Lower than the sandbox's default is refused without CAP_SYS_RESOURCE; leaders raise theirs instead.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-999");
    let files = getrlimit(Resource::Nofile);
    // Six descriptors an exec. What a leader inherits is put back there.
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: files.maximum, ..files });
    leader::remember_limit(Resource::Nofile, files);
    // Once for all that is ever forked here, since each leader would need a hundred calls for it. A write to a command
    // that is gone must not end us, so the leaders see to that signal.
    sys::default_signals((1..=64).filter(|signal| *signal != libc::SIGPIPE));
    // With a bounding set that holds nothing, no program gains a capability, whatever its file says.
    leader::shrink_bounding_set(CapabilitySet::empty())?;
    Supervisor::new(socket, sys::signal_fd()?, oom, around).run();
    Ok(())
}

fn refuse(why: &str) -> ExitCode {
    eprintln!("{why}");
    ExitCode::FAILURE
}
