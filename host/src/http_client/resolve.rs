//! The addresses of a name.

use std::io;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

/// Lookups at once. A lookup cannot be given up, only waited for: so a name server that does not answer holds this many
/// threads and no more.
const MAX_LOOKUPS: usize = 32;

/// Says which addresses a name has.
pub(super) trait Resolve: Send + Sync {
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// As every program of this machine does: by its hosts file and its name servers.
pub(super) struct SystemResolver {
    lookups: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> Self {
        Self { lookups: Arc::new(Semaphore::new(MAX_LOOKUPS)) }
    }
}

impl Resolve for SystemResolver {
    fn resolve(&self, name: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let lookups = self.lookups.clone();
        Box::pin(async move {
            let turn = lookups.acquire_owned().await.map_err(io::Error::other)?;
            let looked_up = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                Ok((name.as_str(), 0).to_socket_addrs()?.map(|address| address.ip()).collect())
            });
            looked_up.await.map_err(io::Error::other)?
        })
    }
}
