//! Control messages: what the two ends ask and tell each other.

use serde::{Deserialize, Serialize};

/// From the host to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// First on every connection (exec id 0).
    Hello(HostHello),
    /// Renews the lease for this long from now (exec id 0).
    Lease {
        /// Milliseconds.
        ms: u64,
    },
    /// Ends every exec and the supervisor itself (exec id 0).
    Shutdown,
    /// Starts a command under a new exec id.
    Exec(ExecStart),
    /// Starts a file operation under a new exec id. With one on a tree comes a descriptor: the socket of the tree.
    File(FileStart),
    /// Offers room for more output.
    Credit {
        /// In units of [`crate::credit_cost`].
        bytes: u32,
    },
    /// Standard input is over.
    StdinEof,
    /// Sends a signal to the leader's process group.
    Signal {
        /// The signal's number.
        number: i32,
    },
    /// Ends the exec and all of its tree; the outcome is cancelled.
    Kill,
}

/// From the supervisor to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// First on every connection (exec id 0).
    Hello(SupervisorHello),
    /// The command runs.
    Started {
        /// The leader's process id inside the sandbox.
        pid: u32,
        /// What was executed.
        argv: Vec<String>,
    },
    /// The command could not be started. [`ToHost::Closed`] follows.
    NotStarted {
        /// 127 when there is no such program, otherwise 126.
        code: u8,
        /// Why, in words.
        reason: String,
    },
    /// Room for more standard input.
    StdinCredit {
        /// Bytes.
        bytes: u32,
    },
    /// The leader ended. Output may still follow.
    Exited(Ending),
    /// How a file operation ended.
    FileDone(Result<FileDone, FileError>),
    /// The exec is wholly over: its tree is dead and its output was sent.
    Closed {
        /// All bytes of standard output.
        stdout_bytes: u64,
        /// All bytes of standard error.
        stderr_bytes: u64,
    },
    /// The host broke the protocol; the connection ends (exec id 0).
    Error {
        /// How.
        message: String,
    },
    /// The supervisor ends, and the sandbox with it (exec id 0).
    Bye(ByeReason),
}

/// The host's first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHello {
    /// [`crate::MAGIC`].
    pub magic: u32,
    /// [`crate::VERSION`].
    pub version: u16,
    /// The host's version, for messages only.
    pub build: String,
    /// How the sandbox is to behave from now on.
    pub config: SandboxConfig,
}

/// How a sandbox behaves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxConfig {
    /// Without a renewal for this long, everything ends.
    pub lease_ms: u64,
    /// Everything ends this long after the supervisor started; 0 is never.
    pub wall_ms: u64,
    /// Everything ends when no exec has run for this long; 0 is never.
    pub idle_ms: u64,
    /// Between TERM and KILL.
    pub grace_ms: u32,
    /// Environment of every exec, over the image's and under the exec's own.
    pub env: Vec<(String, String)>,
    /// Where relative paths start, and the default working directory.
    pub workspace: String,
}

/// The supervisor's first message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorHello {
    /// [`crate::MAGIC`].
    pub magic: u32,
    /// [`crate::VERSION`].
    pub version: u16,
    /// The supervisor's version, for messages only.
    pub build: String,
    /// The uid that it runs as; 0 unless the sandbox has only one.
    pub uid: u32,
}

/// Who an exec runs as.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct User {
    /// Never 0: that is the supervisor's alone.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// What to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// Verbatim; the first is looked up in the exec's PATH.
    Argv(Vec<String>),
    /// `bash -lc LINE`, or `sh -lc LINE` where there is no bash.
    Shell(String),
}

/// A command to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStart {
    /// What to execute.
    pub program: Program,
    /// Working directory; empty is the workspace, relative ones start there.
    pub cwd: String,
    /// Environment; wins over everything else.
    pub env: Vec<(String, String)>,
    /// Who runs it.
    pub user: User,
    /// Deadline; 0 is none.
    pub timeout_ms: u64,
    /// Whether standard input follows; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// The window of output, shared by both streams.
    pub window: u32,
}

/// How a leader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It exited.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// The kernel ended it for memory.
    OutOfMemory,
    /// Its deadline passed.
    TimedOut,
    /// The host asked for its end.
    Cancelled,
}

/// Why a supervisor ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ByeReason {
    /// The host asked for it.
    Shutdown,
    /// The lease was not renewed.
    Lease,
    /// The sandbox's wall time is over.
    WallTime,
    /// No exec has run for too long.
    Idle,
    /// The engine stops the sandbox.
    Terminated,
}

/// A file operation to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStart {
    /// What to do.
    pub op: FileOp,
    /// Who does it: the operation can reach what this user can, and nothing else.
    pub user: User,
    /// Deadline; 0 is none.
    pub timeout_ms: u64,
    /// The window of output.
    pub window: u32,
}

/// What to do to files. Relative paths start at the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// Sends a regular file's bytes as standard output.
    Read {
        /// The file.
        path: String,
        /// More than this is too large.
        max: Option<u64>,
    },
    /// Replaces a file by standard input's bytes, atomically; makes parent directories.
    Write {
        /// The file.
        path: String,
        /// The mode of a new file; a replaced file's mode is kept.
        mode: u32,
    },
    /// Makes the tree that comes on its socket ([`crate::stream`]) at `path`.
    TreeIn {
        /// Where its root goes.
        path: String,
    },
    /// Sends the tree at `path` on its socket.
    TreeOut {
        /// A file or a directory.
        path: String,
    },
    /// Says what is there, not following a last symbolic link.
    Stat {
        /// The path.
        path: String,
    },
}

impl FileOp {
    /// Whether it moves a tree, on a socket of its own.
    #[must_use]
    pub fn is_tree(&self) -> bool {
        matches!(self, Self::TreeIn { .. } | Self::TreeOut { .. })
    }
}

/// What a file operation did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDone {
    /// The path, absolute in the sandbox.
    pub path: String,
    /// Regular files read or written.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What was left out, in words: bounded, so the last may say how many more there are.
    pub notes: Vec<String>,
    /// What is there ([`FileOp::Stat`]).
    pub stat: Option<FileStat>,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a path may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A device, a socket, a pipe.
    Other,
}

/// Why a file operation failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileError {
    /// What a program acts on.
    pub kind: FileErrorKind,
    /// What happened, why, and to which path.
    pub message: String,
}

/// The kinds of [`FileError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileErrorKind {
    /// No such file.
    NotFound,
    /// The sandbox's own permissions refuse it.
    Permission,
    /// The path is not of the kind that the operation needs.
    InvalidArgument,
    /// Larger than the bound.
    TooLarge,
    /// Anything else.
    Other,
}
