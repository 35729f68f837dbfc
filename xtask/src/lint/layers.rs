//! The layers of `host/src` only ever look down.
//!
//! [`LAYERS`] is the order, lowest first: a file may name what stands before its own line, and its own. What two layers
//! on one line share is no layer's business. Tests may look anywhere.

use std::path::Path;

use anyhow::Result;

use super::sources::Source;
use super::{none, sources};
use crate::run::root;

/// The layers, lowest first; those on one line may not name each other. A path with `::` goes before its parent.
const LAYERS: &[&[&str]] = &[
    // How values are shortened; how digests are written; how descriptors are waited for.
    &["digest", "json", "watched"],
    &["paths"],
    &["project", "ids", "apart", "beneath", "private", "stamp"],
    // What limits there are, and what is kept.
    &["engine::limits", "broker::quota", "db"],
    // What skills are; where commands run; what agents share.
    &["skills", "sandbox", "blackboard"],
    &["config"],
    // The one service through which every effect passes, and the imports that call it.
    &["broker"],
    &["capabilities"],
    &["engine"],
    // The one door, and the process and socket that it is reached by.
    &["host"],
    &["process"],
    // What turns what arrives into a call: the protocol, what carries it over HTTP, and the command line that starts both.
    &["mcp"],
    &["web"],
    &["cli"],
];

pub(super) fn check() -> Result<()> {
    let mut problems = Vec::new();
    for source in sources::find(&root().join("host/src"), "rs")? {
        // They declare the layers.
        if ["lib.rs", "main.rs"].iter().any(|name| source.path == Path::new(name)) {
            continue;
        }
        problems.extend(upward(&source));
    }
    none(&problems)
}

/// What `source` names that is above it.
fn upward(source: &Source) -> Vec<String> {
    let own = module(&source.path);
    let shown = source.path.display();
    let Some((rank, layer)) = place(&own) else {
        return vec![format!("host/src/{shown}: `{own}` is in no layer; give it a place in xtask/src/lint/layers.rs")];
    };
    let mut found = Vec::new();
    for (at, line) in source.text.lines().enumerate() {
        if line.trim() == "#[cfg(test)]" && source.text.lines().nth(at + 1).is_some_and(|next| next.contains("mod ")) {
            break;
        }
        if line.trim_start().starts_with("//") {
            continue;
        }
        for named in named(line) {
            let Some((other_rank, other)) = place(&named) else { continue };
            if other_rank > rank || (other_rank == rank && other != layer) {
                found.push(format!("host/src/{shown}:{}: `{layer}` names `{other}`, which is not beneath it", at + 1));
            }
        }
    }
    found
}

/// The module of a file: `engine/limits.rs` is `engine::limits`, `engine/mod.rs` is `engine`.
fn module(path: &Path) -> String {
    let parts: Vec<String> = path.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.into_iter().filter(|part| part != "mod").collect::<Vec<_>>().join("::")
}

/// Which line of the layers a path is of, and by which of its names.
fn place(path: &str) -> Option<(usize, &'static str)> {
    let is_of = |layer: &str| path == layer || path.strip_prefix(layer).is_some_and(|rest| rest.starts_with("::"));
    let mut places =
        LAYERS.iter().enumerate().flat_map(|(rank, layers)| layers.iter().map(move |layer| (rank, *layer)));
    // The longest name wins: `engine::limits` is not just of `engine`.
    let mut best: Option<(usize, &'static str)> = None;
    for (rank, layer) in places.by_ref().filter(|(_, layer)| is_of(layer)) {
        if best.is_none_or(|(_, so_far)| layer.len() > so_far.len()) {
            best = Some((rank, layer));
        }
    }
    best
}

/// The paths beneath `crate::` that a line names, such as `engine::limits`, without what is imported from them.
fn named(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (_, rest) in
        line.match_indices("crate::").map(|(at, word)| (at, line.get(at + word.len()..).unwrap_or_default()))
    {
        if let Some(group) = rest.strip_prefix('{') {
            // `crate::{a, b::c}`: groups are flat in this workspace, rustfmt keeps them on a line.
            let group = group.split('}').next().unwrap_or_default();
            found.extend(group.split(',').map(|item| path(item.trim())));
        } else {
            found.push(path(rest));
        }
    }
    found
}

/// The part of `text` that is a path.
fn path(text: &str) -> String {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(text.len());
    text.get(..end).unwrap_or_default().trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(path: &str, text: &str) -> Vec<String> {
        upward(&Source { path: path.into(), text: text.into() })
    }

    #[test]
    fn looking_down_is_fine() {
        assert_eq!(looked("broker/mod.rs", "use crate::sandbox::spec::X;\nuse crate::{paths::P, db::Y};\n"), [""; 0]);
        assert_eq!(looked("broker/grants.rs", "use crate::broker::Z;"), [""; 0]);
    }

    #[test]
    fn looking_up_or_aside_is_named_with_its_line() {
        assert_eq!(
            looked("sandbox/mod.rs", "use crate::paths::P;\nuse crate::broker::Broker;\n"),
            ["host/src/sandbox/mod.rs:2: `sandbox` names `broker`, which is not beneath it"]
        );
        assert_eq!(
            looked("blackboard/mod.rs", "fn f(x: crate::sandbox::Id, y: crate::{paths::P, host::H}) {}").len(),
            2
        );
    }

    #[test]
    fn what_goes_before_its_parent_may_be_named_from_beneath_the_parent() {
        assert_eq!(looked("db.rs", "use crate::engine::Engine;").len(), 1);
        assert_eq!(looked("skills.rs", "use crate::engine::limits::Limits;"), [""; 0]);
        assert_eq!(looked("skills.rs", "use crate::engine;").len(), 1);
    }

    #[test]
    fn a_module_without_a_place_is_named() {
        assert!(looked("newcomer/mod.rs", "")[0].contains("is in no layer"));
    }

    #[test]
    fn tests_and_comments_may_name_anything() {
        let text = "// crate::cli\n/// [`crate::cli`]\n#[cfg(test)]\nmod tests {\n    use crate::cli::X;\n}\n";
        assert_eq!(looked("db.rs", text), [""; 0]);
    }
}
