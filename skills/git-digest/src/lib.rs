//! Says what changed between two revisions of a repository: copied into a sandbox, read there by git, summed up here.
//!
//! Git only says what each file and commit is; sums, order and bounds are plain code with tests, which run natively. What
//! it says is checked: a repository is a stranger's, and so is the sandbox that has read it.

mod component {
    #![allow(unsafe_code, reason = "generated: here values cross into and out of the component")]
    skillhost_guest::bindings!("git-digest": files, log, sandbox, types);
    export!(GitDigest);
    use super::GitDigest;
}
mod counts;
mod digest;
mod files;
mod history;
mod records;

use component::exports::skillhost::git_digest::changes::{Guest, Problem, Summary, Totals};
use digest::Asked;

const LIMIT: u32 = 50;
const LIMIT_AT_MOST: u32 = 500;
/// No name of a revision that somebody means is longer.
const REVISION_AT_MOST: usize = 500;

struct GitDigest;

impl Guest for GitDigest {
    fn digest(
        base: String,
        target: Option<String>,
        repository: Option<String>,
        limit: Option<u32>,
    ) -> Result<Summary, Problem> {
        let limit = limit.unwrap_or(LIMIT);
        if !(1..=LIMIT_AT_MOST).contains(&limit) {
            let what = format!("`limit` is {limit}; it can be 1 to {LIMIT_AT_MOST}");
            return Err(Problem::InvalidArgument(what));
        }
        let target = target.unwrap_or_else(|| "HEAD".to_owned());
        revision("base", &base)?;
        revision("target", &target)?;
        let repository = repository.unwrap_or_else(|| ".".to_owned());
        digest::digest(Asked { repository, base, target, limit: limit as usize })
    }
}

/// Refuses what git could take for an option, or for more than one revision.
fn revision(name: &str, asked: &str) -> Result<(), Problem> {
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if asked.is_empty() || asked.len() > REVISION_AT_MOST || asked.starts_with(['-', '^']) || asked.contains(odd) {
        let shown: String = asked.chars().take(80).collect();
        return Err(Problem::InvalidArgument(format!(
            "`{name}` is {shown:?}; give a revision such as a branch, a tag, a commit or `HEAD~10`"
        )));
    }
    Ok(())
}

/// Sums of nothing.
fn no_totals() -> Totals {
    Totals {
        commits: 0,
        authors: 0,
        files: 0,
        files_added: 0,
        files_deleted: 0,
        files_renamed: 0,
        files_binary: 0,
        added: 0,
        removed: 0,
        bytes_before: 0,
        bytes_after: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::revision;

    #[test]
    fn what_is_no_revision_is_refused() {
        for good in ["HEAD", "HEAD~10", "v1.2", "feature/x", "HEAD@{0}", "a^2"] {
            assert!(revision("base", good).is_ok(), "{good}");
        }
        for bad in ["", "--output=/tmp/x", "-p", "^HEAD", "a b", "a\nb", "a\0b", &"x".repeat(501)] {
            assert!(revision("base", bad).is_err(), "{bad}");
        }
    }
}
