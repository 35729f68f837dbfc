//! The persistent shells of `skillhost:skill/sandbox`.

use std::sync::Arc;

use wasmtime::component::Resource;

use super::bindings::skillhost::skill::sandbox as wit;
use super::{GuestError, View};
use crate::broker::OwnedShell;

/// A guest's handle on a shell, which ends with it.
pub struct GuestShell(pub(super) Arc<OwnedShell>);

impl wit::HostShell for View<'_> {
    async fn run(
        &mut self,
        shell: Resource<GuestShell>,
        line: String,
        options: wit::LineOptions,
    ) -> Result<wit::LineResult, GuestError> {
        let shell = self.table.get(&shell)?.0.clone();
        self.context
            .on_host(async move {
                let answer = shell.run(line, options.timeout_ms, options.max_output).await?;
                let (shell_ended, restarted) = (answer.shell_ended, answer.restarted);
                Ok(wit::LineResult { result: answer.exec.into(), shell_ended, restarted })
            })
            .await
    }

    async fn drop(&mut self, shell: Resource<GuestShell>) -> wasmtime::Result<()> {
        self.table.delete(shell)?;
        Ok(())
    }
}
