//! Ids: a prefix that says what it is, and 48 random bits.

fn random() -> String {
    let mut bytes = [0u8; 6];
    // The kernel's generator; it neither blocks nor fails once the machine has booted, and an id is no secret.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// An exec's id.
pub(crate) fn exec() -> String {
    format!("exec_{}", random())
}

/// An invocation's id.
pub(crate) fn invocation() -> String {
    format!("inv_{}", random())
}
