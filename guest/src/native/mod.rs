//! The interfaces of the package where there is no component: the same types, and functions that ask the fakes of
//! [`crate::testing`]. What is here hides what is generated under the same name.

pub use crate::bindings::generated::skillhost::skill::types;

pub mod blackboard;
pub mod files;
pub mod log;
pub mod sandbox;
pub mod scripts;
