//! Stub.
/// Stub.
pub const SUPERVISOR: &[u8] = b"stub";
/// Stub.
pub const SUPERVISOR_SHA256: &str = "0123456789abcdef0123456789abcdef";
