//! How an exec or a file operation begins.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use skillhost_protocol::{ExecStart, FileOp, FileStart, MAX_EXECS, MAX_WINDOW, MIN_WINDOW, Program, ProtocolError};

use super::Supervisor;
use crate::exec::{Exec, More, Setup, span};
use crate::leader::{self, Job, Task};

/// A socket beside a job: the leader's end, and the other one where it is the supervisor's.
struct Beside {
    theirs: OwnedFd,
    ours: Option<Ours>,
}

enum Ours {
    /// Of a tree that travels in frames, in the place of a pipe.
    In(OwnedFd),
    Out(OwnedFd),
    /// Of a persistent shell.
    Session(OwnedFd),
}

impl Supervisor {
    pub(super) fn start_exec(&mut self, id: u32, start: ExecStart) -> Result<(), ProtocolError> {
        let ExecStart { program, cwd, env, home, user, timeout_ms, stdin, window, terminal } = start;
        let mut all = self.env.clone();
        all.extend(env);
        let beside = match program {
            Program::Session => match beside(Ours::Session) {
                Ok(beside) => Some(beside),
                Err(error) => return self.refuse(id, "the shell", &error),
            },
            _ => None,
        };
        let task = Task::Exec { program, cwd, env: all, home, stdin, terminal };
        self.start(id, stdin, window, timeout_ms, Job { user, workspace: self.workspace(), task }, beside)
    }

    fn refuse(&mut self, id: u32, whose: &str, error: &std::io::Error) -> Result<(), ProtocolError> {
        self.last_id = id;
        if let Some(connection) = &mut self.connection {
            connection.output.refuse(id, format!("no socket can be had for {whose}: {}", leader::plain(error)));
        }
        Ok(())
    }

    pub(super) fn start_file(&mut self, id: u32, start: FileStart) -> Result<(), ProtocolError> {
        let FileStart { op, user, window, framed } = start;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let comes_in = matches!(op, FileOp::TreeIn { .. });
        let tree = match (op.is_tree(), framed) {
            (false, _) => None,
            (true, false) => Some(Beside { theirs: connection.input.descriptors.claim()?, ours: None }),
            (true, true) => match beside(if comes_in { Ours::In } else { Ours::Out }) {
                Ok(tree) => Some(tree),
                Err(error) => return self.refuse(id, "the tree", &error),
            },
        };
        let carried_in = tree.as_ref().is_some_and(|tree| matches!(tree.ours, Some(Ours::In(_))));
        let stdin = matches!(op, FileOp::Write { .. }) || carried_in;
        let job = Job { user, workspace: self.workspace(), task: Task::File { op, framed } };
        self.start(id, stdin, window, 0, job, tree)
    }

    fn workspace(&self) -> String {
        self.config.as_ref().map_or_else(|| "/".to_owned(), |config| config.workspace.clone())
    }

    fn start(
        &mut self,
        id: u32,
        stdin: bool,
        window: u32,
        timeout_ms: u64,
        job: Job,
        beside: Option<Beside>,
    ) -> Result<(), ProtocolError> {
        if id <= self.last_id {
            return Err(ProtocolError(format!("exec id {id} after {}", self.last_id)));
        }
        if !(MIN_WINDOW..=MAX_WINDOW).contains(&window) {
            return Err(ProtocolError(format!("a window of {window} bytes")));
        }
        self.last_id = id;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let output = &mut connection.output;
        if self.ending.is_some() {
            output.refuse(id, "the sandbox is being stopped".into());
        } else if self.execs.len() + self.dying.len() >= MAX_EXECS {
            output.refuse(id, format!("the sandbox runs {MAX_EXECS} commands already; wait for one to end"));
        } else {
            let argv = match &job.task {
                Task::Exec { program: Program::Argv(argv), .. } => Some(argv.clone()),
                _ => None,
            };
            let oom_before = self.oom.kills();
            let deadline = span(timeout_ms).map(|time| Instant::now() + time);
            let is_file = matches!(job.task, Task::File { .. });
            let terminal = matches!(job.task, Task::Exec { terminal: Some(_), .. });
            match self.reserve.start(&job, beside.as_ref().map(|beside| beside.theirs.as_fd())) {
                Ok((mut pair, leader)) => {
                    let mut session = None;
                    match beside.and_then(|beside| beside.ours) {
                        Some(Ours::In(ours)) => pair.stdin = ours,
                        Some(Ours::Out(ours)) => pair.stdout = ours,
                        Some(Ours::Session(ours)) => session = Some(ours),
                        None => {}
                    }
                    let more = More { terminal, session };
                    let setup = Setup { id, leader, is_file, stdin, window, argv, deadline, oom_before, more };
                    self.execs.insert(id, Exec::new(setup, pair));
                }
                Err(error) => {
                    let why = leader::plain(&error);
                    output.refuse(
                        id,
                        format!("the sandbox cannot start another process ({why}); end some that run in it"),
                    );
                }
            }
        }
        Ok(())
    }
}

/// A socket beside a job, of which the supervisor keeps one end.
fn beside(ours: impl FnOnce(OwnedFd) -> Ours) -> std::io::Result<Beside> {
    let (end, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&end, true)?;
    Ok(Beside { theirs, ours: Some(ours(end)) })
}
