//! `audit`: what was done, and what was denied.

use clap::{Args, Subcommand};

use super::app::{App, shown};
use super::failure::Ended;
use super::print;
use crate::api::types::{AuditList, AuditRecord, Event, Request};
use crate::error::Error;
use crate::host::Output;
use crate::units::show_time;
use crate::visible;

/// Shows what was done, and what was denied
#[derive(Debug, Args)]
pub(super) struct Audit {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Shows the last records
    #[command(after_help = "\
With --follow, --output json prints one record a line.

Example:
  skillhost audit tail -n 20 --follow")]
    Tail {
        /// How many
        #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
        lines: u32,
        /// Go on as records come, until Ctrl-C
        #[arg(short, long)]
        follow: bool,
    },
}

impl Audit {
    pub(super) async fn run(self, app: &App) -> Ended {
        let Verb::Tail { lines, follow } = self.verb;
        let json = app.json();
        let mut show = move |output| match output {
            Output::Event(Event::Audit(record)) => Some(match json {
                true => print::json_line(&record),
                false => print::text_line(&line(&record)),
            }),
            other => shown(other),
        };
        let mut list = AuditList::default();
        loop {
            let left = lines.saturating_sub(u32::try_from(list.records.len()).unwrap_or(u32::MAX));
            let before = list.records.first().map(|first| first.seq);
            let request = Request::AuditTail { lines: left, before, follow };
            let page = app.call_with::<AuditList>(request, None, &mut show).await?.typed;
            list.records.splice(0..0, page.records);
            if !page.more {
                break;
            }
        }
        match json {
            true => {
                app.print_json(&serde_json::to_value(&list).map_err(|error| Error::other(error.to_string()))?).await?
            }
            false => {
                app.print_text(list.records.iter().map(|record| visible::line(&line(record)) + "\n").collect()).await?
            }
        }
        Ok(0)
    }
}

fn line(record: &AuditRecord) -> String {
    let by = match &record.skill {
        Some(skill) => format!("{} ({skill})", record.agent),
        None => record.agent.clone(),
    };
    format!("{} {} {by} {} {} {}", record.seq, show_time(record.at_ms), record.effect, record.outcome, record.detail)
}
