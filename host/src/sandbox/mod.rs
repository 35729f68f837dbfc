//! Isolated environments to run commands in.

pub mod image_build;
