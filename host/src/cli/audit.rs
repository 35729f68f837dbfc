//! `audit`: what was done, and what was denied.

use clap::{Args, Subcommand};

use super::app::{App, shown};
use super::failure::Ended;
use super::print;
use crate::api::types::{AuditList, AuditRecord, Event, Request};
use crate::host::Output;
use crate::units::show_time;

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
            Output::Event(Event::Audit(record)) => Some(Output::Stdout(match json {
                true => serde_json::to_string(&record).map(|record| format!("{record}\n")).unwrap_or_default().into(),
                false => print::clean(&format!("{}\n", line(&record))).into(),
            })),
            other => shown(other),
        };
        let answer = app.call_with::<AuditList>(Request::AuditTail { lines, follow }, None, &mut show).await?;
        app.answer(&answer, |list| list.records.iter().map(|record| line(record) + "\n").collect()).await?;
        Ok(0)
    }
}

fn line(record: &AuditRecord) -> String {
    let by = match &record.skill {
        Some(skill) => format!("{} ({skill})", record.agent),
        None => record.agent.clone(),
    };
    format!("{} {} {by} {} {} {}", record.seq, show_time(record.at_ms), record.effect, record.outcome, record.detail)
        .replace('\n', " ")
}
