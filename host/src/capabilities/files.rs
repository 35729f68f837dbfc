//! `skillhost:skill/files`.

use skillhost_api::types::{CopyAnswer, CopyRequest, HostPath};
use wasmtime::component::Resource;

use super::bindings::skillhost::skill::files::{Copied, Host};
use super::{GuestSandbox, View, WitError};

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
    ) -> wasmtime::Result<CopyRequest> {
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
    ) -> wasmtime::Result<Result<Copied, WitError>> {
        let request = self.copy_request(&container, root, path, dest)?;
        let (broker, actor) = (self.context.broker.clone(), self.context.actor.clone());
        Ok(self.context.on_host(async move { broker.copy_in(&actor, &request).await.map(Copied::from) }).await)
    }

    async fn copy_out(
        &mut self,
        container: Resource<GuestSandbox>,
        src: String,
        root: String,
        path: String,
    ) -> wasmtime::Result<Result<Copied, WitError>> {
        let request = self.copy_request(&container, root, path, src)?;
        let (broker, actor) = (self.context.broker.clone(), self.context.actor.clone());
        Ok(self.context.on_host(async move { broker.copy_out(&actor, &request).await.map(Copied::from) }).await)
    }
}
