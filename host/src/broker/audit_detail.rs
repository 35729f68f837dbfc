//! What a record says of its effect, within bounds.
//!
//! Callers choose much of it: paths, keys, commands, and through them the words of errors. Whatever they send, a record
//! stays small; what was cut says how long it was.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use skillhost_api::types::Command;

use crate::config::CommandVisibility;
use crate::digest::sha256;

/// The most bytes of JSON that one fact has.
const MAX_FACT: usize = 4 << 10;
/// The most that all of them have, but for the error.
const MAX_FACTS: usize = 16 << 10;
/// The most that the error has: it has room of its own, for a record without it is worth little.
const MAX_ERROR: usize = 2 << 10;
/// The least that is worth keeping of something that is cut.
const LEAST: usize = 32;

/// The facts of one effect.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    facts: Map<String, Value>,
    room: usize,
    /// How much of its command an error may quote.
    quotes: CommandVisibility,
}

impl Default for Facts {
    fn default() -> Self {
        Self { facts: Map::new(), room: MAX_FACTS, quotes: CommandVisibility::Full }
    }
}

impl Facts {
    /// Adds a fact. The names are the program's own.
    pub(super) fn note(&mut self, name: &str, value: Value) {
        let value = within(value, MAX_FACT.min(self.room));
        self.room = self.room.saturating_sub(length(&value));
        self.facts.insert(name.to_owned(), value);
    }

    /// Adds the command that it is about. Whatever its errors say of it is held to the same.
    pub(super) fn command(&mut self, visible: CommandVisibility, command: &Command) {
        self.note("command", command_on_record(visible, command));
        self.quotes = visible;
    }

    /// Adds what went wrong.
    pub(super) fn error(&mut self, message: &str) {
        self.facts.insert("error".to_owned(), text_on_record(self.quotes, &text_within(message, MAX_ERROR)));
    }
}

/// A command as its record has it.
pub(super) fn command_on_record(visible: CommandVisibility, command: &Command) -> Value {
    let program = match (visible, command) {
        (CommandVisibility::Full, Command::Argv(argv)) => return argv.as_slice().into(),
        (CommandVisibility::Full, Command::Shell(line)) => return line.as_str().into(),
        (CommandVisibility::Digest, _) => None,
        (CommandVisibility::Program, Command::Argv(argv)) => argv.first().map(String::as_str),
        (CommandVisibility::Program, Command::Shell(_)) => Some("a shell"),
    };
    let mut hash = Sha256::new();
    match command {
        // With their lengths, so that no two are another two.
        Command::Argv(argv) => argv.iter().for_each(|word| {
            hash.update((word.len() as u64).to_be_bytes());
            hash.update(word);
        }),
        Command::Shell(line) => hash.update(line),
    }
    let digest = format!("sha256:{}", hex::encode(hash.finalize()));
    match program {
        Some(program) => json!({ "program": program, "digest": digest }),
        None => json!({ "digest": digest }),
    }
}

/// A text that may quote a command, as its record has it.
pub(super) fn text_on_record(visible: CommandVisibility, text: &str) -> Value {
    match visible {
        CommandVisibility::Full => text.into(),
        CommandVisibility::Program | CommandVisibility::Digest => json!({ "digest": sha256(text.as_bytes()) }),
    }
}

impl From<Facts> for Value {
    fn from(facts: Facts) -> Self {
        Self::Object(facts.facts)
    }
}

/// Bytes of `value` as JSON.
fn length(value: &Value) -> usize {
    match value {
        Value::String(text) => text_length(text),
        other => other.to_string().len(),
    }
}

fn text_length(text: &str) -> usize {
    2 + text.chars().map(escaped).sum::<usize>()
}

/// Bytes of a character in a JSON text.
fn escaped(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        other => other.len_utf8(),
    }
}

/// `value` in about `room` bytes of JSON: never more than that and what says that it was cut.
fn within(value: Value, room: usize) -> Value {
    match value {
        Value::String(text) => text_within(&text, room).into(),
        Value::Array(items) => list_within(items, room),
        Value::Object(fields) => {
            let text = Value::Object(fields.clone()).to_string();
            if text.len() <= room { Value::Object(fields) } else { text_within(&text, room).into() }
        }
        small => small,
    }
}

fn text_within(text: &str, room: usize) -> String {
    // No character has more than six bytes for each of its own.
    if text.len().saturating_mul(6) <= room || text_length(text) <= room {
        return text.to_owned();
    }
    let mut left = room.saturating_sub(2);
    let kept = text.chars().take_while(|c| {
        let fits = escaped(*c) <= left;
        left = left.saturating_sub(escaped(*c));
        fits
    });
    let mut kept: String = kept.collect();
    kept.push_str(&format!("… ({} bytes)", text.len()));
    kept
}

fn list_within(items: Vec<Value>, room: usize) -> Value {
    let count = items.len();
    let mut left = room;
    let mut kept = Vec::new();
    for item in items {
        if left < LEAST {
            kept.push(format!("… ({} more)", count - kept.len()).into());
            break;
        }
        let item = within(item, left);
        left = left.saturating_sub(length(&item) + 1);
        kept.push(item);
    }
    kept.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_kept_as_it_is() {
        let mut facts = Facts::default();
        let all = json!({"a": "ä\n", "b": ["x", "y"], "c": {"exited": 0}, "d": 7});
        for (name, value) in all.as_object().unwrap() {
            facts.note(name, value.clone());
        }
        assert_eq!(Value::from(facts), all);
    }

    #[test]
    fn whatever_is_noted_the_record_stays_small_and_says_what_was_cut() {
        let long = 4_000_000;
        for value in [
            json!("x".repeat(long)),
            json!("\0".repeat(long)),
            json!("€".repeat(long / 3)),
            json!(vec!["x".repeat(1000); 4000]),
            json!(vec![""; long]),
            json!({ "x".repeat(long): "y" }),
            json!([[["x".repeat(long)]]]),
        ] {
            let mut facts = Facts::default();
            for number in 0..10 {
                facts.note(&format!("fact{number}"), value.clone());
            }
            facts.error(&"y".repeat(long));
            let text = Value::from(facts).to_string();
            assert!(text.len() <= MAX_FACTS + MAX_ERROR + 1024, "{} bytes: {}…", text.len(), &text[..100]);
            assert!(text.contains("4000000 bytes)"), "the error says how long it was");
            assert!(text.contains("… ("), "{}…", &text[..100]);
        }
    }

    #[test]
    fn a_command_shows_no_more_of_itself_than_the_operator_lets_it() {
        use CommandVisibility::{Digest, Full, Program};
        let (argv, line) = (Command::Argv(vec!["curl".into(), "s3cret".into()]), Command::Shell("echo s3cret".into()));
        assert_eq!(command_on_record(Full, &argv), json!(["curl", "s3cret"]));
        assert_eq!(command_on_record(Full, &line), "echo s3cret");
        assert_eq!(command_on_record(Program, &argv)["program"], "curl");
        for (visible, command) in [(Program, &argv), (Program, &line), (Digest, &argv), (Digest, &line)] {
            let shown = command_on_record(visible, command);
            assert!(shown["digest"].as_str().unwrap().starts_with("sha256:") && !shown.to_string().contains("s3cret"));
        }
        let words = |words: &[&str]| Command::Argv(words.iter().map(ToString::to_string).collect());
        assert_ne!(command_on_record(Digest, &words(&["a", "bc"])), command_on_record(Digest, &words(&["ab", "c"])));
        for visible in [Program, Digest] {
            let mut facts = Facts::default();
            facts.command(visible, &argv);
            facts.error("`s3cret` is no host");
            assert!(!Value::from(facts).to_string().contains("s3cret"), "nor is it in what went wrong");
        }
        assert!(!text_on_record(Digest, "shell: s3cret").to_string().contains("s3cret"));
    }

    #[test]
    fn a_cut_falls_between_characters_and_tells_the_length() {
        assert_eq!(text_within(&"€".repeat(20), 12), "€€€… (60 bytes)");
        assert_eq!(
            within(json!(["abc", "d".repeat(60), "e"]), 40),
            json!(["abc", "d".repeat(32) + "… (60 bytes)", "… (1 more)"])
        );
    }
}
