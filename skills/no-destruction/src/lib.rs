//! A guardrail that denies commands which destroy a machine, and has a person asked about those that destroy work.

mod component {
    #![allow(unsafe_code, reason = "generated: here values cross into and out of the component")]
    wit_bindgen::generate!({ path: "wit", world: "no-destruction" });
    export!(NoDestruction);
    use super::NoDestruction;
}
mod judge;

use component::exports::skillhost::guardrail::checks::{Command, Effect, Guest, Verdict};
use judge::{Judgement, judge};

struct NoDestruction;

impl Guest for NoDestruction {
    fn check(effect: Effect) -> Verdict {
        let Effect::Command(Command { starts, unknown, .. }) = effect else { return Verdict::Allow };
        let mut asks = unknown.into_iter().next().map(|why| format!("it cannot be known what it starts: {why}"));
        for words in &starts {
            match judge(words) {
                Judgement::Harmless => {}
                Judgement::DestroysMachine(why) => return Verdict::Deny(why),
                Judgement::DestroysWork(why) => asks = Some(why),
            }
        }
        asks.map_or(Verdict::Allow, Verdict::Ask)
    }
}
