//! `build`: what a component loses on its way through a toolchain is put back.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::app::App;
use super::failure::Ended;
use crate::error::{Error, Result};
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
    /// The directory of the WIT that it was made from
    #[arg(long, value_name = "DIR")]
    wit: PathBuf,
    /// Where the skill's component goes
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
}

impl Build {
    pub(super) async fn run(self, app: &App) -> Ended {
        self.append()?;
        app.note(&format!("made {}", self.out.display())).await?;
        Ok(0)
    }

    fn append(&self) -> Result<()> {
        let component = read(&self.component)?;
        // What is no component is named as such before its documentation is looked for.
        describe(&component)?;
        let documented = Docs::from_wit(&self.wit, None)?.append(&component)?;
        std::fs::write(&self.out, documented)
            .map_err(|error| Error::from(error).context(format!("cannot write {}", self.out.display())))
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| Error::from(error).context(format!("cannot read the component {}", path.display()));
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(MAX_COMPONENT + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > MAX_COMPONENT {
        return Err(Error::too_large(format!(
            "{} is larger than the {MAX_COMPONENT} bytes that a component may have",
            path.display()
        )));
    }
    Ok(bytes)
}
