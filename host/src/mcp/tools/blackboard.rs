//! The session's blackboard.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Ask, Builtin, Effect, Tell, builtin, milliseconds, watched_for};
use crate::api::types::{
    BlackboardDeleted, BlackboardEntry, BlackboardEvent, BlackboardList, DeleteRequest, ListRequest, PublishRequest,
    Request, WatchRequest,
};
use crate::config::Group::Blackboard;
use crate::error::{Error, Result};

/// The most changes that one watch tells.
const CHANGES: u64 = 256;

/// A value to publish.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Publish {
    /// The key: 1 to 256 bytes of parts separated by `:`.
    key: String,
    /// Any JSON value; at most 1 MiB as text.
    value: Value,
    /// Write only if this is the version that is there, 0 for none; otherwise the error is a `conflict`.
    if_version: Option<u64>,
    /// It is gone after so many seconds; without it, it stays.
    ttl_seconds: Option<f64>,
    /// At most 32 of 1 to 128 bytes.
    #[serde(default)]
    tags: Vec<String>,
    /// At most 16 KiB as text.
    #[serde(default)]
    metadata: Map<String, Value>,
}

/// A key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Key {
    /// The key.
    key: String,
}

/// Which keys.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// `*` matches within a part between `:`, `**` across parts; empty (default) is all.
    #[serde(default)]
    pattern: String,
    /// Only entries that have all of these.
    #[serde(default)]
    tags: Vec<String>,
    /// Only keys after this one: to go on where a listing ended.
    #[serde(default)]
    after: String,
}

/// A key to delete.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Delete {
    /// The key.
    key: String,
    /// Delete only if this is the version that is there.
    if_version: Option<u64>,
}

/// Which keys to watch.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Watch {
    /// As in a listing.
    pattern: String,
    /// Whether what is there already comes first.
    #[serde(default)]
    existing: bool,
    /// Come back after so many seconds; default 30, at most 300.
    timeout_seconds: Option<f64>,
    /// Come back after so many changes; default 1, at most 256.
    changes: Option<u64>,
}

/// What a watch saw.
#[derive(Debug, Serialize, JsonSchema)]
#[allow(dead_code, reason = "only described")]
struct WatchAnswer {
    /// The changes in their order.
    events: Vec<BlackboardEvent>,
    /// How many.
    count: usize,
}

fn publish(asked: Publish) -> Result<Ask> {
    let request = PublishRequest {
        key: asked.key,
        value: asked.value,
        if_version: asked.if_version,
        ttl_ms: milliseconds(asked.ttl_seconds)?,
        tags: asked.tags,
        metadata: asked.metadata,
    };
    Ok(Request::BlackboardPublish(request).into())
}

fn watch(asked: Watch) -> Result<Ask> {
    let count = asked.changes.unwrap_or(1);
    if !(1..=CHANGES).contains(&count) {
        return Err(Error::invalid_argument(format!("changes is 1 to {CHANGES}, and this is {count}")));
    }
    let patience = watched_for(asked.timeout_seconds)?;
    let max = usize::try_from(count).unwrap_or(usize::MAX);
    let request = WatchRequest { pattern: asked.pattern, existing: asked.existing, count: Some(count) };
    Ok(Ask { request: Request::BlackboardWatch(request), input: None, tell: Tell::Events { max, patience } })
}

pub(super) fn add(all: &mut Vec<Builtin>) {
    all.push(builtin::<Publish, BlackboardEntry>(
        Blackboard,
        "blackboard_publish",
        Effect::Sets,
        "Publish a value",
        "Publishes a value that all agents and skills of this session can read. It replaces what stands under the key.",
        publish,
    ));
    all.push(builtin::<Key, BlackboardEntry>(
        Blackboard,
        "blackboard_get",
        Effect::Reads,
        "Read a value",
        "Gives a value of the session's blackboard.",
        |asked: Key| Ok(Request::BlackboardGet { key: asked.key }.into()),
    ));
    all.push(builtin::<List, BlackboardList>(
        Blackboard,
        "blackboard_list",
        Effect::Reads,
        "List values",
        "Lists values of the session's blackboard by key.",
        |asked: List| {
            let List { pattern, tags, after } = asked;
            Ok(Request::BlackboardList(ListRequest { pattern, tags, after }).into())
        },
    ));
    all.push(builtin::<Delete, BlackboardDeleted>(
        Blackboard,
        "blackboard_delete",
        Effect::Sets,
        "Delete a value",
        "Deletes a value of the session's blackboard.",
        |asked: Delete| {
            Ok(Request::BlackboardDelete(DeleteRequest { key: asked.key, if_version: asked.if_version }).into())
        },
    ));
    all.push(builtin::<Watch, WatchAnswer>(
        Blackboard,
        "blackboard_watch",
        Effect::Reads,
        "Watch values",
        "Waits for changes of keys, and gives them.",
        watch,
    ));
}
