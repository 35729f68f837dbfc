//! skillhost: runs skills (WASI components) and brokers what they may do to the world.

#![warn(missing_docs)]

pub mod apart;
pub mod api;
pub mod approval;
mod beneath;
mod blackboard;
mod broker;
pub mod caller;
mod capabilities;
pub mod cli;
pub mod config;
mod db;
pub mod engine;
pub mod error;
pub mod host;
mod ids;
mod mcp;
mod private;
pub mod process;
mod project;
pub mod sandbox;
pub mod skills;
pub mod stamp;
pub mod units;
mod visible;
mod web;
