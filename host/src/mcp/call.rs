//! One call of the host: what goes to it, what is heard on the way, and the result that a client is given.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::progress::Progress;
use super::tools::{Ask, Shape, Tell};
use crate::api::server::Service;
use crate::api::types::{Call, Event, Request};
use crate::error::{Error, Result};
use crate::host::{CallIo, Output};

/// Pieces of output that wait to be looked at.
pub(super) const QUEUE: usize = 16;
/// The longest piece of input.
const PIECE: usize = 64 * 1024;
/// How much of a long output the text for a model has: so many characters of its beginning, and as many of its end.
const PREVIEW: usize = 8_000;

/// Calls the host. Dropping the future cancels the call.
pub(super) async fn call<S: Service>(
    service: &S,
    call: Call,
    input: Option<Bytes>,
    tell: Tell,
    progress: Option<&mut Progress>,
) -> Result<CallToolResult> {
    let place = place(&call.request);
    let (output, mut pieces) = mpsc::channel(QUEUE);
    let (feed, input) = match input {
        Some(bytes) => {
            let (feed, input) = mpsc::channel(1);
            (Some((feed, bytes)), Some(input))
        }
        None => (None, None),
    };
    let mut heard = Heard { tell, progress, bytes: Vec::new(), more: false, events: Vec::new() };
    let answer = {
        let mut calling = std::pin::pin!(async {
            let (answer, ()) = tokio::join!(service.call(call, CallIo { output, input }), feeding(feed));
            answer
        });
        let mut listening = std::pin::pin!(async {
            loop {
                let patience = heard.progress.as_ref().map(|progress| progress.patience());
                let piece = match patience {
                    None => pieces.recv().await,
                    Some(patience) => match timeout(patience, pieces.recv()).await {
                        Ok(piece) => piece,
                        Err(_) => {
                            heard.overdue().await;
                            continue;
                        }
                    },
                };
                let Some(piece) = piece else { return false };
                if heard.enough(piece).await {
                    return true;
                }
            }
        });
        let mut patience = std::pin::pin!(async {
            match tell {
                Tell::Events { patience, .. } => sleep(patience).await,
                _ => std::future::pending().await,
            }
        });
        tokio::select! {
            biased;
            enough = &mut listening => match enough {
                // The call's end is not waited for: it would tell the rest.
                true => None,
                false => Some(calling.await?),
            },
            answer = &mut calling => {
                let answer = answer?;
                // What came before the answer belongs to it.
                listening.await;
                Some(answer)
            }
            () = &mut patience => None,
        }
    };
    // After its answer a call makes no progress any more.
    heard.tell().await;
    heard.result(answer, place)
}

async fn feeding(feed: Option<(mpsc::Sender<Bytes>, Bytes)>) {
    let Some((feed, mut bytes)) = feed else { return };
    while !bytes.is_empty() {
        let piece = bytes.split_to(bytes.len().min(PIECE));
        // Whoever reads no more has had enough.
        if feed.send(piece).await.is_err() {
            return;
        }
    }
}

/// What a request is about, for an answer that is not waited for.
fn place(request: &Request) -> Option<(String, String)> {
    match request {
        Request::ReadFile { container_id, path } => Some((container_id.clone(), path.clone())),
        _ => None,
    }
}

/// What came before the answer.
struct Heard<'a> {
    tell: Tell,
    progress: Option<&'a mut Progress>,
    bytes: Vec<u8>,
    more: bool,
    events: Vec<Value>,
}

impl Heard<'_> {
    async fn tell(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.tell().await;
        }
    }

    async fn overdue(&mut self) {
        if let Some(progress) = &mut self.progress {
            progress.overdue().await;
        }
    }

    /// Takes a piece; whether nothing more is wanted.
    async fn enough(&mut self, piece: Output) -> bool {
        match (self.tell, piece) {
            (Tell::File { max }, Output::Stdout(bytes)) => {
                let room = max - self.bytes.len();
                self.more = bytes.len() > room;
                self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(&bytes));
                return self.more;
            }
            (Tell::Events { max, .. }, Output::Event(Event::File(change))) if change.change != "watching" => {
                self.events.push(serde_json::to_value(change).unwrap_or_default());
                return self.events.len() >= max;
            }
            (Tell::Events { max, .. }, Output::Event(Event::Blackboard(event))) => {
                self.events.push(serde_json::to_value(event).unwrap_or_default());
                return self.events.len() >= max;
            }
            (_, piece) => {
                if let Some(progress) = &mut self.progress {
                    progress.heard(piece).await;
                }
            }
        }
        false
    }

    fn result(self, answer: Option<Value>, place: Option<(String, String)>) -> Result<CallToolResult> {
        match self.tell {
            Tell::Answer => answer.map(told).ok_or_else(no_answer),
            Tell::Action(shape) => answer.map(|answer| action(answer, shape)).ok_or_else(no_answer),
            Tell::Events { .. } => {
                let count = self.events.len();
                Ok(told(json!({"events": self.events, "count": count})))
            }
            Tell::File { .. } => {
                let mut answer = match (answer, place) {
                    (Some(answer), _) => answer,
                    (None, Some((container_id, path))) => json!({
                        "container_id": container_id, "path": path, "ok": true, "bytes": self.bytes.len(),
                        "message": "there is more: ask for more with `max_bytes`, or copy the file out",
                    }),
                    (None, None) => return Err(no_answer()),
                };
                if let Some(answer) = answer.as_object_mut() {
                    match String::from_utf8(self.bytes) {
                        Ok(text) => answer.insert("content".into(), text.into()),
                        Err(error) => {
                            answer.insert("content_encoding".into(), "base64".into());
                            answer.insert("content".into(), STANDARD.encode(error.as_bytes()).into())
                        }
                    };
                    answer.insert("truncated".into(), self.more.into());
                }
                Ok(told(answer))
            }
        }
    }
}

fn no_answer() -> Error {
    Error::other("the host gave no answer; please report this")
}

/// An answer as a result: whole for programs, and as a text that a model can bear.
fn told(answer: Value) -> CallToolResult {
    let mut result = CallToolResult::structured(Value::Null);
    result.content =
        vec![ContentBlock::text(shortened(&answer).map_or_else(|| answer.to_string(), |short| short.to_string()))];
    result.structured_content = Some(answer);
    result
}

/// A skill's own result or failure.
fn action(mut answer: Value, shape: Shape) -> CallToolResult {
    let failed = answer.get("failed").and_then(Value::as_bool).unwrap_or_default();
    if failed {
        let failure = answer.get("failure").cloned().unwrap_or_default();
        let text = failure.as_str().map_or_else(|| failure.to_string(), str::to_owned);
        return CallToolResult::error(vec![ContentBlock::text(format!("the skill failed: {text}"))]);
    }
    match shape {
        Shape::Whole => told(answer),
        Shape::Object => told(answer.get_mut("result").map(Value::take).unwrap_or_default()),
        Shape::Field => told(json!({"result": answer.get_mut("result").map(Value::take).unwrap_or_default()})),
    }
}

/// The same with less of a long output, when there is one.
fn shortened(answer: &Value) -> Option<Value> {
    let is_long = |text: &&str| text.len() > 2 * PREVIEW + PREVIEW / 8;
    let long: Vec<_> = ["stdout", "stderr"]
        .into_iter()
        .filter_map(|stream| Some((stream, answer.get(stream)?.as_str().filter(is_long)?)))
        .collect();
    if long.is_empty() || answer.get("exec_id").is_none() {
        return None;
    }
    let mut short = answer.clone();
    for (stream, text) in long {
        let head = text.get(..text.floor_char_boundary(PREVIEW)).unwrap_or_default();
        let tail = text.get(text.ceil_char_boundary(text.len() - PREVIEW)..).unwrap_or_default();
        let left_out = text.len() - head.len() - tail.len();
        if let Some(fields) = short.as_object_mut() {
            fields.insert(stream.into(), format!("{head}\n… {left_out} bytes are left out here …\n{tail}").into());
        }
    }
    Some(short)
}

/// An error of the host as a result that a model can learn from.
pub(super) fn failed(error: &Error) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(format!("{}: {}", error.kind, error.message))])
}

/// What an ask becomes when its output is to be told as it comes.
pub(super) fn streamed(mut ask: Ask) -> Ask {
    match &mut ask.request {
        Request::Exec(request) => request.stream = true,
        Request::ExecuteScript(request) => request.stream = true,
        Request::RunScript(request) => request.stream = true,
        _ => {}
    }
    ask
}
