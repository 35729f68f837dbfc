//! The requests and answers of the host, and the Unix socket that carries them.

pub(crate) mod bytes;
pub mod client;
mod peer;
pub mod server;
#[cfg(test)]
mod tests;
pub mod types;
pub mod wire;
