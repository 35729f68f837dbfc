//! The rest of what an answer was cut by.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Ask, Builtin, Effect, builtin};
use crate::api::types::{ReadTextRequest, Request, TextPiece};
use crate::config::Group::Sandbox;
use crate::error::Result;

/// The tool's name. It is in every group.
pub(super) const NAME: &str = "read_output";
/// How much of a text one call gives when it does not say, and at most.
const DEFAULT: u64 = 12_000;
const MAX: u64 = 1 << 20;

/// What to read on in.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Read {
    /// The output's id, `out_…`, as the answer that was cut says it.
    output_id: String,
    /// Where to start, in bytes; default 0. An earlier answer's `next` goes on.
    #[serde(default)]
    offset: u64,
    /// At most so many bytes; default 12,000, at most 1 MiB.
    max_bytes: Option<u64>,
}

fn read(asked: Read) -> Result<Ask> {
    let Read { output_id, offset, max_bytes } = asked;
    let request = ReadTextRequest { output_id, offset, max_bytes: max_bytes.unwrap_or(DEFAULT).min(MAX) };
    Ok(Ask::from(Request::ReadText(request)).whole())
}

pub(super) fn add(all: &mut Vec<Builtin>) {
    all.push(builtin::<Read, TextPiece>(
        Sandbox,
        NAME,
        Effect::Reads,
        "Read on in a long output",
        "Gives any part of an output that was too long for its answer. It is kept for an hour at most, for this agent alone.",
        read,
    ));
}
