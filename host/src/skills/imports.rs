//! What a component imports, compared with what its manifest asks for.
//!
//! Checked when a skill is loaded, before anything is compiled: an import is a wish to act on the world, so it must
//! stand in the manifest, where the skill's user reads it. Whether the wish is granted is decided later, call by call.

use skillhost_api::error::{Error, Result};

use super::descriptor::Descriptor;
use super::manifest::{Capabilities, FILE, Manifest};

/// The package of our interfaces.
pub const PACKAGE: &str = "skillhost:skill";
/// The version of it that this host speaks.
pub const VERSION: &str = "0.1.0";

/// What an import is of. Whoever says something of each says it of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportKind {
    /// Of ours: types alone.
    Types,
    /// The invocation's log and progress.
    Log,
    /// Sandboxes and commands.
    Sandbox,
    /// Copies between host and sandboxes.
    Files,
    /// The operator's scripts.
    Scripts,
    /// The blackboard.
    Blackboard,
    /// Of WASI: what is the same for every skill.
    Wasi,
    /// The files of the workspace.
    WasiFiles,
    /// The network, which there is none of.
    WasiSockets,
}

/// An interface of the host, and what its import needs in the manifest.
struct KnownInterface {
    interface: &'static str,
    known: ImportKind,
    /// What it lets the skill do.
    lets: &'static str,
    /// None: it needs nothing.
    needs: Option<RequiredCapability>,
}

/// A capability that an import needs.
struct RequiredCapability {
    is_asked: fn(&Capabilities) -> bool,
    /// The line that asks for it.
    line: &'static str,
}

const OWN: &[KnownInterface] = &[
    KnownInterface { interface: "types", known: ImportKind::Types, lets: "do nothing: it only has types", needs: None },
    KnownInterface {
        interface: "log",
        known: ImportKind::Log,
        lets: "write to the invocation's log and report progress",
        needs: None,
    },
    KnownInterface {
        interface: "sandbox",
        known: ImportKind::Sandbox,
        lets: "launch sandboxes and run commands in them",
        needs: Some(RequiredCapability {
            is_asked: |asked| asked.sandbox.is_some(),
            line: "sandbox = { roles = [\"default\"] }",
        }),
    },
    KnownInterface {
        interface: "files",
        known: ImportKind::Files,
        lets: "copy files between host roots and its sandboxes",
        needs: Some(RequiredCapability {
            is_asked: |asked| asked.files.is_some(),
            line: "files = { copy-in = [\"project\"] }",
        }),
    },
    KnownInterface {
        interface: "scripts",
        known: ImportKind::Scripts,
        lets: "run the scripts and templates that the operator keeps for its sandboxes' roles",
        needs: Some(RequiredCapability {
            is_asked: |asked| asked.sandbox.is_some(),
            line: "sandbox = { roles = [\"default\"] }",
        }),
    },
    KnownInterface {
        interface: "blackboard",
        known: ImportKind::Blackboard,
        lets: "read and publish values that the agents of the session share",
        needs: Some(RequiredCapability {
            is_asked: |asked| asked.blackboard.is_some(),
            line: "blackboard = { publish = [\"KEYS:*\"], read = [\"KEYS:*\"] }",
        }),
    },
];

/// The parts of WASI 0.2 that are linked, and hold nothing but what the grant puts there.
const WASI: &[(&str, ImportKind, &str)] = &[
    (
        "cli",
        ImportKind::Wasi,
        "write standard output and error to its own log; there are no arguments, environment or input",
    ),
    ("clocks", ImportKind::Wasi, "read the time"),
    (
        "filesystem",
        ImportKind::WasiFiles,
        "use the files of the workspace when the manifest asks for it, otherwise none",
    ),
    ("io", ImportKind::Wasi, "wait for its own input and output"),
    ("random", ImportKind::Wasi, "get random numbers"),
    ("sockets", ImportKind::WasiSockets, "do nothing: no address can be reached"),
];

/// An import's name, taken apart.
struct ImportName<'a> {
    package: &'a str,
    interface: &'a str,
    version: &'a str,
}

fn take_apart(import: &str) -> Option<ImportName<'_>> {
    let (package, rest) = import.split_once('/')?;
    let (interface, version) = rest.split_once('@').unwrap_or((rest, ""));
    Some(ImportName { package, interface, version })
}

/// Refuses a component that imports what its manifest does not ask for, or what this host does not have.
pub fn check_imports(descriptor: &Descriptor, manifest: &Manifest) -> Result<()> {
    for import in &descriptor.imports {
        check(import, &manifest.capabilities)?;
    }
    Ok(())
}

fn check(import: &str, asked: &Capabilities) -> Result<()> {
    let refuse = |why: String| Err(Error::invalid_argument(format!("the component imports {import}: {why}")));
    let Some(name) = take_apart(import) else {
        return refuse("this host offers only interfaces of packages; import those of `skillhost:skill`".into());
    };
    if name.package == PACKAGE {
        let Some(own) = OWN.iter().find(|own| own.interface == name.interface) else {
            let known: Vec<_> = OWN.iter().map(|own| own.interface).collect();
            return refuse(format!("{PACKAGE} has no such interface; it has {}", known.join(", ")));
        };
        if name.version != VERSION {
            return refuse(format!(
                "this host speaks {PACKAGE}@{VERSION}; build the skill against that version of the WIT, or use a \
                 host that speaks @{}",
                name.version
            ));
        }
        return match &own.needs {
            Some(RequiredCapability { is_asked, line }) if !is_asked(asked) => {
                refuse(format!("{FILE} does not ask for it. Add to its [capabilities]: {line}"))
            }
            _ => Ok(()),
        };
    }
    match name.package.strip_prefix("wasi:") {
        Some("http") => refuse(
            "the `http` capability is not available in this version of skillhost; a sandbox with `network = \"bridge\"` \
             can make the request"
                .into(),
        ),
        Some(package) if !WASI.iter().any(|(known, ..)| *known == package) => {
            let known: Vec<_> = WASI.iter().map(|(known, ..)| format!("wasi:{known}")).collect();
            refuse(format!("this host offers nothing of that package; of WASI it has {}", known.join(", ")))
        }
        Some(_) if !name.version.starts_with("0.2.") => {
            refuse("this host speaks WASI 0.2; build the component for `wasm32-wasip2` or another target of WASI 0.2".into())
        }
        Some(_) => Ok(()),
        None => refuse(format!(
            "this host does not have it; a skill may import {PACKAGE}@{VERSION} and WASI 0.2, so drop it or compose the \
             component that provides it into this one"
        )),
    }
}

/// What an import is of, and what it lets a skill do, in words.
pub fn known(import: &str) -> Option<(ImportKind, &'static str)> {
    let name = take_apart(import)?;
    if name.package == PACKAGE {
        return OWN.iter().find(|own| own.interface == name.interface).map(|own| (own.known, own.lets));
    }
    let wasi = name.package.strip_prefix("wasi:")?;
    WASI.iter().find(|(package, ..)| wasi == *package).map(|(_, known, lets)| (*known, *lets))
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{Blackboard, Files, Sandbox};
    use super::*;

    #[test]
    fn our_version_is_that_of_the_wit_package() {
        let wit = include_str!("../../../wit/types.wit");
        assert!(wit.contains(&format!("package {PACKAGE}@{VERSION};")));
    }

    #[test]
    fn what_is_not_asked_for_is_refused_with_the_line_to_add() {
        let all = Capabilities {
            sandbox: Some(Sandbox::default()),
            files: Some(Files::default()),
            blackboard: Some(Blackboard::default()),
            http: None,
        };
        for own in OWN {
            let import = format!("{PACKAGE}/{}@{VERSION}", own.interface);
            check(&import, &all).unwrap();
            let bare = check(&import, &Capabilities::default());
            let Some(RequiredCapability { line, .. }) = own.needs else {
                bare.unwrap();
                continue;
            };
            let message = bare.unwrap_err().message;
            assert!(message.contains(&import) && message.contains(line), "{message}");
            // The line that the error tells to add is one that the manifest takes, and it is enough.
            let text = format!("[skill]\nname='a'\nversion='0.1.0'\ncomponent='a.wasm'\n[capabilities]\n{line}\n");
            let manifest = Manifest::parse(&text, std::path::Path::new(FILE)).unwrap();
            check(&import, &manifest.capabilities).unwrap();
        }
    }

    #[test]
    fn strangers_and_other_versions_are_refused() {
        for (import, said) in [
            ("skillhost:skill/sandbox@0.2.0", "speaks skillhost:skill@0.1.0"),
            ("skillhost:skill/shell@0.1.0", "no such interface"),
            ("wasi:http/outgoing-handler@0.2.0", "`http` capability is not available"),
            ("wasi:keyvalue/store@0.2.0", "nothing of that package"),
            ("wasi:cli/stdout@0.3.0", "WASI 0.2"),
            ("acme:db/query@1.0.0", "acme:db/query@1.0.0"),
            ("log", "only interfaces of packages"),
        ] {
            let asked = Capabilities { sandbox: Some(Sandbox::default()), ..Capabilities::default() };
            let message = check(import, &asked).unwrap_err().message;
            assert!(message.contains(said), "{message}");
        }
        check("wasi:cli/stdout@0.2.6", &Capabilities::default()).unwrap();
    }
}
