//! `skillhost:skill/files`.

use skillhost_api::types::{CopyAnswer, CopyRequest, HostPath};
use wasmtime::component::Resource;

use super::bindings::skillhost::skill::files::{Copied, Host};
use super::{GuestError, GuestSandbox, View};

impl From<CopyAnswer> for Copied {
    fn from(copied: CopyAnswer) -> Self {
        Self { files: copied.files, bytes: copied.bytes, message: copied.message }
    }
}

impl View<'_> {
    fn copy_request(
        &mut self,
        container: &Resource<GuestSandbox>,
        root: String,
        path: String,
        sandbox: String,
    ) -> Result<CopyRequest, GuestError> {
        let container_id = self.table.get(container)?.id().to_owned();
        Ok(CopyRequest { container_id, host: HostPath::Root { root, path }, sandbox })
    }
}

impl Host for View<'_> {
    async fn copy_in(
        &mut self,
        container: Resource<GuestSandbox>,
        root: String,
        path: String,
        dest: String,
    ) -> Result<Copied, GuestError> {
        let request = self.copy_request(&container, root, path, dest)?;
        self.context.brokered(|broker, actor| async move { Ok(broker.copy_in(&actor, &request).await?.into()) }).await
    }

    async fn copy_out(
        &mut self,
        container: Resource<GuestSandbox>,
        src: String,
        root: String,
        path: String,
    ) -> Result<Copied, GuestError> {
        let request = self.copy_request(&container, root, path, src)?;
        self.context.brokered(|broker, actor| async move { Ok(broker.copy_out(&actor, &request).await?.into()) }).await
    }
}
