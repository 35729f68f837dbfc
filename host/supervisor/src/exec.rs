//! One exec or file operation, as PID 1 sees it.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use skillhost_protocol::{Ending, FileError, FileErrorKind, Kind, ProtocolError, STDIN_WINDOW, ToHost, credit_cost};

use crate::buffers::{Output, Read};
use crate::keeper::{Order, Report};
use crate::leader::Status;
use crate::procs::OomCounter;
use crate::reserve::Pair;
use crate::sys;

/// The least credit that a data frame can be sent against.
const LEAST: u32 = 512;
/// For a keeper to report its tree's death, on top of the grace: one that is stopped, by a workload of the same user,
/// never does.
const KEEPERS_TIME: Duration = Duration::from_secs(2);
/// The most that a leader's status may take.
const MAX_STATUS: usize = 512 * 1024;

/// One of an exec's descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Status,
    Control,
    Stdin,
    Stdout,
    Stderr,
}

pub struct Exec {
    id: u32,
    leader: i32,
    pub keeper: i32,
    is_file: bool,
    control: Option<OwnedFd>,
    status: Option<OwnedFd>,
    status_bytes: Vec<u8>,
    /// What is executed; of a line, only the leader knows that.
    argv: Option<Vec<String>>,
    /// The host knows whether it started, or how the file operation went.
    answered: bool,
    /// It runs a program, so that its end is one, too.
    started: bool,
    exited: bool,
    stdin: Stdin,
    streams: [Stream; 2],
    credit: u32,
    deadline: Option<Instant>,
    ended_by: Option<Ending>,
    /// SIGKILL was the host's wish: not a sign of the kernel's.
    kill_was_asked: bool,
    leader_status: Option<i32>,
    tree_dead: bool,
    /// When its end, once ordered, is late.
    overdue: Option<Instant>,
    /// Its keeper went without a word, so what is left of the tree is an orphan.
    pub keeper_lost: bool,
    oom_before: u64,
}

struct Stream {
    kind: Kind,
    fd: Option<OwnedFd>,
    count: u64,
}

struct Stdin {
    fd: Option<OwnedFd>,
    waiting: Vec<u8>,
    written: usize,
    eof: bool,
    /// What the host may still send.
    credit: u32,
    /// What was taken off and not yet offered again.
    freed: u32,
}

pub struct Setup {
    pub id: u32,
    pub leader: i32,
    pub is_file: bool,
    pub stdin: bool,
    pub window: u32,
    pub argv: Option<Vec<String>>,
    pub deadline: Option<Instant>,
    pub oom_before: u64,
}

impl Exec {
    pub fn new(setup: Setup, pair: Pair) -> Self {
        let Setup { id, leader, is_file, stdin, window, argv, deadline, oom_before } = setup;
        let Pair { keeper, control, status, stdin: stdin_fd, stdout, stderr, .. } = pair;
        let stream = |kind, fd| Stream { kind, fd: Some(fd), count: 0 };
        Self {
            id,
            leader,
            keeper,
            is_file,
            control: Some(control),
            status: Some(status),
            status_bytes: Vec::new(),
            argv,
            answered: false,
            started: false,
            exited: false,
            stdin: Stdin {
                fd: stdin.then_some(stdin_fd),
                waiting: Vec::new(),
                written: 0,
                eof: false,
                credit: STDIN_WINDOW,
                freed: 0,
            },
            streams: [stream(Kind::Stdout, stdout), stream(Kind::Stderr, stderr)],
            credit: window,
            deadline,
            ended_by: None,
            kill_was_asked: false,
            leader_status: None,
            tree_dead: false,
            overdue: None,
            keeper_lost: false,
            oom_before,
        }
    }

    /// What this exec waits for.
    pub fn interests(&self, room: bool) -> impl Iterator<Item = (Part, &OwnedFd, PollFlags)> {
        let stdin = self.stdin.fd.as_ref().filter(|_| !self.stdin.waiting.is_empty());
        let readable = room && self.credit >= LEAST && (self.answered || self.is_file);
        let [stdout, stderr] = &self.streams;
        [
            (Part::Status, self.status.as_ref(), PollFlags::IN),
            (Part::Control, self.control.as_ref(), PollFlags::IN),
            (Part::Stdin, stdin, PollFlags::OUT),
            (Part::Stdout, stdout.fd.as_ref().filter(|_| readable), PollFlags::IN),
            (Part::Stderr, stderr.fd.as_ref().filter(|_| readable), PollFlags::IN),
        ]
        .into_iter()
        .filter_map(|(part, fd, flags)| Some((part, fd?, flags)))
    }

    /// Does what `part` is ready for.
    pub fn service(&mut self, part: Part, grace: u32, out: &mut Output) {
        match part {
            Part::Status => self.read_status(out),
            Part::Control => self.read_control(grace, out),
            Part::Stdin => self.write_stdin(out),
            Part::Stdout => drop(self.read_stream(0, out)),
            Part::Stderr => drop(self.read_stream(1, out)),
        }
    }

    fn read_status(&mut self, out: &mut Output) {
        let Some(fd) = &self.status else { return };
        let mut chunk = [0; 4096];
        loop {
            match rustix::io::read(fd, &mut chunk) {
                Ok(len) if len > 0 && self.status_bytes.len() < MAX_STATUS => {
                    self.status_bytes.extend_from_slice(chunk.get(..len).unwrap_or_default());
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                _ => break,
            }
        }
        self.status = None;
        let bytes = std::mem::take(&mut self.status_bytes);
        let mut rest = bytes.as_slice();
        while let Some((len, tail)) = rest.split_first_chunk::<4>() {
            let len = u32::from_le_bytes(*len) as usize;
            let (Some(record), Some(tail)) = (tail.get(..len), tail.get(len..)) else { break };
            rest = tail;
            match postcard::from_bytes::<Status>(record) {
                Ok(Status::Argv(argv)) => self.argv = Some(argv),
                Ok(Status::NotStarted((code, reason))) => self.answer(&ToHost::NotStarted { code, reason }, out),
                Ok(Status::FileDone(done)) => self.answer(&ToHost::FileDone(done), out),
                Err(_) => break,
            }
        }
        if self.answered || self.is_file {
            return;
        }
        match self.argv.take() {
            Some(argv) => {
                self.started = true;
                let pid = u32::try_from(self.leader).unwrap_or(0);
                self.answer(&ToHost::Started { pid, argv }, out);
            }
            None => {
                let reason = "it was killed before it could start".into();
                self.answer(&ToHost::NotStarted { code: 126, reason }, out);
            }
        }
    }

    fn answer(&mut self, message: &ToHost, out: &mut Output) {
        if !std::mem::replace(&mut self.answered, true) {
            out.control(self.id, message);
        }
    }

    fn read_control(&mut self, grace: u32, out: &mut Output) {
        let Some(control) = &self.control else { return };
        match Report::receive(control, false) {
            Ok(Some(Report::Ready { .. })) | Err(rustix::io::Errno::AGAIN) => {}
            Ok(Some(Report::LeaderEnded { status, tree_dead })) => {
                self.leader_status = Some(status);
                self.tree_dead = tree_dead;
                if !tree_dead {
                    Order::End(grace).send(control);
                    self.overdue.get_or_insert(late(grace));
                }
            }
            Ok(Some(Report::TreeDead)) => self.tree_dead = true,
            // The keeper is gone, and with it what it knew. What is left of the tree is with PID 1 now, who ends it.
            Ok(None) | Err(_) => {
                self.leader_status.get_or_insert(libc::SIGKILL);
                self.tree_dead = true;
                self.keeper_lost = true;
            }
        }
        if self.tree_dead {
            self.control = None;
        }
        if self.leader_status.is_some() {
            // Whatever the leader had to say was said.
            self.read_status(out);
        }
    }

    /// One read of a stream.
    fn read_stream(&mut self, index: usize, out: &mut Output) -> Read {
        let limit = usize::try_from(self.credit).unwrap_or(0);
        let Some(stream) = self.streams.get_mut(index) else { return Read::End };
        let Some(fd) = &stream.fd else { return Read::End };
        let read = out.read_frame(stream.kind, self.id, fd, limit);
        match read {
            Read::Some(len) => {
                stream.count += len as u64;
                self.credit -= credit_cost(len);
            }
            Read::End => stream.fd = None,
            Read::Nothing => {}
        }
        read
    }

    /// Goes as far as it can without waiting; `true` when the exec is over and the host knows.
    pub fn settle(&mut self, oom: &OomCounter, out: &mut Output) -> bool {
        if let Some(status) = self.leader_status
            && self.started
            && !self.exited
        {
            self.exited = true;
            out.control(self.id, &ToHost::Exited(self.ending(status, oom)));
        }
        if !self.tree_dead {
            return false;
        }
        for index in 0..2 {
            // Everybody who wrote is dead, so an empty pipe stays so, even if its other end was passed to a stranger.
            while self.streams.get(index).is_some_and(|stream| stream.fd.is_some()) {
                if self.credit < LEAST || !out.has_room() {
                    return false;
                }
                if self.read_stream(index, out) == Read::Nothing
                    && let Some(stream) = self.streams.get_mut(index)
                {
                    stream.fd = None;
                }
            }
        }
        if self.is_file && !self.answered {
            let message = match self.ended_by {
                Some(Ending::TimedOut) => "the file operation's deadline passed",
                Some(_) => "the file operation was cancelled",
                None => "the process that did the file operation was killed in the sandbox; try it again",
            };
            let error = FileError { kind: FileErrorKind::Other, message: message.into() };
            self.answer(&ToHost::FileDone(Err(error)), out);
        }
        let [stdout, stderr] = &self.streams;
        out.control(self.id, &ToHost::Closed { stdout_bytes: stdout.count, stderr_bytes: stderr.count });
        true
    }

    fn ending(&self, status: i32, oom: &OomCounter) -> Ending {
        if let Some(ended_by) = self.ended_by {
            return ended_by;
        }
        let ending = if libc::WIFEXITED(status) {
            Ending::Code(libc::WEXITSTATUS(status))
        } else {
            Ending::Signal(libc::WTERMSIG(status))
        };
        // 137 is what a shell makes of a child that was killed.
        let killed = matches!(ending, Ending::Code(137) | Ending::Signal(libc::SIGKILL));
        if killed && !self.kill_was_asked && oom.kills() > self.oom_before {
            return Ending::OutOfMemory;
        }
        ending
    }

    /// When something is due here.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline.filter(|_| self.leader_status.is_none() && self.ended_by.is_none())
    }

    /// Ends the tree; `why` is the outcome unless the leader has ended by itself.
    pub fn end(&mut self, why: Ending, grace: u32) {
        if self.leader_status.is_none() && self.ended_by.is_none() {
            self.ended_by = Some(why);
            if let Some(control) = &self.control {
                Order::End(grace).send(control);
                self.overdue = Some(late(grace));
            }
        }
    }

    /// When a keeper that was told to end its tree has had its time.
    pub fn overdue(&self) -> Option<Instant> {
        self.overdue.filter(|_| !self.tree_dead)
    }

    /// Ends the keeper in the tree's place; the tree is an orphan then, and PID 1's to end.
    pub fn kill_keeper(&mut self) {
        self.overdue = None;
        let _ = sys::kill(self.keeper, libc::SIGKILL);
    }

    pub fn signal(&mut self, number: i32) {
        if !(1..=64).contains(&number) || self.leader_status.is_some() {
            return;
        }
        self.kill_was_asked |= number == libc::SIGKILL;
        if let Some(control) = &self.control {
            Order::Signal(number).send(control);
        }
    }

    /// The host that asked for it is gone: ends the tree and tells nobody.
    pub fn abandon(&mut self, grace: u32) {
        self.end(Ending::Cancelled, grace);
        self.stdin.waiting.clear();
        self.stdin.written = 0;
        // To a file operation the end of its input means that it is whole, and it is not.
        if !self.is_file {
            self.stdin.fd = None;
        }
        self.status = None;
        for stream in &mut self.streams {
            stream.fd = None;
        }
    }

    pub fn is_dead(&self) -> bool {
        self.tree_dead
    }

    pub fn add_credit(&mut self, bytes: u32, max: u32) -> Result<(), ProtocolError> {
        self.credit = self
            .credit
            .checked_add(bytes)
            .filter(|credit| *credit <= max)
            .ok_or_else(|| ProtocolError("more credit than any window has".into()))?;
        Ok(())
    }

    /// Standard input from the host.
    pub fn take_stdin(&mut self, data: &[u8], out: &mut Output) -> Result<(), ProtocolError> {
        let stdin = &mut self.stdin;
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        stdin.credit = stdin
            .credit
            .checked_sub(len)
            .ok_or_else(|| ProtocolError("more standard input than there was room for".into()))?;
        if stdin.eof {
            return Err(ProtocolError("standard input after its end".into()));
        }
        stdin.waiting.extend_from_slice(data);
        self.write_stdin(out);
        Ok(())
    }

    pub fn end_stdin(&mut self, out: &mut Output) {
        self.stdin.eof = true;
        self.write_stdin(out);
    }

    fn write_stdin(&mut self, out: &mut Output) {
        let stdin = &mut self.stdin;
        let mut freed = 0;
        while let Some(waiting) = stdin.waiting.get(stdin.written..).filter(|waiting| !waiting.is_empty()) {
            let Some(fd) = &stdin.fd else {
                // Nobody reads it, which is no error: much is written to programs that do not care.
                freed += waiting.len();
                stdin.written = stdin.waiting.len();
                break;
            };
            match rustix::io::write(fd, waiting) {
                Ok(len) => {
                    stdin.written += len;
                    freed += len;
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => stdin.fd = None,
            }
        }
        if stdin.written == stdin.waiting.len() {
            stdin.waiting.clear();
            stdin.written = 0;
            if stdin.eof {
                stdin.fd = None;
            }
        } else if stdin.written >= STDIN_WINDOW as usize {
            stdin.waiting.drain(..stdin.written);
            stdin.written = 0;
        }
        stdin.freed += u32::try_from(freed).unwrap_or(0);
        if stdin.freed >= STDIN_WINDOW / 4 || (stdin.freed > 0 && stdin.credit == 0) {
            let bytes = std::mem::take(&mut stdin.freed);
            stdin.credit += bytes;
            out.control(self.id, &ToHost::StdinCredit { bytes });
        }
    }
}

fn late(grace: u32) -> Instant {
    Instant::now() + Duration::from_millis(grace.into()) + KEEPERS_TIME
}

/// A duration from the wire, with 0 for none.
pub fn span(ms: u64) -> Option<Duration> {
    (ms > 0).then(|| Duration::from_millis(ms))
}
