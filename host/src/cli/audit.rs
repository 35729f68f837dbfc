//! `audit`: what was done, and what was denied.

use clap::{Args, Subcommand};
use skillhost_api::caller::Caller;
use skillhost_api::error::Error;
use skillhost_api::io::CallOutput;
use skillhost_api::types::{AuditList, AuditRecord, Event, TailAudit};
use skillhost_api::units::show_time;
use skillhost_api::visible;

use super::app::{App, shown};
use super::failure::Ended;
use super::print;

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
            CallOutput::Event(Event::Audit(record)) => Some(match json {
                true => print::json_line(&record),
                false => print::text_line(&line(&record)),
            }),
            other => shown(other),
        };
        let mut list = AuditList::default();
        loop {
            let left = lines.saturating_sub(u32::try_from(list.records.len()).unwrap_or(u32::MAX));
            let before = list.records.first().map(|first| first.seq);
            let request = TailAudit { lines: left, before, follow };
            let page = app.call_with(request, None, &mut show).await?.typed;
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
    let AuditRecord { seq, at_ms, tenant, session, agent, skill, effect, outcome, detail, .. } = record;
    let caller = Caller { tenant: tenant.clone(), session: session.clone(), agent: agent.clone() };
    // Where nobody is named there is one caller alone, of whom there is nothing to tell apart.
    let mut by = if caller == Caller::default() { agent.clone() } else { caller.to_string() };
    if let Some(skill) = skill {
        by += &format!(" ({skill})");
    }
    format!("{seq} {} {by} {effect} {outcome} {detail}", show_time(*at_ms))
}
