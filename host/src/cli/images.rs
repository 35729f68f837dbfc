//! `images`: the roles and their images.

use clap::{Args, Subcommand};

use super::app::App;
use super::failure::Ended;
use super::print::{self, table};
use crate::api::types::{ImageList, Request};
use crate::config::Config;
use crate::error::Result;
use crate::sandbox::backend::docker::Docker;
use crate::sandbox::image_build;
use crate::sandbox::images::Role;

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
            Verb::Build { roles } => return build(app, &roles).await,
        }
        Ok(0)
    }
}

/// Provides the images of `wanted`, or of every role. One that fails does not keep the others from being provided.
async fn build(app: &App, wanted: &[String]) -> Ended {
    let roles = Config::find(app.global.config()?.as_deref())?.roles()?;
    for problem in &roles.problems {
        app.note(problem).await?;
    }
    let wanted: Vec<&Role> = match wanted {
        [] => roles.iter().collect(),
        named => named.iter().map(|name| roles.require(name)).collect::<Result<_>>()?,
    };
    let engine = Docker::from_env();
    let mut failed = None;
    for role in wanted {
        let provided = {
            let mut progress = |step: &str| eprintln!("{}: {}", role.name, print::clean(step));
            image_build::ensure(engine.api().await?, &role.image, role.debian.as_ref(), &mut progress).await
        };
        match provided {
            Ok(provided) => app.note(&format!("{}: {provided}", role.name)).await?,
            Err(error) => {
                if let Some(earlier) = failed.replace(error.context(format!("role `{}`", role.name))) {
                    app.note(&earlier.message).await?;
                }
            }
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None => Ok(0),
    }
}
