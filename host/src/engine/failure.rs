//! What is said when a guest does not come to its end.

use skillhost_api::error::Error;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi::{I32Exit, ResourceTableError};

use super::config::MAX_LIVE;
use super::limiter::LimitHit;
use crate::capabilities::Log;
use crate::skills::Limits;

/// How much of a guest's own text goes into a message.
const MAX_TEXT: usize = 2_000;
/// How many functions of the guest's stack are named.
const MAX_FRAMES: usize = 8;

/// The deadline passed.
pub(super) fn deadline(limits: &Limits) -> Error {
    Error::timed_out(format!(
        "the action ran longer than its deadline of {} ms and was ended: have it do less, or raise `deadline` under [limits] \
         in its skill.toml",
        limits.deadline.as_millis()
    ))
}

/// What an action is told that did not begin before its deadline.
pub(super) fn no_place(limits: &Limits) -> Error {
    Error::timed_out(format!(
        "{MAX_LIVE} actions run, as many as may at once, and none of them ended within the {} ms that this one had: call it again \
         later",
        limits.deadline.as_millis()
    ))
}

/// Why a call failed, in the terms of its limits where one of them is the cause.
pub(super) fn explain(error: &wasmtime::Error, limits: &Limits, hit: Option<LimitHit>, log: &Log) -> Error {
    let raise = |what: &str| format!("have it need less, or raise `{what}` under [limits] in its skill.toml");
    let trap = error.downcast_ref::<Trap>();
    match trap {
        Some(Trap::Interrupt) => return deadline(limits),
        Some(Trap::OutOfFuel) => {
            return Error::quota_exceeded(format!(
                "the action used up its {} units of fuel: {}",
                limits.fuel,
                raise("fuel")
            ));
        }
        Some(Trap::StackOverflow) => {
            return Error::quota_exceeded("the action used up its stack: it recurses too deeply, perhaps without end");
        }
        _ => {}
    }
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        return Error::quota_exceeded(format!(
            "the action holds its {} resources: drop what is no longer needed, or raise `resources` under [limits] in its skill.toml",
            limits.resources
        ));
    }
    // These errors of Wasmtime's have no name to ask for; tests hold their words.
    let text = format!("{error:#}");
    if let Some((_, what)) = text.split_once("resource limit exceeded: ") {
        return Error::quota_exceeded(format!(
            "the component needs more than it may have ({}): raise `memories`, `tables` or `instances` under [limits] in its \
             skill.toml",
            clip(what)
        ));
    }
    if text.contains("fuel allocated for hostcalls has been exhausted") {
        return Error::too_large(format!(
            "the action hands over more than {} bytes in one call: hand over less at a time, or raise `host-call-bytes` under \
             [limits] in its skill.toml",
            limits.host_call_bytes
        ));
    }
    if let Some(I32Exit(code)) = error.downcast_ref() {
        return Error::other(format!(
            "the action ended its program with exit({code}) instead of returning{}",
            last_words(log)
        ));
    }
    let cause = match trap {
        // A trap's own words are enough; the chain around it speaks of the host.
        Some(trap) => trap.to_string(),
        None => clip(&text),
    };
    let message = format!("the action trapped: {cause}{}{}", frames(error), last_words(log));
    match hit {
        // A refused growth reaches a guest as a failed allocation, and it rarely survives that.
        Some(LimitHit::Memory) => Error::quota_exceeded(format!(
            "the action used up its {} MiB of memory: {} ({message})",
            limits.memory_mib,
            raise("memory-mib")
        )),
        Some(LimitHit::TableElements) => Error::quota_exceeded(format!(
            "the action used up its {} table elements: {} ({message})",
            limits.table_elements,
            raise("table-elements")
        )),
        Some(LimitHit::OpenFiles) => Error::quota_exceeded(format!(
            "the action has its {} files open: close what is no longer needed, or raise `open-files` under [limits] in its \
             skill.toml ({message})",
            limits.open_files
        )),
        None => Error::other(message),
    }
}

fn frames(error: &wasmtime::Error) -> String {
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return String::new() };
    let names: Vec<&str> = backtrace.frames().iter().filter_map(|frame| frame.func_name()).take(MAX_FRAMES).collect();
    if names.is_empty() { String::new() } else { clip(&format!("; in {}", names.join(" < "))) }
}

fn last_words(log: &Log) -> String {
    let words = log.last_words();
    if words.is_empty() { String::new() } else { format!("; it said: {}", clip(&words)) }
}

fn clip(text: &str) -> String {
    match text.get(..text.floor_char_boundary(MAX_TEXT)) {
        Some(kept) if kept.len() < text.len() => format!("{kept}…"),
        _ => text.to_owned(),
    }
}
