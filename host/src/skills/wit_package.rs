//! The WIT package of the interfaces that skills import, as this program carries it.

use skillhost_api::error::{Error, Result};
use wit_parser::{PackageId, Resolve, SourceMap};

/// Its files, by name.
pub const WIT_FILES: [(&str, &str); 7] = [
    ("blackboard.wit", include_str!("../../../wit/blackboard.wit")),
    ("files.wit", include_str!("../../../wit/files.wit")),
    ("log.wit", include_str!("../../../wit/log.wit")),
    ("sandbox.wit", include_str!("../../../wit/sandbox.wit")),
    ("scripts.wit", include_str!("../../../wit/scripts.wit")),
    ("types.wit", include_str!("../../../wit/types.wit")),
    ("worlds.wit", include_str!("../../../wit/worlds.wit")),
];

/// The package, read.
pub fn read() -> Result<(Resolve, PackageId)> {
    let fail = |error: &dyn std::fmt::Display| Error::other(format!("the WIT in this program cannot be read: {error}"));
    let mut sources = SourceMap::new();
    for (name, text) in WIT_FILES {
        sources.push_str(name, text);
    }
    let parsed = sources.parse().map_err(|(_, error)| fail(&error))?;
    let mut resolve = Resolve::default();
    let package = resolve.push_group(parsed).map_err(|error| fail(&error))?;
    Ok((resolve, package))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_package_is_carried() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../wit");
        let mut files: Vec<_> =
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        files.sort();
        assert_eq!(files, WIT_FILES.map(|(name, _)| name));
        let (resolve, package) = read().unwrap();
        assert!(resolve.select_world(&[package], Some("everything")).is_ok());
    }
}
