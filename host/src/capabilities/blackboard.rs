//! `skillhost:skill/blackboard`.

use super::bindings::skillhost::skill::blackboard::{Entry, Host};
use super::{View, WitError};
use crate::api::types::BlackboardEntry;
use crate::error::Error;

impl From<BlackboardEntry> for Entry {
    fn from(entry: BlackboardEntry) -> Self {
        Self {
            key: entry.key,
            value: entry.value.to_string(),
            version: entry.version,
            created_at_ms: entry.created_at_ms,
            updated_at_ms: entry.updated_at_ms,
            created_by: entry.created_by,
            updated_by: entry.updated_by,
        }
    }
}

impl Host for View<'_> {
    async fn publish(&mut self, key: String, value: String) -> wasmtime::Result<Result<u64, WitError>> {
        let (broker, actor) = (self.context.broker.clone(), self.context.actor.clone());
        let work = async move {
            let value = serde_json::from_str(&value)
                .map_err(|error| Error::invalid_argument(format!("the value of {key:?} is not JSON: {error}")))?;
            Ok(broker.publish(&actor, &key, value).await?.version)
        };
        Ok(self.context.on_host(work).await)
    }

    async fn get(&mut self, key: String) -> wasmtime::Result<Result<Option<Entry>, WitError>> {
        let (broker, actor) = (self.context.broker.clone(), self.context.actor.clone());
        let work = async move { Ok(broker.get(&actor, &key).await?.map(Entry::from)) };
        Ok(self.context.on_host(work).await)
    }

    async fn list(&mut self, pattern: String) -> wasmtime::Result<Result<Vec<Entry>, WitError>> {
        let (broker, actor) = (self.context.broker.clone(), self.context.actor.clone());
        let work = async move {
            let listed = broker.list(&actor, &pattern).await?;
            Ok(listed.entries.into_iter().map(Entry::from).collect())
        };
        Ok(self.context.on_host(work).await)
    }
}
