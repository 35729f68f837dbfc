//! What of this machine a local sandbox sees.
//!
//! Programs and what they need to start; nothing that is anybody's. Of `/etc`, only what is public by its nature: keys,
//! passwords and tokens lie in files that are not named here, whatever a program calls them. What a role needs beyond
//! that (a toolchain in somebody's home directory) is the operator's to name.

use super::super::ImageId;

/// Shown read-only in their own place, where they are there.
pub const PATHS: [&str; 50] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    // The store of Nix and its kin; programs' own directories hold links into it.
    "/nix/store",
    "/gnu/store",
    "/etc/alternatives",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/inputrc",
    "/etc/java-11-openjdk",
    "/etc/java-17-openjdk",
    "/etc/java-21-openjdk",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/locale.alias",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/magic",
    "/etc/magic.mime",
    "/etc/mailcap",
    "/etc/maven",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/perl",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/profile",
    "/etc/profile.d",
    "/etc/protocols",
    "/etc/python3",
    "/etc/python3.11",
    "/etc/services",
    "/etc/shells",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
    "/etc/xattr.conf",
    "/etc/zoneinfo",
];

/// What stands in the place of an image's id: whose programs they are, by the name and version of the system.
pub fn id() -> ImageId {
    let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        let plain: String = value.chars().filter(|c| c.is_ascii_alphanumeric() || "._-".contains(*c)).collect();
        (!plain.is_empty()).then_some(plain)
    };
    let words = [field("ID"), field("VERSION_ID")].into_iter().flatten().collect::<Vec<_>>();
    ImageId(format!("this-machine:{}", if words.is_empty() { "linux".to_owned() } else { words.join("-") }))
}
