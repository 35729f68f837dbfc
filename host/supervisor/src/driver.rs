//! What a persistent shell runs: a loop in its own language that takes lines from a socket, runs each in the shell
//! itself, and says there how it ended and in which directory.
//!
//! - The socket is a descriptor of the shell's that is closed while a line runs (the shell keeps a copy, which no program
//!   inherits). So output cannot be taken for an end, and nothing is searched for in it.
//! - Standard input is the null device unless a line changes that for good (`exec <file`), and so are output and error what
//!   they are. One that a line has closed for good (`exec >&-`) is as at first when the next begins: every later line would
//!   fail at it, and the shell alone could open it again.
//! - **bash** runs a line with `source`, so that a trap can leave it at once with `return`, and does that when a line is to
//!   be interrupted: nothing of the rest of the line runs. Where `return` would lead back into a function or another file, and
//!   so into the rest of that, it exits instead.
//! - A line may have to be left before bash has begun with it. So [`LEAVE`] is on the socket before [`INTERRUPT`] is sent: while
//!   bash still reads the line the signal means nothing, for it may be one for the line before, but when the line is read bash
//!   looks whether more is on the socket. From then on the signal counts: `return` takes the line's place, then leaves it.
//! - **sh** runs a line with `eval`, has no way to leave it from outside, and is ended where bash is interrupted.
//!
//! The names of its variables are its own; who changes them, or the loop's builtins, breaks no shell but their own.

use std::fmt::Write as _;

/// Says that a line is to be interrupted: nobody's own, and deadly to whatever has taken the shell's place.
pub const INTERRUPT: i32 = 63;

/// On the socket behind a line: that line is to be left, if it has not begun.
pub const LEAVE: &[u8] = b"leave\n";

/// Longer than any path that the kernel gives.
const MAX_RECORD: usize = 8 * 1024;

/// The loop. `@` is the socket's descriptor, `OUT`, `ERR` copies of standard output and error, `TRY` a free one; `%` is what
/// finds a builtin that a function hides, `!` what runs the line, and `LEFT` whether [`LEAVE`] is behind it.
///
/// At its top it says how the last line ended, which is so also after a line that says `continue`; after `break` it
/// begins anew. What it does itself is kept out of traces (`set -x`).
const LOOP: &str = r#"exec OUT>&1 ERR>&2
__skillhost_r=
__skillhost_loop='while { __skillhost_s=$?; } 2>/dev/null; do
{ __skillhost_c=; } TRY>&2 2>/dev/null TRY<&0 TRY>&1 || {
{ __skillhost_c=; } TRY>&2 2>/dev/null || exec 2>&ERR
{ __skillhost_c=; } 2>/dev/null TRY>&1 || exec >&OUT
{ __skillhost_c=; } 2>/dev/null TRY<&0 || exec </dev/null
}
{ if [ "$__skillhost_r" ]; then __skillhost_r=; % printf "%s %s %s\0" "$__skillhost_k" "$__skillhost_s" "${PWD-}" >&@ || exit 125; fi
while IFS=" " % read -r __skillhost_h __skillhost_k __skillhost_n <&@; [ "$__skillhost_h" = leave ]; do :; done
[ "$__skillhost_h" = skillhost ] || exit 125
__skillhost_c=
while [ "$__skillhost_n" -gt 0 ]; do
IFS= % read -r __skillhost_l <&@ || exit 125
__skillhost_c="$__skillhost_c$__skillhost_l
" __skillhost_n=$((__skillhost_n - 1))
done
__skillhost_r=1
if LEFT; then __skillhost_c="return 124"; fi
} >/dev/null 2>&1
! @<&- OUT>&- ERR>&-
done
eval "$__skillhost_loop"'
"#;

/// Which shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShellProgram {
    Bash,
    Sh,
}

impl ShellProgram {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Sh => "sh",
        }
    }

    /// The number of its socket: where neither a person nor the shell looks for a free one. sh knows single digits alone.
    pub fn socket(self) -> i32 {
        match self {
            Self::Bash => 198,
            Self::Sh => 9,
        }
    }

    /// The numbers of its copies of standard output and error, and of one that is free; beside the socket's.
    fn others(self) -> [(&'static str, &'static str); 3] {
        match self {
            Self::Bash => [("OUT", "196"), ("ERR", "195"), ("TRY", "194")],
            Self::Sh => [("OUT", "8"), ("ERR", "7"), ("TRY", "6")],
        }
    }

    /// What it runs.
    pub fn program(self) -> String {
        let (finds, runs, left) = match self {
            Self::Bash => ("builtin", r#"builtin source /dev/fd/197 197<<<"$__skillhost_c""#, "% read -t 0 <&@"),
            Self::Sh => ("command", r#"command eval "$__skillhost_c""#, "false"),
        };
        // Not with a bare `replace` of one character: the text has others of them.
        let mut text = LOOP
            .replace("LEFT", left)
            .replace("% p", &format!("{finds} p"))
            .replace("% r", &format!("{finds} r"))
            .replace("&@", &format!("&{}", self.socket()))
            .replace("\n! @<", &format!("\n{runs} {}<", self.socket()));
        for (name, number) in self.others() {
            text = text.replace(name, number);
        }
        if self == Self::Bash {
            let _ = writeln!(
                text,
                r#"trap 'if [ "$__skillhost_r" ]; then case ${{#BASH_SOURCE[@]}} in 0) __skillhost_c="return 124";; 1) return 124;; *) exit 124;; esac; fi' {INTERRUPT}"#
            );
        }
        text.push_str("eval \"$__skillhost_loop\"\n");
        text
    }
}

/// A line as the loop reads it. It must not hold a NUL.
pub fn encode(number: u32, line: &str) -> Vec<u8> {
    format!("skillhost {number} {}\n{line}\n", line.split('\n').count()).into_bytes()
}

/// How a line ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineEnd {
    pub number: u32,
    pub code: u8,
    pub cwd: String,
}

/// Takes a record from the front of `bytes`, when one is whole. `Err`: these are no words of the loop's.
pub fn decode(bytes: &mut Vec<u8>) -> Result<Option<LineEnd>, ()> {
    let Some(end) = bytes.iter().position(|byte| *byte == 0) else {
        return if bytes.len() > MAX_RECORD { Err(()) } else { Ok(None) };
    };
    let rest = bytes.split_off(end + 1);
    let record = std::mem::replace(bytes, rest);
    let text = String::from_utf8_lossy(record.get(..end).unwrap_or_default());
    let mut fields = text.splitn(3, ' ');
    let (Some(number), Some(code), Some(cwd)) = (fields.next(), fields.next(), fields.next()) else { return Err(()) };
    let (Ok(number), Ok(code)) = (number.parse(), code.parse()) else { return Err(()) };
    Ok(Some(LineEnd { number, code, cwd: cwd.to_owned() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_placeholder_of_the_loop_is_filled() {
        for shell in [ShellProgram::Bash, ShellProgram::Sh] {
            let text = shell.program();
            assert!(!text.contains('@') || text.replace("[@]", "").find('@').is_none(), "{text}");
            assert!(!text.contains("% ") && !text.contains("\n! "), "{text}");
            assert!(!["OUT", "ERR>", "ERR\n", "TRY", "LEFT"].iter().any(|name| text.contains(name)), "{text}");
        }
    }

    #[test]
    fn lines_are_counted_and_records_are_read_one_by_one() {
        assert_eq!(encode(7, "a\n\nb"), b"skillhost 7 3\na\n\nb\n");
        let mut bytes = b"7 0 /a b\nc\0".to_vec();
        bytes.extend_from_slice(b"8 25");
        let record = LineEnd { number: 7, code: 0, cwd: "/a b\nc".into() };
        assert_eq!((decode(&mut bytes), decode(&mut bytes)), (Ok(Some(record)), Ok(None)));
        bytes.extend_from_slice(b"5 /\0");
        assert_eq!(decode(&mut bytes).unwrap().unwrap().code, 255);
        for wrong in [&b"x 0 /\0"[..], b"1 256 /\0", b"1 -1 /\0", b"1\0", b"\0", &[b'1'; MAX_RECORD + 1]] {
            assert_eq!(decode(&mut wrong.to_vec()), Err(()), "{wrong:?}");
        }
    }
}
