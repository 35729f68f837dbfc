//! Roles: the labels under which an operator lists images, read from `sandbox-images.toml`.
//!
//! Nobody ever names a raw image: a role is all that a skill or an agent can say, and an unknown one is refused before
//! the engine hears of it. One bad entry never hides the others: it is skipped and reported with its place. A file that
//! is not TOML, or holds something else than `[[images]]`, is an error as a whole, since nothing in it can be trusted
//! to mean what was meant.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::image_build::DebianRecipe;
use crate::error::{Error, Result};

/// The roles that skillhost ships with.
const SHIPPED: &str = include_str!("../../../sandbox-images.toml");
/// How the shipped file is called in messages.
const SHIPPED_NAME: &str = "sandbox-images.toml (built in)";
/// The most characters of a role's name.
const MAX_ROLE_NAME: usize = 64;

/// One role.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Role {
    /// Its name.
    #[serde(rename = "role")]
    pub name: String,
    /// The image's reference; in production with a digest.
    pub image: String,
    /// What it holds, for who chooses.
    #[serde(default)]
    pub description: String,
    /// The engine's runtime for it (gVisor, Kata); absent is the engine's default.
    #[serde(default)]
    pub runtime: Option<String>,
    /// Whether a local sandbox, which has this machine's own programs, can stand in for the image.
    #[serde(default)]
    pub local: bool,
    /// How to build the image where no registry answers.
    #[serde(default)]
    pub debian: Option<DebianRecipe>,
}

/// The roles of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roles {
    by_name: BTreeMap<String, Role>,
    /// Entries that were skipped, each with its place and reason.
    pub problems: Vec<String>,
}

impl Roles {
    /// The roles that are built in.
    pub fn shipped() -> Result<Self> {
        Self::parse(SHIPPED, SHIPPED_NAME)
    }

    /// The operator's roles.
    pub fn load(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::from(error).context(format!("cannot read the roles' file {shown}")))?;
        Self::parse(&text, &shown)
    }

    /// Reads roles from `text`, which messages call `name`.
    pub fn parse(text: &str, name: &str) -> Result<Self> {
        let whole = |message: String, at: Option<usize>| {
            Error::invalid_argument(format!("{}: {message}", place(text, name, at.unwrap_or_default())))
        };
        let document =
            DeTable::parse(text).map_err(|error| whole(error.message().to_owned(), error.span().map(|s| s.start)))?;
        let mut entries = Vec::new();
        for (key, value) in document.into_inner() {
            let at = value.span().start;
            match (key.get_ref().as_ref(), value.into_inner()) {
                ("images", DeValue::Array(array)) => entries = array.into_iter().collect(),
                ("images", _) => return Err(whole("`images` must be written as `[[images]]`".into(), Some(at))),
                (other, _) => {
                    let message = format!("unknown key `{other}`: a roles' file holds `[[images]]` entries only");
                    return Err(whole(message, Some(key.span().start)));
                }
            }
        }
        let mut roles = Self::default();
        for entry in entries {
            let start = entry.span().start;
            if let Err((message, at)) = roles.add(entry) {
                roles.problems.push(format!("{}: skipped: {message}", place(text, name, at.unwrap_or(start))));
            }
        }
        Ok(roles)
    }

    fn add(&mut self, entry: Spanned<DeValue<'_>>) -> Result<(), (String, Option<usize>)> {
        let role = Role::deserialize(ValueDeserializer::from(entry))
            .map_err(|error| (error.message().trim_end().to_owned(), error.span().map(|span| span.start)))?;
        role.check().map_err(|message| (message, None))?;
        if self.by_name.contains_key(&role.name) {
            return Err((format!("the role `{}` is listed already; the first entry holds", role.name), None));
        }
        self.by_name.insert(role.name.clone(), role);
        Ok(())
    }

    /// The role of this name, if it is listed.
    pub fn get(&self, name: &str) -> Option<&Role> {
        self.by_name.get(name)
    }

    /// The role of this name, or the error that says which there are.
    pub fn require(&self, name: &str) -> Result<&Role> {
        self.get(name).ok_or_else(|| {
            let known = self.by_name.keys().map(|role| format!("`{role}`")).collect::<Vec<_>>();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Error::not_found(format!("there is no role {name:?}; the registered roles are: {known}"))
        })
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Role> {
        self.by_name.values()
    }
}

impl Role {
    /// Refuses what could be taken for something else further down: an option of a program, a path, two words.
    fn check(&self) -> Result<(), String> {
        let word = |text: &str, also: &str| {
            text.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
                && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || also.contains(c))
        };
        if self.name.len() > MAX_ROLE_NAME || !word(&self.name, "._-") {
            return Err(format!(
                "the role's name {:?} is not usable: 1 to {MAX_ROLE_NAME} of a-z, 0-9, `.`, `_`, `-`, the first a letter or digit",
                self.name
            ));
        }
        let plain =
            |text: &str| !text.is_empty() && !text.starts_with('-') && text.chars().all(|c| c.is_ascii_graphic());
        if !plain(&self.image) {
            return Err(format!("the image {:?} of role `{}` is no image reference", self.image, self.name));
        }
        if self.runtime.as_deref().is_some_and(|runtime| !plain(runtime)) {
            return Err(format!("the runtime of role `{}` is no runtime's name", self.name));
        }
        match &self.debian {
            Some(recipe) => recipe.check().map_err(|error| format!("role `{}`: {error}", self.name)),
            None => Ok(()),
        }
    }
}

/// `name:line` of a byte offset.
fn place(text: &str, name: &str, at: usize) -> String {
    let line = text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
    format!("{name}:{line}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const GOOD: &str = r#"
[[images]]
role = "default"
image = "skillhost/default:1"
description = "Python and a shell"

[images.debian]
suite = "bookworm"
packages = ["python3", "g++"]
"#;

    #[test]
    fn shipped_roles_load_without_a_problem() {
        let roles = Roles::shipped().unwrap();
        assert_eq!(roles.problems, Vec::<String>::new());
        assert!(roles.get("default").is_some());
    }

    #[test]
    fn a_whole_entry_is_read() {
        let roles = Roles::parse(GOOD, "f").unwrap();
        let role = roles.require("default").unwrap();
        assert_eq!(role.image, "skillhost/default:1");
        assert_eq!(role.runtime, None);
        assert_eq!(role.debian.as_ref().unwrap().packages, ["python3", "g++"]);
    }

    #[test]
    fn bad_entries_are_skipped_with_their_line_and_the_rest_loads() {
        let text = r#"
[[images]]
role = "first"
image = "a"
colour = "red"

[[images]]
role = "second"

[[images]]
role = "third"
image = "b"

[[images]]
role = "third"
image = "c"

[[images]]
role = "Fourth"
image = "d"

[[images]]
role = "fifth"
image = "--privileged"

[[images]]
role = 6
image = "e"

[[images]]
role = "seventh"
image = "f"
[images.debian]
suite = "bookworm"
packages = ["--include"]
"#;
        let roles = Roles::parse(text, "roles.toml").unwrap();
        assert_eq!(roles.iter().map(|role| role.name.as_str()).collect::<Vec<_>>(), ["third"]);
        assert_eq!(roles.get("third").unwrap().image, "b");
        let problems = &roles.problems;
        for (problem, (line, says)) in problems.iter().zip([
            (5, "colour"),
            (7, "image"),
            (14, "third"),
            (18, "Fourth"),
            (22, "--privileged"),
            (27, "string"),
            (30, "--include"),
        ]) {
            assert!(problem.starts_with(&format!("roles.toml:{line}: ")), "{problem} should be of line {line}");
            assert!(problem.contains(says), "{problem} should say {says}");
        }
        assert_eq!(problems.len(), 7, "{problems:#?}");
    }

    #[test]
    fn a_file_that_is_something_else_is_an_error_with_its_line() {
        for (text, line, says) in
            [("\n[[images]\n", 2, ""), ("\n\n[image]\nrole = 'x'\n", 3, "image"), ("images = 3\n", 1, "[[images]]")]
        {
            let error = Roles::parse(text, "roles.toml").unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidArgument);
            assert!(error.message.starts_with(&format!("roles.toml:{line}: ")), "{error}");
            assert!(error.message.contains(says), "{error}");
        }
    }

    #[test]
    fn an_unknown_role_is_told_which_there_are() {
        let error = Roles::parse(GOOD, "f").unwrap().require("defualt").unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.message.contains("`default`"), "{error}");
    }
}
