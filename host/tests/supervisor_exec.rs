//! A command runs, and everything that happens to it is told.

#![allow(missing_docs)]

mod support;

use skillhost::sandbox::link::{Ending, ExecEvent, ExecSpec};
use support::{Sandbox, skip, stdout, user};

#[tokio::test]
async fn a_command_runs_as_its_user_with_nothing() {
    if skip() {
        return;
    }
    let sandbox = Sandbox::start().await;
    let events = sandbox.run(ExecSpec::argv(["sh", "-c", "id; grep -E '^(Cap|NoNewPrivs)' /proc/self/status; pwd; umask; echo $HOME; ls -l /proc/self/fd | wc -l; readlink /proc/self/fd/0"], user())).await;
    eprintln!("{}", stdout(&events));
    assert!(matches!(events.first(), Some(ExecEvent::Started { .. })), "{events:?}");
    assert_eq!(events.last(), Some(&ExecEvent::Exited(Ending::Code(0))));
}
