//! A blackboard in memory: versions, times to live, tags, and watches of what the skill itself publishes.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value};

use super::effect::Effect;
use super::fakes::{Fakes, Stop};
use super::script::Step;
use crate::blackboard::{Change, Entry, Event, PublishOptions};
use crate::types::{Conflict, Error};

/// Who has written what a test has put there, and what the skill writes.
const AGENT: &str = "test";
/// The name of whoever a test says has written something meanwhile.
const ANOTHER: &str = "another";

#[derive(Default)]
pub(super) struct Board {
    entries: BTreeMap<String, Entry>,
    watches: BTreeMap<u32, Watch>,
    events: u64,
}

struct Watch {
    pattern: String,
    waiting: VecDeque<Event>,
}

/// Whether `key` is one of `pattern`: `*` is anything within a part, `**` anything, an empty one every key. As the host has it, which
/// holds this to its own.
pub fn matches(pattern: &str, key: &str) -> bool {
    if pattern.is_empty() {
        return true;
    }
    // How much of the key what was read of the pattern can stand for; so a pattern of many stars takes no longer than others.
    let mut reached = vec![false; key.len() + 1];
    reached.iter_mut().take(1).for_each(|first| *first = true);
    let mut rest = pattern.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let across = rest.starts_with(b"**");
        rest = if across { behind.get(1..).unwrap_or_default() } else { behind };
        let mut before = false;
        let mut carried = false;
        for (at, here) in reached.iter_mut().enumerate() {
            let passed = at.checked_sub(1).and_then(|at| key.as_bytes().get(at));
            let was = *here;
            *here = match (first, passed) {
                (b'*', Some(byte)) => was || (carried && (across || *byte != b':')),
                (b'*', None) => was,
                (first, Some(byte)) => before && byte == first,
                (_, None) => false,
            };
            (before, carried) = (was, *here);
        }
    }
    reached.last() == Some(&true)
}

fn value_of(key: &str, text: &str, what: &str) -> Result<Value, Error> {
    serde_json::from_str(text)
        .map_err(|error| Error::InvalidArgument(format!("the {what} of {key:?} is not JSON: {error}")))
}

impl Board {
    pub(crate) fn new(entries: &BTreeMap<String, Value>, now_ms: u64) -> Self {
        let mut board = Self::default();
        for (key, value) in entries {
            board.write(key, &value.to_string(), &no_options(), AGENT, now_ms);
        }
        board
    }

    /// The value of a key, for who looks afterwards.
    pub(crate) fn value(&self, key: &str) -> Option<Value> {
        serde_json::from_str(&self.entries.get(key)?.value).ok()
    }

    /// All keys and values.
    pub(crate) fn values(&self) -> BTreeMap<String, Value> {
        self.entries.keys().filter_map(|key| Some((key.clone(), self.value(key)?))).collect()
    }

    /// What has lived long enough is gone.
    fn expire(&mut self, now_ms: u64) {
        self.entries.retain(|_, entry| entry.expires_at_ms.is_none_or(|end| end > now_ms));
    }

    fn check_version(&self, key: &str, wanted: Option<u64>) -> Result<(), Error> {
        let version = self.entries.get(key).map_or(0, |entry| entry.version);
        match wanted {
            Some(wanted) if wanted != version => {
                let message = format!("{key:?} has version {version}, not {wanted}: read it again");
                Err(Error::Conflict(Conflict { version, message }))
            }
            _ => Ok(()),
        }
    }

    fn write(&mut self, key: &str, value: &str, options: &PublishOptions, agent: &str, now_ms: u64) -> u64 {
        let before = self.entries.get(key);
        let entry = Entry {
            key: key.into(),
            value: value.into(),
            version: before.map_or(0, |entry| entry.version) + 1,
            created_at_ms: before.map_or(now_ms, |entry| entry.created_at_ms),
            updated_at_ms: now_ms,
            created_by: before.map_or(agent, |entry| entry.created_by.as_str()).into(),
            updated_by: agent.into(),
            expires_at_ms: options.ttl_ms.map(|ttl| now_ms.saturating_add(ttl)),
            tags: options.tags.clone(),
            metadata: options.metadata.clone().unwrap_or_else(|| "{}".into()),
        };
        let version = entry.version;
        self.tell(Change::Write, &entry, now_ms);
        self.entries.insert(key.into(), entry);
        version
    }

    fn tell(&mut self, change: Change, entry: &Entry, now_ms: u64) {
        self.events += 1;
        let event = Event { at_ms: now_ms, id: self.events, ..event_of(change, entry) };
        for watch in self.watches.values_mut().filter(|watch| matches(&watch.pattern, &entry.key)) {
            watch.waiting.push_back(event.clone());
        }
    }
}

fn no_options() -> PublishOptions {
    PublishOptions::default()
}

fn event_of(change: Change, entry: &Entry) -> Event {
    Event {
        change,
        key: entry.key.clone(),
        value: (change == Change::Write).then(|| entry.value.clone()),
        id: 0,
        version: entry.version,
        at_ms: entry.updated_at_ms,
        agent: entry.updated_by.clone(),
        tags: entry.tags.clone(),
        metadata: entry.metadata.clone(),
        dropped: 0,
    }
}

impl Fakes {
    pub(crate) fn publish(&mut self, key: String, value: String, options: PublishOptions) -> Result<u64, Stop> {
        let json = value_of(&key, &value, "value")?;
        let metadata = options.metadata.as_deref().map(|text| value_of(&key, text, "metadata")).transpose()?;
        let effect = Effect::new("publish", key.as_str())
            .with("value", Some(json))
            .with("if-version", options.if_version)
            .with("ttl-ms", options.ttl_ms)
            .with("tags", (!options.tags.is_empty()).then(|| options.tags.clone()))
            .with("metadata", metadata);
        let answer = self.acted(effect)?;
        let now = self.clock.ms();
        self.board.expire(now);
        self.board.check_version(&key, options.if_version)?;
        let version = self.board.write(&key, &value, &options, AGENT, now);
        Ok(answer.get("version").and_then(Value::as_u64).unwrap_or(version))
    }

    pub(crate) fn delete(&mut self, key: String, if_version: Option<u64>) -> Result<bool, Stop> {
        self.acted(Effect::new("delete", key.as_str()).with("if-version", if_version))?;
        let now = self.clock.ms();
        self.board.expire(now);
        self.board.check_version(&key, if_version)?;
        let removed = self.board.entries.remove(&key);
        if let Some(entry) = &removed {
            self.board.tell(Change::Delete, entry, now);
        }
        Ok(removed.is_some())
    }

    pub(crate) fn get(&mut self, key: String) -> Result<Option<Entry>, Stop> {
        let answer = self.read(Effect::new("get", key.as_str()))?;
        let now = self.clock.ms();
        self.board.expire(now);
        if let Some(value) = answer.and_then(|answer| answer.get("value").cloned()) {
            self.board.write(&key, &value.to_string(), &no_options(), ANOTHER, now);
        }
        Ok(self.board.entries.get(&key).cloned())
    }

    pub(crate) fn list_tagged(
        &mut self,
        pattern: String,
        tags: Vec<String>,
        after: String,
    ) -> Result<Vec<Entry>, Stop> {
        let effect = Effect::new("list", pattern.as_str())
            .with("tags", (!tags.is_empty()).then(|| tags.clone()))
            .with("after", (!after.is_empty()).then_some(after.as_str()));
        self.read(effect)?;
        self.board.expire(self.clock.ms());
        let entries = self.board.entries.values().filter(|entry| {
            entry.key > after
                && matches(&pattern, &entry.key)
                && tags.iter().all(|tag| entry.tags.contains(tag))
                && self.may_read(&entry.key)
        });
        Ok(entries.cloned().collect())
    }

    pub(crate) fn watch(&mut self, pattern: String, existing: bool) -> Result<u32, Stop> {
        let effect = Effect::new("watch", pattern.as_str()).with("existing", existing.then_some(true));
        let answer = self.read(effect)?;
        let now = self.clock.ms();
        self.board.expire(now);
        let mut waiting = VecDeque::new();
        if existing {
            let there = self.board.entries.values().filter(|entry| matches(&pattern, &entry.key));
            waiting.extend(there.filter(|entry| self.may_read(&entry.key)).map(|entry| event_of(Change::Write, entry)));
        }
        for said in answer.iter().filter_map(|answer| answer.get("events")?.as_array()).flatten() {
            waiting.push_back(self.board.said(said, now));
        }
        let handle = self.handle();
        self.board.watches.insert(handle, Watch { pattern, waiting });
        Ok(handle)
    }

    pub(crate) fn next(&mut self, subscription: u32, timeout_ms: Option<u64>) -> Result<Option<Event>, Stop> {
        let Some(watch) = self.board.watches.get_mut(&subscription) else {
            return Err(Stop::no_handle("subscription"));
        };
        match (watch.waiting.pop_front(), timeout_ms) {
            (Some(event), _) => Ok(Some(event)),
            (None, Some(ms)) => {
                self.clock.pass(ms);
                Ok(None)
            }
            // Nothing else happens in a test: this would be waiting until the call's end.
            (None, None) => Err(Error::TimedOut("the action's deadline passed during this call".into()).into()),
        }
    }

    pub(crate) fn drop_subscription(&mut self, subscription: u32) {
        self.board.watches.remove(&subscription);
    }
}

impl Board {
    /// An event as a test writes it.
    fn said(&mut self, said: &Value, now_ms: u64) -> Event {
        self.events += 1;
        let none = Map::new();
        let said = said.as_object().unwrap_or(&none);
        let text = |key: &str| said.get(key).and_then(Value::as_str);
        let change = match text("change") {
            Some("delete") => Change::Delete,
            Some("expire") => Change::Expire,
            Some("evict") => Change::Evict,
            _ => Change::Write,
        };
        Event {
            change,
            key: text("key").unwrap_or_default().into(),
            value: said.get("value").map(Value::to_string),
            id: self.events,
            version: said.get("version").and_then(Value::as_u64).unwrap_or(1),
            at_ms: now_ms,
            agent: text("agent").unwrap_or(ANOTHER).into(),
            tags: Vec::new(),
            metadata: "{}".into(),
            dropped: said.get("dropped").and_then(Value::as_u64).unwrap_or_default(),
        }
    }
}

/// What cannot be meant in the `events` of a watch.
pub(super) fn event_problems(step: &Step) -> Vec<String> {
    let Some(events) = step.answer.get("events") else { return Vec::new() };
    let known = ["key", "value", "change", "version", "agent", "dropped"];
    let wrong = |event: &Value| {
        let Some(event) = event.as_object() else { return Some("each of `events` is to be a table".to_owned()) };
        if let Some(key) = event.keys().find(|key| !known.contains(&key.as_str())) {
            return Some(format!("`events` have no key `{key}`; they have {}", known.join(", ")));
        }
        let change = event.get("change").map_or(Some("write"), Value::as_str);
        (!matches!(change, Some("write" | "delete" | "expire" | "evict")))
            .then(|| "`change` is \"write\", \"delete\", \"expire\" or \"evict\"".to_owned())
    };
    match events.as_array() {
        Some(events) => events.iter().filter_map(wrong).collect(),
        None => vec!["`events` is to be a list of tables".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_are_those_of_the_blackboard() {
        for (pattern, key, fits) in [
            ("", "a:b", true),
            ("a:*", "a:b", true),
            ("a:*", "a:b:c", false),
            ("a:**", "a:b:c", true),
            ("*:c", "a:c", true),
            ("a:*:c", "a:bb:c", true),
            ("a", "ab", false),
            ("**", "a:b", true),
        ] {
            assert_eq!(matches(pattern, key), fits, "{pattern} {key}");
        }
    }
}
