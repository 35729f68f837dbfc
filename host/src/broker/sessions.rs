//! What there is of a session, where sessions have their homes on several hosts.

use skillhost_api::caller::Caller;
use skillhost_api::error::Result;

use super::Broker;

impl Broker {
    /// Ends and removes what there is of a session whose home has been elsewhere since.
    pub(crate) async fn forget_session(&self, caller: &Caller) -> Result<()> {
        self.sandboxes.forget_session(caller).await?;
        self.blackboard.forget(caller).await
    }
}
