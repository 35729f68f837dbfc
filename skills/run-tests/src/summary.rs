//! The last lines of runners that we know no better: pytest's, Jest's, Mocha's and unittest's own sums.

use crate::tally::Tally;

/// The sums that were said last.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Summary {
    pub(crate) fn line(&mut self, line: &str) {
        let line = line.trim().trim_matches('=').trim();
        // `Tests: 1 failed, 2 passed, 3 total` (Jest), `1 failed, 2 passed in 0.05s` (pytest).
        let counts = line.strip_prefix("Tests:").or_else(|| line.rsplit_once(" in ").map(|(counts, _)| counts));
        if let Some(counts) = counts
            && let Some(sums) = counted(counts)
        {
            *self = sums;
            return;
        }
        // `12 passing (30ms)`, `1 failing`, `2 pending` (Mocha).
        let mut words = line.split_ascii_whitespace();
        let (Some(Ok(number)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else { return };
        match what {
            "passing" => self.passed = number,
            "failing" => self.failed = number,
            "pending" => self.skipped = number,
            _ => {}
        }
    }

    /// Gives the sums, when nothing better is known.
    pub(crate) fn end(&self, tally: &mut Tally) {
        if tally.is_empty() {
            (tally.passed, tally.failed, tally.skipped) = (self.passed, self.failed, self.skipped);
        }
    }
}

/// Reads `1 failed, 2 passed, 3 skipped, 6 total`; none when something in it is no count.
fn counted(text: &str) -> Option<Summary> {
    let mut sums = Summary::default();
    for count in text.split(',') {
        let (number, what) = count.trim().split_once(' ')?;
        let number: u64 = number.parse().ok()?;
        match what {
            "passed" => sums.passed = number,
            "failed" | "error" | "errors" => sums.failed += number,
            "skipped" | "xfailed" | "todo" | "deselected" => sums.skipped += number,
            "total" | "warning" | "warnings" | "xpassed" => {}
            _ => return None,
        }
    }
    Some(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (u64, u64, u64) {
        let (mut summary, mut tally) = (Summary::default(), Tally::default());
        text.lines().for_each(|line| summary.line(line));
        summary.end(&mut tally);
        (tally.passed, tally.failed, tally.skipped)
    }

    #[test]
    fn sums_of_several_runners() {
        assert_eq!(read("Tests:       1 failed, 1 skipped, 2 passed, 4 total"), (2, 1, 1));
        assert_eq!(read("==== 1 failed, 2 passed, 1 warning in 0.05s ===="), (2, 1, 0));
        assert_eq!(read("  12 passing (30ms)\n  1 failing\n"), (12, 1, 0));
    }

    #[test]
    fn other_text_is_no_sum() {
        assert_eq!(read("built in 3 s\n3 passed hands, in time\n5 files\nTests: none\n"), (0, 0, 0));
    }

    #[test]
    fn better_counts_stay() {
        let mut tally = Tally { passed: 1, ..Tally::default() };
        Summary { passed: 5, failed: 5, skipped: 5 }.end(&mut tally);
        assert_eq!(tally.passed, 1);
    }
}
