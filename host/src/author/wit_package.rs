//! Writing the WIT package that skills import, which is always that of the host.

use std::path::Path;

use skillhost_api::error::Result;

use super::write::replace;
use crate::skills::wit_package::WIT_FILES;

/// Where it belongs beneath a skill's `wit/`.
pub const DIRECTORY: &str = "deps/skillhost-skill";

/// Writes the files into `dir`, over those of another version. Says whether anything changed.
pub fn write(dir: &Path) -> Result<bool> {
    let mut changed = false;
    for (name, text) in WIT_FILES {
        changed |= replace(&dir.join(name), text.as_bytes())?;
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_a_package_that_replaces_an_older_one() {
        let temp = tempfile::tempdir().unwrap();
        assert!(write(temp.path()).unwrap());
        assert!(!write(temp.path()).unwrap(), "what is the same is left alone");
        std::fs::write(temp.path().join("types.wit"), "old").unwrap();
        assert!(write(temp.path()).unwrap());
        wit_parser::Resolve::default().push_dir(temp.path()).unwrap();
    }
}
