//! Control messages: what the two ends ask and tell each other.

use serde::{Deserialize, Serialize};

/// From the host to the supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToSupervisor {
    /// First on every connection (exec id 0).
    Hello(HostHello),
    /// Renews the lease for this long from now (exec id 0). [`ToHost::Renewed`] is the answer, so this is also how a host
    /// finds out whether somebody is there.
    Lease {
        /// Milliseconds.
        ms: u64,
    },
    /// Replaces what the hello said, and counts the wall time from now (exec id 0): for a sandbox that was made before it was
    /// known whose it would be.
    Configure(SandboxConfig),
    /// Ends every exec and the supervisor itself (exec id 0).
    Shutdown,
    /// Starts a command under a new exec id.
    Exec(ExecStart),
    /// Starts a file operation under a new exec id. With one on a tree comes a descriptor, the socket of the tree, unless
    /// the tree travels in frames.
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
    /// Gives a line to a [`Program::Session`], which has none under way.
    Line {
        /// Chosen by the host, once per session.
        number: u32,
        /// Without a NUL.
        text: String,
        /// Deadline; 0 is none.
        timeout_ms: u64,
    },
    /// Ends the line that is under way and all that it started; the session goes on if it can.
    Interrupt,
    /// The terminal has another size now.
    Resize(TerminalSize),
}

/// From the supervisor to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToHost {
    /// First on every connection (exec id 0).
    Hello(SupervisorHello),
    /// The lease was renewed, and every message before that one was taken (exec id 0).
    Renewed,
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
    /// A line ended, and all output that it wrote was sent.
    LineDone {
        /// Which.
        number: u32,
        /// Its exit status, 0 to 255.
        code: u8,
        /// The shell's working directory.
        cwd: String,
        /// Why it ended before its time, when it did.
        why: Option<Ending>,
    },
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
    /// Between TERM and KILL.
    pub grace_ms: u32,
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
    /// What a person should know of this sandbox, in words.
    pub notes: Vec<String>,
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
    /// The permissions that its new files do not get.
    pub umask: u32,
}

/// What to execute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// Verbatim; the first is looked up in the exec's PATH.
    Argv(Vec<String>),
    /// `bash -lc LINE`, or `sh -lc LINE` where there is no bash.
    Shell(String),
    /// The same shell, which takes one [`ToSupervisor::Line`] after the other and keeps its state.
    Session,
}

/// A terminal's size, in characters, 1 to 65,535 each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}

/// A command to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStart {
    /// What to execute.
    pub program: Program,
    /// Working directory; empty is the workspace, relative ones start there.
    pub cwd: String,
    /// Environment; wins over PID 1's, which is all that commands share.
    pub env: Vec<(String, String)>,
    /// `HOME` where the environment names none that its user can write to.
    pub home: String,
    /// Who runs it.
    pub user: User,
    /// Deadline; 0 is none.
    pub timeout_ms: u64,
    /// Whether standard input follows; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// The window of output, shared by both streams.
    pub window: u32,
    /// Whether it has a terminal of its own: that is its standard input, output and error then, and what it shows is sent
    /// as standard output. The end of standard input is typed, as Ctrl-D.
    pub terminal: Option<TerminalSize>,
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
    /// The window of output.
    pub window: u32,
    /// A tree travels as standard input or output, and every file in it as bytes: for a transport that passes no
    /// descriptors.
    pub framed: bool,
}

/// What to do to files. Relative paths start at the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileOp {
    /// Sends a regular file's bytes as standard output.
    Read {
        /// The file.
        path: String,
        /// Which of them.
        part: Part,
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
    /// Sends what is in a directory, as [`Found`] records ([`crate::record`]) on standard output.
    List {
        /// The directory.
        path: String,
        /// No more than this many; the others are counted.
        max: u32,
    },
    /// Removes a file, a link, or a directory that is empty.
    Remove {
        /// What.
        path: String,
        /// A directory with all that is in it; links are not followed.
        recursive: bool,
    },
    /// Sends what changes at a path, or in the directory there, as [`Changed`] records on standard output, until it is ended
    /// or the path is gone.
    Watch {
        /// A file or a directory.
        path: String,
    },
}

/// Which bytes of a file are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Where they begin.
    pub offset: u64,
    /// At most so many.
    pub max: Option<u64>,
    /// Whether the file may have more behind them; otherwise it is too large.
    pub more: bool,
}

impl Part {
    /// All of a file that has at most `max` bytes.
    #[must_use]
    pub fn whole(max: Option<u64>) -> Self {
        Self { max, ..Self::default() }
    }
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
    /// What is there ([`FileOp::Stat`], [`FileOp::Read`]).
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
    /// When its content was changed, milliseconds since 1970.
    pub modified_ms: u64,
}

/// What was found in a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Its name, in bytes as the sandbox has it.
    pub name: Vec<u8>,
    /// What it is, not following a link.
    pub stat: FileStat,
}

/// A change at a watched path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// What happened.
    pub change: Change,
    /// The name in the watched directory; empty for the watched path itself.
    pub name: Vec<u8>,
}

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Change {
    /// The watch is in place: whatever changes from now on is told.
    Watching,
    /// It was made, or moved here.
    Created,
    /// Somebody who had it open for writing has closed it.
    Written,
    /// Its mode, owner or times were changed.
    Attributes,
    /// It was removed, or moved away.
    Removed,
    /// More changed than was kept for who watches: look at the directory anew.
    Overflow,
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
