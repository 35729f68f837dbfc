//! The `skillhost` program.

fn main() {}
