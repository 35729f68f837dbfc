//! What is asked of all that a session has, where sessions have their homes on several hosts.

use skillhost_api::caller::Caller;
use skillhost_api::error::Result;

use super::Sandboxes;

impl Sandboxes {
    /// The random name of the state directory, which its sandboxes bear.
    pub fn deployment(&self) -> &str {
        &self.inner.deployment
    }

    /// Ends the session's sandboxes, and removes its workspace.
    pub async fn forget_session(&self, caller: &Caller) -> Result<()> {
        for sandbox in self.list().into_iter().filter(|sandbox| sandbox.owner.same_session(caller)) {
            self.stop(&sandbox.id).await?;
        }
        let (inner, caller) = (self.inner.clone(), caller.clone());
        tokio::task::spawn_blocking(move || inner.workspaces.forget(&caller)).await.map_err(std::io::Error::from)?
    }
}
