//! `images`: the roles and their images.

use clap::{Args, Subcommand};

use super::app::App;
use super::failure::Ended;
use super::print::table;
use crate::api::types::{ImageList, Request};
use crate::error::{Error, Result};

/// Lists the images of the roles, and makes those that are missing
#[derive(Debug, Args)]
pub(super) struct Images {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Lists the roles and whether their images are present
    #[command(after_help = "Example:\n  skillhost images list")]
    List,
    /// Makes the images that are missing: pulls them, or builds them from packages where no registry has them
    #[command(after_help = "\
It runs in this process, not in the host process, since it may need to ask for your rights.

Example:
  skillhost images build
  skillhost images build default")]
    Build {
        /// Only these roles
        #[arg(value_name = "ROLE")]
        roles: Vec<String>,
    },
}

impl Images {
    pub(super) async fn run(self, app: &App) -> Ended {
        match self.verb {
            Verb::List => {
                let answer = app.call::<ImageList>(Request::ListImages).await?;
                if !app.json() {
                    for problem in &answer.typed.problems {
                        app.note(problem).await?;
                    }
                }
                app.answer(&answer, |list| {
                    table(
                        ["ROLE", "IMAGE", "PRESENT", "DESCRIPTION"],
                        list.images.iter().map(|image| {
                            let present = if image.present { "yes" } else { "no" };
                            [image.role.clone(), image.image.clone(), present.into(), image.description.clone()]
                        }),
                    )
                })
                .await?;
            }
            Verb::Build { roles } => build(app, &roles).await?,
        }
        Ok(0)
    }
}

async fn build(_app: &App, _roles: &[String]) -> Result<()> {
    Err(Error::unavailable("images cannot be built by this version yet"))
}
