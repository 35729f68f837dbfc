//! What a command says, line by line, given to whatever can make sense of it.

use crate::component::exports::skillhost::run_tests::tests::Runner;
use crate::gotest::GoTest;
use crate::libtest::Libtest;
use crate::summary::Summary;
use crate::tally::Tally;
use crate::tap::Tap;

/// A longer line is cut.
const LINE: usize = 64 * 1024;
/// Bytes of the end that are kept.
const TAIL: usize = 4000;

/// Cuts a stream into lines, wherever its pieces end.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            let room = LINE.saturating_sub(self.begun.len());
            let (text, ends) = piece.strip_suffix(b"\n").map_or((piece, false), |text| (text, true));
            self.begun.extend(text.iter().take(room));
            if ends {
                self.end(&mut each);
            }
        }
    }

    /// Gives what has no end.
    pub(crate) fn end(&mut self, mut each: impl FnMut(&str)) {
        let line = std::mem::take(&mut self.begun);
        each(String::from_utf8_lossy(&line).trim_end_matches('\r'));
    }
}

/// Understands the output of one runner.
#[derive(Debug)]
pub(crate) struct Reader {
    runner: Runner,
    pub(crate) tally: Tally,
    libtest: Libtest,
    go: GoTest,
    tap: Tap,
    summary: Summary,
    tail: Vec<u8>,
}

impl Reader {
    pub(crate) fn new(runner: Runner) -> Self {
        Self {
            runner,
            tally: Tally::default(),
            libtest: Libtest::default(),
            go: GoTest::default(),
            tap: Tap::default(),
            summary: Summary::default(),
            tail: Vec::new(),
        }
    }

    /// Takes a line of standard output, or of standard error.
    pub(crate) fn line(&mut self, line: &str) {
        let tally = &mut self.tally;
        match self.runner {
            Runner::Cargo => self.libtest.line(line, tally),
            Runner::Go => self.go.line(line, tally),
            // Its plugin says more.
            Runner::Pytest => {}
            // They run whatever they like.
            Runner::Npm | Runner::Make => {
                self.libtest.line(line, tally);
                self.tap.line(line, tally);
                self.summary.line(line);
            }
        }
    }

    /// Keeps the end of all output.
    pub(crate) fn keep(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        let over = self.tail.len().saturating_sub(TAIL);
        self.tail.drain(..over);
    }

    pub(crate) fn end(&mut self) {
        self.libtest.end(&mut self.tally);
        self.tap.end(&mut self.tally);
        self.summary.end(&mut self.tally);
    }

    /// The end of all output.
    pub(crate) fn tail(&self) -> String {
        String::from_utf8_lossy(&self.tail).trim_start_matches('\u{fffd}').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_survive_any_cut() {
        let stream = "one\r\n\ntwo é\nthree".as_bytes();
        for size in 1..=stream.len() {
            let (mut lines, mut seen) = (Lines::default(), Vec::new());
            stream.chunks(size).for_each(|piece| lines.push(piece, |line| seen.push(line.to_owned())));
            lines.end(|line| seen.push(line.to_owned()));
            assert_eq!(seen, ["one", "", "two é", "three"], "{size}");
        }
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let (mut lines, mut length) = (Lines::default(), 0);
        (0..100).for_each(|_| lines.push(&[b'x'; 4096], |_| ()));
        lines.end(|line| length = line.len());
        assert_eq!(length, LINE);
    }

    #[test]
    fn the_end_is_kept() {
        let mut reader = Reader::new(Runner::Make);
        reader.keep("é".repeat(3000).as_bytes());
        reader.keep(b"end");
        let tail = reader.tail();
        assert!(tail.len() <= TAIL && tail.ends_with("éend") && tail.starts_with('é'), "{tail}");
    }

    #[test]
    fn make_can_run_anything() {
        for (text, counts) in [
            ("cc x.c\ntest a ... ok\ntest b ... FAILED\n", (1, 1)),
            ("ok 1 - a\nnot ok 2 - b\n", (1, 1)),
            ("=== 1 failed, 4 passed in 1.2s ===\n", (4, 1)),
        ] {
            let mut reader = Reader::new(Runner::Make);
            text.lines().for_each(|line| reader.line(line));
            reader.end();
            assert_eq!((reader.tally.passed, reader.tally.failed), counts, "{text}");
        }
    }
}
