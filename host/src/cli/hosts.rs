//! `hosts`: those that work as one.

use clap::Args;
use skillhost_api::types::{HostList, HostSummary, ListHosts};
use skillhost_api::units::show_time;

use super::app::App;
use super::failure::Ended;
use super::print::table;

/// Lists the hosts that work as one with this one
#[derive(Debug, Args)]
#[command(after_help = "\
They are those of `[cluster]` in skillhost.toml. A host says every two seconds that it is there, and how it does; one that has not been
heard of for ten seconds is not listed. `*` is the one that answers. SESSIONS are those that a host was asked for since it started,
and is the home of.

Examples:
  skillhost hosts
  skillhost hosts --output json")]
pub(super) struct Hosts {}

impl Hosts {
    pub(super) async fn run(self, app: &App) -> Ended {
        let answer = app.call(ListHosts).await?;
        app.answer(&answer, list).await?;
        Ok(0)
    }
}

fn list(list: &HostList) -> String {
    table(
        ["NAME", "STATE", "SESSIONS", "SANDBOXES", "CORES", "VERSION", "SINCE", "ID"],
        list.hosts.iter().map(|host| {
            [
                format!("{}{}", host.name, if host.this { "*" } else { "" }),
                state(host).into(),
                host.sessions.to_string(),
                host.sandboxes.to_string(),
                host.cores.to_string(),
                host.version.clone(),
                show_time(host.started_at_ms),
                host.id.clone(),
            ]
        }),
    )
}

fn state(host: &HostSummary) -> &'static str {
    if host.accepts_sessions { "in use" } else { "door" }
}
