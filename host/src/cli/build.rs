//! `build`: what a component loses on its way through a toolchain is put back.

use std::path::PathBuf;

use clap::Args;

use super::app::App;
use super::failure::Ended;
use crate::error::{Error, Result};

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
        Err(Error::unavailable(format!("{} cannot be documented by this version yet", self.component.display())))
    }
}
