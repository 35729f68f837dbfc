//! The persistent shells of `skillhost:skill/sandbox`.

use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::skillhost::skill::sandbox as wit;
use super::{View, WitError};
use crate::broker::OwnedShell;

/// A guest's handle on a shell, which ends with it.
pub struct GuestShell(pub(super) Arc<OwnedShell>);

impl wit::HostShell for View<'_> {
    async fn run(
        &mut self,
        shell: Resource<GuestShell>,
        line: String,
        options: wit::LineOptions,
    ) -> wasmtime::Result<Result<wit::LineResult, WitError>> {
        let shell = self.table.get(&shell)?.0.clone();
        let work = async move {
            let answer = shell.run(line, options.timeout_ms, options.max_output).await?;
            let (shell_ended, restarted) = (answer.shell_ended, answer.restarted);
            Ok(wit::LineResult { result: answer.exec.into(), shell_ended, restarted })
        };
        Ok(self.context.on_host(work).await)
    }

    async fn drop(&mut self, shell: Resource<GuestShell>) -> wasmtime::Result<()> {
        self.table.delete(shell)?;
        Ok(())
    }
}
