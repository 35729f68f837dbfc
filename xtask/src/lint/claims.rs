//! Every numbered claim of `docs/security.md` names tests that are there: a claim that nothing would show to be false is none.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context as _, Result};

use super::{none, sources};
use crate::run::root;

const PAGE: &str = "docs/security.md";

pub(super) fn check() -> Result<()> {
    let page = fs::read_to_string(root().join(PAGE)).with_context(|| format!("{PAGE} cannot be read"))?;
    let mut tests = BTreeSet::new();
    for source in sources::find(root(), "rs")? {
        // `a/b.rs` and `a/b/mod.rs` are the module `b`, as in a test's own name.
        let path = source.path.with_extension("");
        let module = path.file_name().filter(|name| *name != "mod").or_else(|| path.parent()?.file_name());
        let Some(module) = module.and_then(|name| name.to_str()) else { continue };
        tests.extend(tests_of(&source.text).map(|test| format!("{module}::{test}")));
    }
    let problems = problems(&page, &tests);
    none(&problems.into_iter().map(|problem| format!("{PAGE}: {problem}")).collect::<Vec<_>>())
}

/// The names of the functions that are tests.
fn tests_of(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim).filter_map(move |line| {
        if line.starts_with("#[") || line.starts_with("//") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            return None;
        }
        let name = line.split_once("fn ").and_then(|(_, rest)| rest.split(['(', '<']).next());
        std::mem::take(&mut is_test).then_some(name).flatten()
    })
}

/// What is wrong with the claims: rows of a table, `| C1 | the claim | tests |`, numbered from 1.
fn problems(page: &str, tests: &BTreeSet<String>) -> Vec<String> {
    let mut problems = Vec::new();
    let claims = page.lines().filter_map(|line| line.strip_prefix("| C")).filter_map(|row| {
        let mut cells = row.split('|').map(str::trim);
        let number: usize = cells.next()?.parse().ok()?;
        Some((number, cells.nth(1).unwrap_or_default()))
    });
    let mut expected = 1;
    for (number, named) in claims {
        if number != expected {
            problems.push(format!("C{number} stands where C{expected} should"));
        }
        expected = number + 1;
        // What stands between marks of code: every second part.
        let named: Vec<_> = named.split('`').skip(1).step_by(2).collect();
        if named.is_empty() {
            problems.push(format!("C{number} names no test"));
        }
        let missing = named.into_iter().filter(|name| !tests.contains(*name));
        problems.extend(missing.map(|name| format!("C{number} names `{name}`, which is no test")));
    }
    if expected == 1 {
        problems.push("it has no claims".to_owned());
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_known_by_their_attribute() {
        let text = "#[test]\nfn one() {\n#[tokio::test(flavor = \"x\")]\n/// Says.\nasync fn two() {\nfn three() {}\nfn four() {}";
        assert_eq!(tests_of(text).collect::<Vec<_>>(), ["one", "two"]);
    }

    #[test]
    fn a_claim_without_a_test_that_is_there_is_a_problem() {
        let tests = BTreeSet::from(["a::one".to_owned()]);
        assert_eq!(problems("| C1 | It holds. | `a::one` |", &tests), [""; 0]);
        for (page, says) in [
            ("", "no claims"),
            ("| C1 | It holds. | |", "names no test"),
            ("| C1 | It holds. | `a::two` |", "`a::two`"),
            ("| C1 | It holds. | `a::one`, `b::one` |", "`b::one`"),
            ("| C2 | It holds. | `a::one` |", "C1 should"),
            ("| C1 | It holds. | `a::one` |\n| C1 | And so. | `a::one` |", "C2 should"),
        ] {
            let found = problems(page, &tests);
            assert!(found.len() == 1 && found[0].contains(says), "{page}: {found:?}");
        }
    }
}
