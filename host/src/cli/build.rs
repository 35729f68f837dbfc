//! `build`: what a component loses on its way through a toolchain is put back.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use skillhost_api::error::{Error, Result};

use super::app::App;
use super::failure::Ended;
use crate::skills::docs::Docs;
use crate::skills::{MAX_COMPONENT, describe};

/// Puts the documentation of a skill's WIT into its component, which toolchains strip
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  skillhost build --component target/wasm32-wasip2/release/hello.wasm --wit wit -o hello.wasm")]
pub(super) struct Build {
    /// The component, as the toolchain made it
    #[arg(long, value_name = "FILE")]
    component: PathBuf,
    /// The WIT that it was made from: a directory with its deps/, or a file
    #[arg(long, value_name = "DIR")]
    wit: PathBuf,
    /// The world that it was made for [default: the only one]
    #[arg(long)]
    world: Option<String>,
    /// Where the skill's component goes; it may be the component itself
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

impl Build {
    pub(super) async fn run(self, app: &App) -> Ended {
        let component = read(&self.component)?;
        // What is no component is named as such before its documentation is looked for.
        describe(&component).map_err(|error| error.context(self.component.display()))?;
        let docs = Docs::from_wit(&self.wit, self.world.as_deref())?;
        let documented = docs.append(&component).map_err(|error| error.context(self.component.display()))?;
        replace(&self.out, &documented).map_err(|error| error.context(self.out.display()))?;
        app.note(&format!("made {} with {} comments of {}", self.out.display(), docs.len(), self.wit.display()))
            .await?;
        Ok(0)
    }
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

/// Whoever loads it meanwhile finds the old one or the new one, never a part.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Like any file that a toolchain makes, it is the umask that says who reads it.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    let mut file = tempfile::Builder::new().prefix(".skillhost-").permissions(mode).tempfile_in(parent)?;
    file.write_all(bytes)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
