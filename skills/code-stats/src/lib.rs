//! Counts a tree of the project by language: copied into a sandbox, counted there, summed up here.
//!
//! The sandbox only says what each file is (bytes, lines, name); everything that can be wrong about names, languages
//! and order is plain code with tests, which run natively.

mod component {
    #![allow(unsafe_code, reason = "generated: here values cross into and out of the component")]
    skillhost_guest::bindings!("code-stats": blackboard, files, log, sandbox, types);
    export!(CodeStats);
    use super::CodeStats;
}
mod counting;
mod key;
mod languages;
mod tally;

use component::exports::skillhost::code_stats::stats::{Guest, Report};

const LARGEST_BY_DEFAULT: u32 = 10;
const LARGEST_AT_MOST: u32 = 100;

struct CodeStats;

impl Guest for CodeStats {
    fn count(path: String, largest: Option<u32>) -> Result<Report, String> {
        let largest = largest.unwrap_or(LARGEST_BY_DEFAULT);
        if largest > LARGEST_AT_MOST {
            return Err(format!("`largest` is {largest}; at most {LARGEST_AT_MOST} files are named"));
        }
        counting::count(path, largest as usize)
    }
}
