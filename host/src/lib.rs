//! skillhost: runs skills (WASI components) and brokers what they may do to the world.

#![warn(missing_docs)]

pub mod api;
pub mod caller;
pub mod error;
pub mod sandbox;
