//! The requests and answers of the host, and the Unix socket that carries them.

pub(crate) mod bytes;
pub mod types;
