//! Keepers and leaders in waiting.
//!
//! An exec takes a pair from here instead of forking: that costs it nothing, and works when the workload has used up the
//! sandbox's processes. A pair that was taken is replaced when nothing else is to be done.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use skillhost_protocol::socket::send_all;

use crate::keeper::{self, Report};
use crate::leader::{self, Ends, Job};
use crate::sys;

/// How many pairs wait.
const SIZE: usize = 4;
/// Room for a few reads of output; the kernel may refuse, and its default is good enough.
const PIPE_SIZE: usize = 256 * 1024;

/// A keeper with its leader, and the supervisor's ends of their pipes.
pub struct Pair {
    pub keeper: i32,
    pub control: OwnedFd,
    pub status: OwnedFd,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    job: OwnedFd,
}

#[derive(Default)]
pub struct Reserve {
    pairs: VecDeque<Pair>,
    /// A fork failed; it is tried again when a process has ended.
    pub exhausted: bool,
}

impl Reserve {
    pub fn wants_more(&self) -> bool {
        self.pairs.len() < SIZE && !self.exhausted
    }

    /// Forks one pair.
    pub fn refill(&mut self) {
        match fork_pair() {
            Ok(pair) => self.pairs.push_back(pair),
            Err(_) => self.exhausted = true,
        }
    }

    pub fn keepers(&self) -> impl Iterator<Item = i32> {
        self.pairs.iter().map(|pair| pair.keeper)
    }

    /// A keeper in waiting has ended.
    pub fn forget(&mut self, keeper: i32) -> bool {
        let before = self.pairs.len();
        self.pairs.retain(|pair| pair.keeper != keeper);
        self.pairs.len() < before
    }

    /// Takes a pair and tells it its job, with the descriptor that belongs to it: the pair and its leader's pid.
    pub fn start(&mut self, job: &Job, descriptor: Option<BorrowedFd<'_>>) -> io::Result<(Pair, i32)> {
        loop {
            let (pair, fresh) = match self.pairs.pop_front() {
                Some(pair) => (pair, false),
                None => (fork_pair()?, true),
            };
            match give(&pair, job, descriptor) {
                Ok(leader) => return Ok((pair, leader)),
                Err(error) if fresh => return Err(error),
                // This one was killed while it waited, or never came to be; another may be well.
                Err(_) => {}
            }
        }
    }
}

fn give(pair: &Pair, job: &Job, descriptor: Option<BorrowedFd<'_>>) -> io::Result<i32> {
    let Ok(Some(Report::Ready { leader })) = Report::receive(&pair.control, true) else {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    };
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(job, bytes).map_err(io::Error::other)?;
    let len = u32::try_from(bytes.len().saturating_sub(4)).map_err(io::Error::other)?;
    if let Some(head) = bytes.first_chunk_mut::<4>() {
        *head = len.to_le_bytes();
    }
    // The leader reads and does nothing else, so this does not block for longer than it takes.
    send_all(&pair.job, &bytes, None)?;
    if descriptor.is_some() {
        // After the job: a leader takes it only when it has become its user.
        send_all(&pair.job, &[0], descriptor)?;
    }
    Ok(leader)
}

fn fork_pair() -> io::Result<Pair> {
    let pipe = || pipe_with(PipeFlags::CLOEXEC);
    let (control, keeper_control) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let (job_read, job) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (status, status_write) = pipe()?;
    let (stdin_read, stdin) = pipe()?;
    let (stdout, stdout_write) = pipe()?;
    let (stderr, stderr_write) = pipe()?;
    let _ = fcntl_setpipe_size(&stdout, PIPE_SIZE);
    let _ = fcntl_setpipe_size(&stdin, PIPE_SIZE);
    for fd in [&status, &stdin, &stdout, &stderr] {
        rustix::io::ioctl_fionbio(fd, true)?;
    }
    let ends =
        Ends { job: job_read, status: status_write, stdin: stdin_read, stdout: stdout_write, stderr: stderr_write };
    match sys::fork()? {
        Some(keeper) => Ok(Pair { keeper, control, status, stdin, stdout, stderr, job }),
        None => be_keeper(keeper_control, ends),
    }
}

fn be_keeper(control: OwnedFd, ends: Ends) -> ! {
    let Ends { job, status, stdin, stdout, stderr } = &ends;
    sys::close_all_but(&[control.as_fd(), job.as_fd(), status.as_fd(), stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]);
    // Before the leader exists: whatever it starts must find this ancestor, not PID 1.
    if rustix::process::set_child_subreaper(Some(rustix::process::getpid())).is_err() {
        sys::exit(1);
    }
    match sys::fork() {
        Ok(None) => leader::run(ends),
        Ok(Some(leader)) => {
            drop(ends);
            keeper::run(control, leader)
        }
        Err(_) => sys::exit(1),
    }
}
