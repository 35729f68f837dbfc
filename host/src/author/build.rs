//! From what a toolchain made to a skill's component: made a component where it is a core module, compared with the WIT,
//! documented, and put in its place.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use skillhost_api::error::{Error, Result};

use super::componentize::component;
use super::language::Language;
use super::languages;
use super::project::SkillProject;
use super::write::replace;
use crate::skills::{MAX_COMPONENT, WitSource, describe};

/// A component that was put in its place.
#[derive(Debug)]
pub struct Built {
    /// Its file.
    pub file: PathBuf,
    /// How many comments of the WIT it has.
    pub comments: usize,
    /// Whether the file is another than before.
    pub changed: bool,
}

/// Builds the skill of `project` with its language's own tool. Its world is the one named, or the only one.
pub fn build(project: &SkillProject, world: Option<&str>) -> Result<Built> {
    let wit = project.wit(world)?;
    check_comments(&wit)?;
    let language = Language::of(project.dir())?;
    let made = languages::build(language, project, &wit)?;
    put(made, &wit, &project.component())
}

/// Takes the component or core module that another tool made of the WIT at `wit`, and puts the skill's component at `to`.
pub fn take(made: &Path, wit: &Path, world: Option<&str>, to: &Path) -> Result<Built> {
    let bytes = read(made)?;
    let wit = WitSource::read(wit, world)?;
    check_comments(&wit)?;
    put(bytes, &wit, to).map_err(|error| error.context(made.display()))
}

fn check_comments(wit: &WitSource) -> Result<()> {
    all(wit.stray_items())
}

fn put(made: Vec<u8>, wit: &WitSource, to: &Path) -> Result<Built> {
    let component = component(made, wit)?;
    // What is no component is named as such before its documentation is looked for.
    describe(&component)?;
    let docs = wit.docs();
    let documented = docs.append(&component)?;
    all(wit.differences(&describe(&documented)?)?).map_err(|error| {
        Error::invalid_argument(format!(
            "the component was not built from this WIT, but from an older one or another skill's: build it again, from this \
             one.\n{}",
            error.message
        ))
    })?;
    let changed = replace(to, &documented)?;
    if !changed {
        // It is as young as its sources.
        let _ = File::options().append(true).open(to).and_then(|file| file.set_modified(SystemTime::now()));
    }
    Ok(Built { file: to.to_owned(), comments: docs.len(), changed })
}

/// All problems in one error; none is no error.
fn all(problems: Vec<String>) -> Result<()> {
    if problems.is_empty() { Ok(()) } else { Err(Error::invalid_argument(problems.join("\n"))) }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let read = || {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_COMPONENT + 1).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().map_err(|error| Error::of_file(error).context(path.display()))?;
    if bytes.len() as u64 > MAX_COMPONENT {
        return Err(Error::too_large(format!("{} has more than {MAX_COMPONENT} bytes", path.display())));
    }
    Ok(bytes)
}
