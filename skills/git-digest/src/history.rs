//! Commits and their authors, from `git log -z --numstat`.
//!
//! A commit begins with [`MARK`] and its fields; the counts of its files follow, each a field of its own. No field of
//! git's begins with that mark but ours: counts begin with a digit or `-`, and names that follow a rename are told apart
//! by their place.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::component::exports::skillhost::git_digest::changes::{Author, Commit};
use crate::counts::Counts;

/// What a commit begins with, and what stands between its fields: a character that git allows in none of them.
pub(crate) const FORMAT: &str = "--format=%x01%H%x00%ct%x00%aN%x00%aE%x00%s%x00";
const MARK: char = '\u{1}';

/// How many authors are told apart; whoever comes later is counted with the last.
const AUTHORS: usize = 20_000;
const AUTHORS_LISTED: usize = 100;
const SUBJECT: usize = 200;
const NAME: usize = 200;

/// What the next field is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Next {
    Mark,
    Time,
    Name,
    Email,
    Subject,
    Counts,
}

/// Collects commits.
#[derive(Debug)]
pub(crate) struct History {
    next: Next,
    keep: usize,
    at_hand: Commit,
    email: String,
    counts: Counts,
    pub(crate) commits: Vec<Commit>,
    pub(crate) count: u64,
    authors: HashMap<(String, String), Author>,
}

impl History {
    /// None yet; the first `keep` commits will be named.
    pub(crate) fn new(keep: usize) -> Self {
        let at_hand = Commit { id: String::new(), author: String::new(), committed_at: 0, subject: String::new() };
        Self {
            next: Next::Mark,
            keep,
            at_hand,
            email: String::new(),
            counts: Counts::default(),
            commits: Vec::new(),
            count: 0,
            authors: HashMap::new(),
        }
    }

    /// Takes a field.
    pub(crate) fn field(&mut self, field: &str) -> Result<(), String> {
        match self.next {
            Next::Mark => self.begin(field)?,
            Next::Time => {
                self.at_hand.committed_at = field.parse().map_err(|_| format!("git wrote {field:?} for a time"))?;
                self.next = Next::Name;
            }
            Next::Name => {
                self.at_hand.author = clipped(field, NAME);
                self.next = Next::Email;
            }
            Next::Email => {
                self.email = clipped(field, NAME);
                self.next = Next::Subject;
            }
            Next::Subject => {
                self.at_hand.subject = clipped(field, SUBJECT);
                self.end_of_head();
                self.next = Next::Counts;
            }
            Next::Counts if self.counts.is_between() && is_mark(field) => self.begin(field)?,
            // Between a commit's head and its counts git writes a line's end, and nothing after one without files.
            Next::Counts if self.counts.is_between() && field.trim_matches('\n').is_empty() => {}
            Next::Counts => {
                let count = self.counts.field(field.trim_start_matches('\n'))?;
                if let Some(count) = count
                    && let Some(author) = self.authors.get_mut(&self.key())
                {
                    author.added = author.added.saturating_add(count.added);
                    author.removed = author.removed.saturating_add(count.removed);
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, field: &str) -> Result<(), String> {
        let id = field.trim_start_matches('\n').strip_prefix(MARK);
        let id = id.ok_or_else(|| format!("git wrote {:?} where a commit begins", clipped(field, 80)))?;
        self.at_hand.id = clipped(id, NAME);
        self.next = Next::Time;
        Ok(())
    }

    fn key(&self) -> (String, String) {
        (self.at_hand.author.clone(), self.email.clone())
    }

    fn end_of_head(&mut self) {
        self.count += 1;
        if self.commits.len() < self.keep {
            self.commits.push(self.at_hand.clone());
        }
        let mut key = self.key();
        if self.authors.len() >= AUTHORS && !self.authors.contains_key(&key) {
            key = ("(others)".to_owned(), String::new());
            (self.at_hand.author, self.email) = key.clone();
        }
        let (name, email) = key.clone();
        let author = self.authors.entry(key).or_insert(Author { name, email, commits: 0, added: 0, removed: 0 });
        author.commits += 1;
    }

    /// How many authors there are, and those who changed most.
    pub(crate) fn authors(&self) -> (u64, Vec<Author>) {
        let mut authors: Vec<Author> = self.authors.values().cloned().collect();
        authors.sort_by_cached_key(|author| {
            let lines = author.added.saturating_add(author.removed);
            (Reverse(lines), Reverse(author.commits), author.name.clone(), author.email.clone())
        });
        let count = authors.len() as u64;
        authors.truncate(AUTHORS_LISTED);
        (count, authors)
    }
}

fn is_mark(field: &str) -> bool {
    field.trim_start_matches('\n').starts_with(MARK)
}

/// The beginning of a text, cut between characters.
pub(crate) fn clipped(text: &str, most: usize) -> String {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(stream: &str, keep: usize) -> History {
        let mut history = History::new(keep);
        let mut fields: Vec<&str> = stream.split('\0').collect();
        fields.pop();
        fields.iter().for_each(|field| history.field(field).unwrap());
        history
    }

    #[test]
    fn commits_and_their_authors() {
        let history = read(
            "\u{1}c3\x003\0Ada\0a@x\0third\0\0\n2\t1\ta.rs\0-\t-\tb.bin\0\u{1}c2\x002\0Bob\0b@x\0merge\0\0\
             \u{1}c1\x001\0Ada\0a@x\0first\0\0\n10\t0\t\0old\0new\0",
            2,
        );
        assert_eq!(history.count, 3);
        let ids: Vec<_> = history.commits.iter().map(|commit| (commit.id.as_str(), commit.committed_at)).collect();
        assert_eq!(ids, [("c3", 3), ("c2", 2)]);
        let (count, authors) = history.authors();
        let authors: Vec<_> = authors.iter().map(|it| (it.name.as_str(), it.commits, it.added, it.removed)).collect();
        assert_eq!((count, authors), (2, vec![("Ada", 2, 12, 1), ("Bob", 1, 0, 0)]));
    }

    #[test]
    fn a_file_named_like_a_commit_is_a_file() {
        let history = read("\u{1}c1\x001\0A\0a\0s\0\0\n1\t0\t\0\u{1}old\0\u{1}new\0\u{1}c0\x000\0A\0a\0t\0\0", 9);
        assert_eq!((history.count, history.authors().1[0].added), (2, 1));
    }

    #[test]
    fn what_is_no_history_is_refused() {
        let mut history = History::new(1);
        assert!(history.field("rubbish").unwrap_err().contains("where a commit begins"));
        history.field("\u{1}c1").unwrap();
        assert!(history.field("noon").unwrap_err().contains("for a time"));
    }
}
