//! `images`: the roles and their images.

use clap::{Args, Subcommand};
use serde_json::json;
use tokio::sync::mpsc;

use super::app::App;
use super::failure::{Ended, Failure};
use super::print::{self, table};
use crate::api::types::{ImageList, Request};
use crate::config::Config;
use crate::error::Result;
use crate::sandbox::backend::docker::Docker;
use crate::sandbox::image_build::{self, Provided};
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
It runs in this process, not in the host process, with your own rights, which building may need.

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
    let (mut provided, mut failed) = (Vec::new(), None);
    for role in wanted {
        match provide(app, &engine, role).await? {
            Ok(how) => {
                if !app.json() {
                    app.print_text(format!("{}: {how}", role.name)).await?;
                }
                provided.push(json!({ "role": role.name, "image": role.image, "provided": how.to_string() }));
            }
            Err(error) => {
                if let Some(earlier) = failed.replace(error.context(format!("role `{}`", role.name))) {
                    app.note(&earlier.message).await?;
                }
            }
        }
    }
    match failed {
        Some(error) => Err(error.into()),
        None if app.json() => {
            app.print_json(&json!({ "images": provided })).await?;
            Ok(0)
        }
        None => Ok(0),
    }
}

/// Provides one image, and says what is being done where somebody watches.
async fn provide(app: &App, engine: &Docker, role: &Role) -> Result<Result<Provided>, Failure> {
    // A build is not held up by who reads of it; and its steps are few.
    let (lines, mut said) = mpsc::unbounded_channel::<String>();
    let name = role.name.clone();
    let building = async {
        let mut progress = move |line: &str| drop(lines.send(format!("{name}: {line}")));
        image_build::ensure(engine.api().await?, &role.image, role.debian.as_ref(), &mut progress).await
    };
    let saying = async {
        while let Some(line) = said.recv().await {
            if print::stderr_is_terminal() {
                app.note(&line).await?;
            }
        }
        Ok::<_, Failure>(())
    };
    let (provided, said) = tokio::join!(building, saying);
    said?;
    Ok(provided)
}
