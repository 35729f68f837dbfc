//! What a skill in Rust imports from skillhost: the interfaces of `wit/`, bound once, with defaults for all options.
//!
//! A skill describes its own world and binds it with [`bindings!`]:
//!
//! ```ignore
//! skillhost_guest::bindings!("my-skill": log, sandbox, types);
//! use skillhost_guest::sandbox::{Command, Container, LaunchOptions};
//!
//! let options = LaunchOptions { role: "default".into(), ..LaunchOptions::default() };
//! let sandbox = Container::launch(&options).map_err(|error| error.describe("no sandbox could be launched"))?;
//! ```

mod component {
    #![allow(unsafe_code, missing_docs, reason = "generated: here values cross into and out of the component")]
    #![allow(clippy::all, reason = "generated")]
    wit_bindgen::generate!({
        path: "../wit",
        world: "everything",
        // A skill's own description is in its own section; one of this crate stands beside it.
        type_section_suffix: "skillhost-guest",
        additional_derives: [Default],
        // Options have defaults; what the host says has none.
        additional_derives_ignore: [
            "change", "chunk", "command", "error", "event", "exec-result", "file-entry", "file-kind", "level", "line-result",
            "network", "outcome", "process-result", "source",
        ],
        generate_all,
    });
}

pub use component::skillhost::skill::{blackboard, files, log, sandbox, scripts, types};
#[doc(hidden)]
pub use wit_bindgen;

/// Binds the world of a skill, whose WIT is in `wit` beside its `Cargo.toml`: what it exports is generated, what it imports
/// from skillhost, named after the world, is this crate's. Whoever uses more than `log` uses `types` as well.
#[macro_export]
macro_rules! bindings {
    ($world:literal: $($interface:ident),* $(,)?) => {
        $crate::bindings!(@ $world [] $($interface)*);
    };
    (@ $world:literal [$($with:tt)*] blackboard $($rest:ident)*) => {
        $crate::bindings!(@ $world [$($with)* "skillhost:skill/blackboard@0.1.0": skillhost_guest::blackboard,] $($rest)*);
    };
    (@ $world:literal [$($with:tt)*] files $($rest:ident)*) => {
        $crate::bindings!(@ $world [$($with)* "skillhost:skill/files@0.1.0": skillhost_guest::files,] $($rest)*);
    };
    (@ $world:literal [$($with:tt)*] log $($rest:ident)*) => {
        $crate::bindings!(@ $world [$($with)* "skillhost:skill/log@0.1.0": skillhost_guest::log,] $($rest)*);
    };
    (@ $world:literal [$($with:tt)*] sandbox $($rest:ident)*) => {
        $crate::bindings!(@ $world [$($with)* "skillhost:skill/sandbox@0.1.0": skillhost_guest::sandbox,] $($rest)*);
    };
    (@ $world:literal [$($with:tt)*] scripts $($rest:ident)*) => {
        $crate::bindings!(@ $world [$($with)* "skillhost:skill/scripts@0.1.0": skillhost_guest::scripts,] $($rest)*);
    };
    (@ $world:literal [$($with:tt)*] types $($rest:ident)*) => {
        $crate::bindings!(@ $world [$($with)* "skillhost:skill/types@0.1.0": skillhost_guest::types,] $($rest)*);
    };
    (@ $world:literal [$($with:tt)*]) => {
        $crate::wit_bindgen::generate!({
            path: "wit",
            world: $world,
            runtime_path: "skillhost_guest::wit_bindgen::rt",
            with: { $($with)* },
            generate_all,
        });
    };
}

impl types::Error {
    /// The error's kind, as WIT and the audit log name it.
    pub fn kind(&self) -> &'static str {
        self.parts().0
    }

    /// What happened, why, and what to do.
    pub fn message(&self) -> &str {
        self.parts().1
    }

    /// The error in words, as that of `what` could not be done.
    pub fn describe(&self, what: &str) -> String {
        let (kind, message) = self.parts();
        format!("{what} ({kind}): {message}")
    }

    fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Denied(message) => ("denied", message),
            Self::QuotaExceeded(message) => ("quota-exceeded", message),
            Self::Permission(message) => ("permission", message),
            Self::InvalidArgument(message) => ("invalid-argument", message),
            Self::NotFound(message) => ("not-found", message),
            Self::AlreadyExists(message) => ("already-exists", message),
            Self::Conflict(conflict) => ("conflict", &conflict.message),
            Self::NotOwner(message) => ("not-owner", message),
            Self::TimedOut(message) => ("timed-out", message),
            Self::Cancelled(message) => ("cancelled", message),
            Self::TooLarge(message) => ("too-large", message),
            Self::SandboxDied(message) => ("sandbox-died", message),
            Self::Unavailable(message) => ("unavailable", message),
            Self::Other(message) => ("other", message),
        }
    }
}
