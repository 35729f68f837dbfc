//! What a real bash starts when it is given a line.
//!
//! It runs in namespaces of its own, in a root in memory where there is nothing but itself, so that there is no program to start, no
//! network and nothing of this machine. It says of each command which one that would have been (`command_not_found_handle`), with its
//! words: a name that begins with `q` fails, any other succeeds, so that both sides of `&&` and `||` are seen.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::scratch;

/// What makes the root, and then takes lines: each ends with a NUL, and is answered with the words of each command, led by how many there
/// are, and `-` at the end.
const DRIVER: &str = r#"set -e
# Whatever else failed: what is killed below is in a namespace of its own.
[ "$$" = 1 ]
root=$1
mount -t tmpfs -o size=16m tmpfs "$root"
mkdir -p "$root/bin" "$root/dev" "$root/tmp" "$root/w"
bash=$(command -v bash)
for file in $(ldd "$bash" | grep -o '/[^ ]*'); do mkdir -p "$root$(dirname "$file")"; cp -L "$file" "$root$file"; done
cp -L "$bash" "$root/bash"
: > "$root/dev/null"
mount --bind /dev/null "$root/dev/null"
printf '%s\n' 'command_not_found_handle() { printf "%s\0" "$#" "$@" >> /log; case $1 in q*) return 1;; esac; }' > "$root/env"
cat > "$root/loop" <<'END'
cd /w
while IFS= read -r -d '' line; do
  : > /log
  ( ulimit -t 1 -f 4096 -c 0; exec /bash --norc --noprofile -c "$line" ) </dev/null >/dev/null 2>&1
  # Whatever it has left in the background; only this process stays.
  kill -KILL -1 2>/dev/null
  while IFS= read -r -d '' word; do printf '%s\0' "$word"; done < /log
  printf -- '-\0'
done
END
exec env -i PATH=/none BASH_ENV=/env "$(command -v chroot)" "$root" /bash --norc --noprofile /loop
"#;

/// How long it may take for a line. One that waits for something is no test.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// A bash that is asked.
pub struct Bash {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    _root: tempfile::TempDir,
}

impl Bash {
    /// Starts one, where this machine gives namespaces.
    pub fn start() -> Option<Self> {
        let root = scratch::dir();
        let mut command = Command::new("unshare");
        command.args([
            "--user",
            "--map-root-user",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "--net",
            "--ipc",
            "--uts",
            "--",
        ]);
        command.args(["bash", "-c", DRIVER, "bash"]).arg(root.path());
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = spawned.ok()?;
        let (stdin, stdout) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut bash = Self { child, stdin, stdout, _root: root };
        let works = bash.ask("p0 a && q0 || p1").is_some_and(|started| started == [&["p0", "a"][..], &["q0"], &["p1"]]);
        if !works {
            eprintln!("what lines start in bash is not looked at: this machine gives no namespaces to run it in");
        }
        works.then_some(bash)
    }

    /// Whether a line can be tried: one that goes on for ever, or calls itself, costs this machine more than it shows.
    pub fn takes(line: &str) -> bool {
        let bare: String = line.chars().filter(|c| !c.is_whitespace() && *c != '\\').collect();
        !["while", "until", "function", "()", "((", "ulimit", "\0"].iter().any(|word| bare.contains(word))
    }

    /// The commands that a line starts, each with its words.
    pub fn starts(&mut self, line: &str) -> Vec<Vec<String>> {
        match self.ask(line) {
            Some(started) => started,
            None => {
                // It waits for something, or has ended itself: another takes its place.
                if let Some(new) = Self::start() {
                    *self = new;
                }
                Vec::new()
            }
        }
    }

    fn ask(&mut self, line: &str) -> Option<Vec<Vec<String>>> {
        self.stdin.write_all(line.as_bytes()).and_then(|()| self.stdin.write_all(b"\0")).ok()?;
        let mut started = Vec::new();
        loop {
            let count = self.word()?;
            if count == "-" {
                return Some(started);
            }
            let count: usize = count.parse().ok()?;
            started.push((0..count).map(|_| self.word()).collect::<Option<_>>()?);
        }
    }

    fn word(&mut self) -> Option<String> {
        let mut bytes = Vec::new();
        if self.stdout.buffer().is_empty() {
            let ready = poll(&mut [PollFd::new(&self.stdout.get_ref().as_fd(), PollFlags::IN)], Some(&PATIENCE));
            ready.ok().filter(|ready| *ready > 0)?;
        }
        self.stdout.read_until(0, &mut bytes).ok()?;
        bytes.pop().filter(|last| *last == 0)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl Drop for Bash {
    fn drop(&mut self) {
        // With it goes everything in its namespace.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
