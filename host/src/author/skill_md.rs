//! `SKILL.md` as the format says it: loading is lenient, its author is told of all that another program may refuse.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::new::MAX_DESCRIPTION;
use crate::skills::did_you_mean;
use crate::skills::frontmatter::{self, Frontmatter};
use crate::skills::name::is_part;

/// The fields of the format.
const FIELDS: [&str; 6] = ["name", "description", "license", "compatibility", "metadata", "allowed-tools"];
/// What ends the names of a skill's own files.
const FILES: [&str; 7] = ["c", "h", "md", "py", "rs", "toml", "wasm"];
/// How many actions that there are none of are told.
const MAX_TOLD: usize = 16;
/// The most characters of `compatibility`.
const MAX_COMPATIBILITY: usize = 500;

/// What is wrong with the front matter of the skill in the directory called `directory`.
pub(super) fn problems(front: &Frontmatter, directory: &str) -> Vec<String> {
    let mut found = Vec::new();
    let fields = front.fields();
    match fields.get("name") {
        None => found.push(format!("there is no `name`: write `name: {directory}`")),
        Some(Value::String(name)) if name == directory => {
            if !is_part(name) || name.starts_with('-') || name.ends_with('-') || name.contains("--") {
                found.push(format!(
                    "`name` is {name:?}: it has words of a-z and 0-9 with one `-` between, 64 characters at most"
                ));
            }
        }
        Some(Value::String(name)) => {
            found.push(format!(
                "`name` is {name:?}, but the directory is {directory:?}: they must be equal, so rename one"
            ));
        }
        Some(other) => found.push(format!("`name` is {other}, which is no text: write `name: {directory}`")),
    }
    let length = front.description.chars().count();
    if length > MAX_DESCRIPTION {
        found.push(format!(
            "`description` has {length} characters: {MAX_DESCRIPTION} at most; put the rest below the front matter"
        ));
    }
    for name in ["license", "compatibility", "allowed-tools"] {
        if let Some(value) = fields.get(name).filter(|value| !value.is_string()) {
            found.push(format!("`{name}` is {value}: it is a text"));
        }
    }
    let compatibility = fields.get("compatibility").and_then(Value::as_str).map_or(0, |text| text.chars().count());
    if compatibility > MAX_COMPATIBILITY {
        found.push(format!("`compatibility` has {compatibility} characters: {MAX_COMPATIBILITY} at most"));
    }
    match fields.get("metadata") {
        None => {}
        Some(Value::Object(entries)) => found.extend(
            entries
                .iter()
                .filter(|(_, value)| !value.is_string())
                .map(|(key, value)| format!("`metadata.{key}` is {value}: its values are texts, so put it in quotes")),
        ),
        Some(other) => found.push(format!("`metadata` is {other}: it is a mapping of names to texts")),
    }
    found
}

/// Fields that the format does not have: some programs have their own, others refuse them.
pub(super) fn unknown_fields(front: &Frontmatter) -> Vec<String> {
    let known = || FIELDS.into_iter().chain([frontmatter::FOR_PEOPLE]);
    let unknown = front.fields().keys().filter(|field| known().all(|known| known != field.as_str()));
    unknown
        .map(|field| {
            format!(
                "`{field}` is no field of the format{}, which has {}: put what is your own under `metadata`",
                did_you_mean(field, known()),
                FIELDS.join(", ")
            )
        })
        .collect()
}

/// Actions of the skill called `name` that the text speaks of, as `NAME.ACTION`, and that there are none of.
pub(super) fn unknown_actions(front: &Frontmatter, name: &str, actions: &[&str]) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let (mut found, actions) = (BTreeSet::new(), BTreeSet::from_iter(actions.iter().copied()));
    for (at, start) in front.body.match_indices(&format!("{name}.")) {
        let before = front.body.get(..at).and_then(|text| text.chars().next_back());
        let rest = front.body.get(at + start.len()..).unwrap_or_default();
        let word = rest.split(|c| !is_part(c)).next().unwrap_or_default();
        let is_command = before.is_some_and(|c| c == ' ' || c == '`') && !word.is_empty();
        // As in the name of a file.
        if is_command && !FILES.contains(&word) && !actions.contains(word) {
            found.insert(word);
        }
    }
    let told = found.into_iter().take(MAX_TOLD).map(|word| {
        let meant = did_you_mean(word, actions.iter().copied());
        format!("it speaks of `{name}.{word}`, and the skill has no such action{meant}")
    });
    told.collect()
}

/// Whether there is something to read below the front matter.
pub(super) fn has_body(front: &Frontmatter) -> bool {
    !front.body.trim().is_empty()
}

/// Where it is.
pub(super) fn file() -> &'static Path {
    Path::new(crate::skills::frontmatter::FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(fields: &str) -> Vec<String> {
        let front = Frontmatter::parse(&format!("---\n{fields}\n---\n\nText.\n")).unwrap();
        let mut all = problems(&front, "greeter");
        all.extend(unknown_fields(&front));
        all
    }

    #[test]
    fn what_the_format_asks_for_passes() {
        let all = "name: greeter\ndescription: Greets.\nlicense: MIT\ncompatibility: Linux\nmetadata:\n  author: me\n\
                   allowed-tools: Bash Read";
        assert_eq!(found(all), Vec::<String>::new());
        assert_eq!(found("name: greeter\ndescription: Greets."), Vec::<String>::new());
    }

    #[test]
    fn each_breach_is_told() {
        for (fields, said) in [
            ("description: a", "there is no `name`"),
            ("name: other\ndescription: a", "the directory is \"greeter\""),
            ("name: 3\ndescription: a", "which is no text"),
            ("name: greeter\ndescription: a\nlicense: 3", "`license` is 3"),
            ("name: greeter\ndescription: a\nallowed-tools: [Bash]", "`allowed-tools` is"),
            ("name: greeter\ndescription: a\nmetadata: 3", "`metadata` is 3"),
            ("name: greeter\ndescription: a\nmetadata:\n  version: 1.0", "`metadata.version` is 1.0"),
            ("name: greeter\ndescription: a\ncolour: red", "`colour` is no field"),
        ] {
            let all = found(fields);
            assert!(all.len() == 1 && all[0].contains(said), "{fields}: {all:?}");
        }
        let long =
            |field: &str, length: usize| found(&format!("name: greeter\n{field}: {}\nlicense: x", "a".repeat(length)));
        assert!(long("description", MAX_DESCRIPTION).is_empty());
        assert!(long("description", MAX_DESCRIPTION + 1)[0].contains("1025 characters"));
        let long =
            found(&format!("name: greeter\ndescription: a\ncompatibility: {}", "a".repeat(MAX_COMPATIBILITY + 1)));
        assert!(long[0].contains("501 characters"));
    }
}
