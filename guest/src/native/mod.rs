//! The interfaces of the package where there is no component: the same types, and functions that ask the fakes of
//! [`crate::testing`]. What is here hides what is generated under the same name.

pub use crate::bindings::generated::skillhost::skill::types;

pub mod blackboard;
#[cfg(feature = "async")]
pub mod blackboard_async;
pub mod files;
#[cfg(feature = "async")]
pub mod files_async;
pub mod log;
pub mod sandbox;
#[cfg(feature = "async")]
pub mod sandbox_async;
pub mod scripts;
#[cfg(feature = "async")]
pub mod scripts_async;
