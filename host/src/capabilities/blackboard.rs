//! `skillhost:skill/blackboard`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use skillhost_api::error::{Error, Result};
use skillhost_api::types::{
    BlackboardChange, BlackboardEntry, BlackboardEvent, DeleteRequest, ListRequest, PublishRequest, WatchRequest,
};
use tokio::sync::Mutex;
use wasmtime::component::Resource;

use super::bindings::skillhost::skill::blackboard as wit;
use super::{GuestError, View};
use crate::broker::BlackboardWatch;

/// A guest's handle on a watch.
pub struct Subscription {
    watching: Arc<Mutex<BlackboardWatch>>,
}

impl From<BlackboardEntry> for wit::Entry {
    fn from(entry: BlackboardEntry) -> Self {
        Self {
            key: entry.key,
            value: entry.value.to_string(),
            version: entry.version,
            created_at_ms: entry.created_at_ms,
            updated_at_ms: entry.updated_at_ms,
            created_by: entry.created_by,
            updated_by: entry.updated_by,
            expires_at_ms: entry.expires_at_ms,
            tags: entry.tags,
            metadata: Value::Object(entry.metadata).to_string(),
        }
    }
}

impl From<BlackboardEvent> for wit::Event {
    fn from(event: BlackboardEvent) -> Self {
        let (change, value) = match event.event_type {
            BlackboardChange::Write => (wit::Change::Write, Some(event.value.to_string())),
            BlackboardChange::Delete => (wit::Change::Delete, None),
            BlackboardChange::Expire => (wit::Change::Expire, None),
            BlackboardChange::Evict => (wit::Change::Evict, None),
        };
        Self {
            change,
            key: event.key,
            value,
            id: event.event_id,
            version: event.version,
            at_ms: event.timestamp,
            agent: event.agent_id,
            tags: event.tags,
            metadata: Value::Object(event.metadata).to_string(),
            dropped: event.dropped,
        }
    }
}

fn json(what: &str, key: &str, text: &str) -> Result<Value> {
    serde_json::from_str(text)
        .map_err(|error| Error::invalid_argument(format!("the {what} of {key:?} is not JSON: {error}")))
}

fn object(key: &str, text: Option<&str>) -> Result<Map<String, Value>> {
    match text.map(|text| json("metadata", key, text)).transpose()? {
        None => Ok(Map::new()),
        Some(Value::Object(object)) => Ok(object),
        Some(_) => Err(Error::invalid_argument(format!("the metadata of {key:?} is JSON, but not an object"))),
    }
}

impl wit::Host for View<'_> {
    async fn publish(&mut self, key: String, value: String) -> Result<u64, GuestError> {
        let options = wit::PublishOptions { if_version: None, ttl_ms: None, tags: Vec::new(), metadata: None };
        self.publish_with(key, value, options).await
    }

    async fn publish_with(
        &mut self,
        key: String,
        value: String,
        options: wit::PublishOptions,
    ) -> Result<u64, GuestError> {
        self.context
            .brokered(|broker, actor| async move {
                let request = PublishRequest {
                    value: json("value", &key, &value)?,
                    metadata: object(&key, options.metadata.as_deref())?,
                    key,
                    if_version: options.if_version,
                    ttl_ms: options.ttl_ms,
                    tags: options.tags,
                };
                Ok(broker.publish(&actor, request).await?.version)
            })
            .await
    }

    async fn delete(&mut self, key: String, if_version: Option<u64>) -> Result<bool, GuestError> {
        let request = DeleteRequest { key, if_version };
        self.context.brokered(|broker, actor| async move { Ok(broker.delete(&actor, &request).await?.is_some()) }).await
    }

    async fn get(&mut self, key: String) -> Result<Option<wit::Entry>, GuestError> {
        self.context
            .brokered(|broker, actor| async move { Ok(broker.get(&actor, &key).await?.map(wit::Entry::from)) })
            .await
    }

    async fn list(&mut self, pattern: String) -> Result<Vec<wit::Entry>, GuestError> {
        self.list_tagged(pattern, Vec::new(), String::new()).await
    }

    async fn list_tagged(
        &mut self,
        pattern: String,
        tags: Vec<String>,
        after: String,
    ) -> Result<Vec<wit::Entry>, GuestError> {
        let request = ListRequest { pattern, tags, after };
        self.context
            .brokered(|broker, actor| async move {
                let listed = broker.list(&actor, request).await?;
                Ok(listed.entries.into_iter().map(wit::Entry::from).collect())
            })
            .await
    }
}

impl wit::HostSubscription for View<'_> {
    async fn watch(&mut self, pattern: String, existing: bool) -> Result<Resource<Subscription>, GuestError> {
        let request = WatchRequest { pattern, existing, count: None };
        let watching =
            self.context.brokered(|broker, actor| async move { broker.watch(&actor, &request).await }).await?;
        Ok(self.table.push(Subscription { watching: Arc::new(Mutex::new(watching)) })?)
    }

    async fn next(
        &mut self,
        subscription: Resource<Subscription>,
        timeout_ms: Option<u64>,
    ) -> Result<Option<wit::Event>, GuestError> {
        let watching = self.table.get(&subscription)?.watching.clone();
        self.context
            .on_host(async move {
                let mut watching = watching.lock().await;
                // The deadline is around it in any case; longer than that is as good as never.
                let patience = timeout_ms.map_or(Duration::MAX, Duration::from_millis);
                Ok(watching.next_within(patience).await?.map(wit::Event::from))
            })
            .await
    }

    async fn drop(&mut self, subscription: Resource<Subscription>) -> wasmtime::Result<()> {
        self.table.delete(subscription)?;
        Ok(())
    }
}
