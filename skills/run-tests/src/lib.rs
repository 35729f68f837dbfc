//! Finds how a project runs its tests, has a sandbox run them, and says what failed and where.
//!
//! The sandbox only runs the command; finding it and understanding what it says is plain code with tests, which run
//! natively. What it says is a stranger's: counted and collected within bounds, and never trusted to end.

mod commands;
mod component {
    #![allow(unsafe_code, reason = "generated: here values cross into and out of the component")]
    skillhost_guest::bindings!("run-tests": files, log, sandbox, types);
    export!(RunTests);
    use super::RunTests;
}
mod detect;
mod gotest;
mod libtest;
mod output;
mod pytest;
mod running;
mod summary;
mod tally;
mod tap;

use std::time::Duration;

use component::exports::skillhost::run_tests::tests::{Guest, Problem, Report, Runner};
use running::Asked;

const ROLE: &str = "build";
const TIMEOUT_SECONDS: u32 = 300;
/// The host's own ceiling for a command.
const TIMEOUT_AT_MOST: u32 = 600;

struct RunTests;

impl Guest for RunTests {
    fn run(
        path: Option<String>,
        runner: Option<Runner>,
        filter: Option<String>,
        timeout_seconds: Option<u32>,
        role: Option<String>,
    ) -> Result<Report, Problem> {
        let seconds = timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
        if !(1..=TIMEOUT_AT_MOST).contains(&seconds) {
            let what = format!("`timeout-seconds` is {seconds}; it can be 1 to {TIMEOUT_AT_MOST}");
            return Err(Problem::InvalidArgument(what));
        }
        running::run(&Asked {
            path: path.unwrap_or_else(|| ".".to_owned()),
            runner,
            filter,
            timeout: Duration::from_secs(seconds.into()),
            role: role.unwrap_or_else(|| ROLE.to_owned()),
        })
    }
}
