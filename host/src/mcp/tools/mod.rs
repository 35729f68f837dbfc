//! The tools that every host has: what each takes and gives, and what it asks of the host.
//!
//! Their names have underscores, which no skill's name has, so that no skill can be taken for one of them. The words for
//! arguments are those that users of sandboxes over other systems know.

mod blackboard;
mod files;
mod processes;
mod sandbox;
mod skills;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::types::Request;
use crate::config::Group;
use crate::error::{Error, Result};

/// What a tool asks of the host.
#[derive(Debug, Clone)]
pub(super) struct Ask {
    pub(super) request: Request,
    /// What is streamed to it.
    pub(super) input: Option<Bytes>,
    pub(super) tell: Tell,
}

/// How the answer becomes a result.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tell {
    /// As it is.
    Answer,
    /// A skill's result, or its failure.
    Action(Shape),
    /// With at most so many bytes of the file that is streamed.
    File { max: usize },
    /// The events that were streamed: so many, or those of so long a time.
    Events { max: usize, patience: Duration },
}

/// How a skill's result is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// As it is: an object.
    Object,
    /// As the field `result` of an object, for it is none itself.
    Field,
    /// In the answer that tells of the invocation, too.
    Whole,
}

impl From<Request> for Ask {
    fn from(request: Request) -> Self {
        Self { request, input: None, tell: Tell::Answer }
    }
}

/// A tool of every host.
pub(super) struct Builtin {
    pub(super) group: Group,
    pub(super) tool: Tool,
    ask: Box<dyn Fn(JsonObject) -> Result<Ask> + Send + Sync>,
}

impl Builtin {
    /// What a call with these arguments asks.
    pub(super) fn ask(&self, arguments: JsonObject) -> Result<Ask> {
        (self.ask)(arguments).map_err(|error| error.context(&self.tool.name))
    }
}

/// What a tool does to the world, as far as it is known beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// Nothing.
    Reads,
    /// It adds to what is there.
    Adds,
    /// It changes or ends what is there; a second time changes nothing more.
    Sets,
    /// Whatever its arguments say.
    Runs,
}

impl Effect {
    fn annotations(self, title: &str) -> ToolAnnotations {
        ToolAnnotations::from_raw(
            Some(title.to_owned()),
            Some(self == Self::Reads),
            Some(matches!(self, Self::Sets | Self::Runs)),
            Some(matches!(self, Self::Reads | Self::Sets)),
            // What a sandbox can reach is its launch's to say, and each command's own.
            Some(self == Self::Runs),
        )
    }
}

fn builtin<P, A>(
    group: Group,
    name: &'static str,
    effect: Effect,
    title: &str,
    description: &'static str,
    ask: fn(P) -> Result<Ask>,
) -> Builtin
where
    P: DeserializeOwned + JsonSchema + 'static,
    A: JsonSchema,
{
    let tool = Tool::new(name, description, schema::<P>())
        .with_title(title)
        .with_raw_output_schema(schema::<A>())
        .with_annotations(effect.annotations(title));
    let ask = move |arguments| {
        let params = serde_json::from_value(Value::Object(arguments))
            .map_err(|error| Error::invalid_argument(error.to_string()))?;
        ask(params)
    };
    Builtin { group, tool, ask: Box::new(ask) }
}

/// A type's schema, with everything in its place: some clients follow no references.
fn schema<T: JsonSchema>() -> Arc<JsonObject> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = match settings.into_generator().into_root_schema_for::<T>().to_value() {
        Value::Object(schema) => schema,
        _ => JsonObject::new(),
    };
    for own in ["$schema", "title"] {
        schema.remove(own);
    }
    // Of an answer that is one of several shapes, say: a client wants an object.
    schema.insert("type".into(), "object".into());
    Arc::new(schema)
}

/// All of them, in the order in which they are listed.
pub(super) static ALL: LazyLock<Vec<Builtin>> = LazyLock::new(|| {
    let mut all = Vec::new();
    skills::add(&mut all);
    sandbox::add(&mut all);
    processes::add(&mut all);
    files::add(&mut all);
    blackboard::add(&mut all);
    all
});

static BY_NAME: LazyLock<HashMap<&'static str, usize>> =
    LazyLock::new(|| ALL.iter().enumerate().map(|(at, builtin)| (&*builtin.tool.name, at)).collect());

/// The one of this name.
pub(super) fn named(name: &str) -> Option<&'static Builtin> {
    ALL.get(*BY_NAME.get(name)?)
}

/// Seconds as they are said in arguments, as the host has them.
fn milliseconds(seconds: Option<f64>) -> Result<Option<u64>> {
    let Some(seconds) = seconds else { return Ok(None) };
    if !(0.0..=1e9).contains(&seconds) {
        return Err(Error::invalid_argument(format!("{seconds} seconds are no time to wait: 0 to 1,000,000,000")));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in its range")]
    Ok(Some((seconds * 1000.0).round() as u64))
}

/// How long a tool watches at most, so that a call comes back.
const WATCH_MAX: f64 = 300.0;

fn watched_for(seconds: Option<f64>) -> Result<Duration> {
    let seconds = seconds.unwrap_or(30.0);
    if !(0.0..=WATCH_MAX).contains(&seconds) {
        return Err(Error::invalid_argument(format!("timeout_seconds is 0 to {WATCH_MAX}, and this is {seconds}")));
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_an_object_both_ways_and_says_what_its_arguments_are() {
        for builtin in ALL.iter() {
            let tool = &builtin.tool;
            assert!(tool.name.contains('_'), "{}: no skill has an underscore in its name", tool.name);
            for schema in [Some(&tool.input_schema), tool.output_schema.as_ref()] {
                let schema = schema.unwrap();
                assert_eq!(schema["type"], "object", "{}", tool.name);
                for odd in ["oneOf", "anyOf", "allOf", "$ref"] {
                    assert!(!schema.contains_key(odd), "{}: {odd} at the top", tool.name);
                }
                let text = serde_json::to_string(schema).unwrap();
                assert!(!text.contains("$ref"), "{}: {text}", tool.name);
            }
            assert_eq!(tool.input_schema["additionalProperties"], false, "{}", tool.name);
            for (name, property) in tool.input_schema.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                assert!(property.get("description").is_some(), "{}.{name} says nothing", tool.name);
            }
        }
        assert_eq!(BY_NAME.len(), ALL.len(), "two tools have one name");
    }

    #[test]
    fn who_calls_is_no_argument() {
        for builtin in ALL.iter() {
            for name in ["tenant", "session", "agent", "caller", "project", "authority"] {
                let mut arguments = JsonObject::new();
                arguments.insert(name.into(), "other".into());
                let error = builtin.ask(arguments).unwrap_err();
                assert_eq!(error.kind, crate::error::ErrorKind::InvalidArgument, "{}", builtin.tool.name);
            }
        }
    }
}
