//! `blackboard`: values that the agents of a session share.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::app::App;
use super::failure::Ended;
use super::feed;
use super::print::table;
use super::skills::plain;
use crate::api::types::{BlackboardEntry, BlackboardList, Request};
use crate::error::Error;
use crate::units::show_time;

/// Reads and writes the values that the agents of a session share
#[derive(Debug, Args)]
pub(super) struct Blackboard {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Prints one value
    #[command(after_help = "Example:\n  skillhost blackboard get stats:summary")]
    Get {
        /// The key
        key: String,
    },
    /// Lists keys and values
    #[command(after_help = "\
* matches within a part of a key, ** across the colons between parts.

Example:
  skillhost blackboard list 'stats:*'")]
    List {
        /// Only keys that match
        #[arg(default_value = "", hide_default_value = true)]
        pattern: String,
    },
    /// Writes one value
    #[command(after_help = "\
Examples:
  skillhost blackboard publish stats:note '\"looks good\"'
  skillhost blackboard publish stats:summary @summary.json")]
    Publish {
        /// The key
        key: String,
        /// The value as JSON; @FILE reads it from a file, - from standard input
        #[arg(value_name = "JSON|@FILE|-")]
        value: String,
    },
}

impl Blackboard {
    pub(super) async fn run(self, app: &App) -> Ended {
        match self.verb {
            Verb::Get { key } => {
                let answer = app.call::<BlackboardEntry>(Request::BlackboardGet { key }).await?;
                app.answer(&answer, |entry| plain(&entry.value)).await?;
            }
            Verb::List { pattern } => {
                let answer = app.call::<BlackboardList>(Request::BlackboardList { pattern }).await?;
                app.answer(&answer, |list| {
                    table(
                        ["KEY", "VERSION", "UPDATED", "BY", "VALUE"],
                        list.entries.iter().map(|entry| {
                            [
                                entry.key.clone(),
                                entry.version.to_string(),
                                show_time(entry.updated_at_ms),
                                entry.updated_by.clone(),
                                entry.value.to_string(),
                            ]
                        }),
                    )
                })
                .await?;
            }
            Verb::Publish { key, value } => {
                let text = feed::text(value).await?;
                let value: Value = serde_json::from_str(&text).map_err(|error| {
                    Error::invalid_argument(format!(
                        "the value is not JSON ({error}); a text needs its quotes: '\"text\"'"
                    ))
                })?;
                let answer = app.call::<BlackboardEntry>(Request::BlackboardPublish { key, value }).await?;
                app.answer(&answer, |entry| format!("{} version {}", entry.key, entry.version)).await?;
            }
        }
        Ok(0)
    }
}
