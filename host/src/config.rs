//! The operator's configuration, `skillhost.toml`. The environment and flags, which stand above it, are the command line's.
//!
//! Unknown keys are refused with their place: a misspelt limit that is silently ignored is no limit. Every key has a
//! default, so an absent file is a complete configuration.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::api::types::Network;
use crate::broker::quota::QuotaLimits;
use crate::db::Durability;
use crate::error::{Error, Result};
use crate::sandbox::images::Roles;
use crate::units;

/// The largest configuration file that is read.
const MAX_FILE: u64 = 1024 * 1024;

/// The operator's word.
#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Config {
    /// `auto`, `docker` or `local`; `--backend`, `SKILLHOST_BACKEND` and `SANDBOX_TYPE` stand above it.
    pub backend: Option<String>,
    /// The roles' file, relative to this one; the built-in roles when absent.
    pub images: Option<PathBuf>,
    /// How long an idle host process with no sandbox stays (default 60s).
    pub idle_exit: Option<Span>,
    /// What an acknowledged write survives: `process` (default) or `power`.
    pub durability: Durability,
    /// What one agent may hold at once.
    pub quota: QuotaLimits,
    /// Sandboxes.
    pub sandbox: SandboxConfig,
    /// Local sandboxes, those of this machine's own kernel.
    pub local: LocalConfig,
    /// What skills may be granted.
    pub policy: Policy,
    /// Host directories that skills may name.
    pub roots: BTreeMap<String, Root>,
}

/// A duration as people write it: `90s`, `2m`, `500ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Span(pub Duration);

impl TryFrom<String> for Span {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Ok(Self(units::parse_duration(&text).map_err(Error::invalid_argument)?))
    }
}

/// Sandboxes' defaults and ceilings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct SandboxConfig {
    /// A command's deadline when it asks for none (default 120s; a caller's `SANDBOX_TIMEOUT_SEC` is what it asks for).
    pub exec_timeout: Span,
    /// The longest deadline that a command can have (default 600s).
    pub exec_timeout_ceiling: Span,
    /// How long a sandbox lives at most (default 1h).
    pub wall_time: Span,
    /// How long a sandbox outlives a host process that has died (default 30s).
    pub lease: Span,
    /// Processes and threads of a sandbox's workload (default 256).
    pub pids: u32,
}

impl Default for SandboxConfig {
    fn default() -> Self {
        let seconds = |seconds| Span(Duration::from_secs(seconds));
        Self {
            exec_timeout: seconds(120),
            exec_timeout_ceiling: seconds(600),
            wall_time: seconds(3600),
            lease: seconds(30),
            pids: 256,
        }
    }
}

/// What local sandboxes are confined by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// The kernel's namespaces and a filter of system calls; refused where they cannot be had.
    #[default]
    Namespaces,
    /// Nothing.
    None,
}

/// Local sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct LocalConfig {
    /// `namespaces` (default), or `none`: commands then run on this machine as the host's user (as uid 1000 where that is
    /// root), and each waits for its owner's `skillhost approve`.
    pub isolation: Isolation,
    /// Paths of this machine that local sandboxes see, read-only and in their own place, besides the system's programs
    /// (default: none). Absolute; a toolchain in a home directory, say.
    pub read_only: Vec<PathBuf>,
    /// Environment of every command in a local sandbox (default: none). A sandbox's and a command's own stand above it.
    pub env: BTreeMap<String, String>,
}

/// What skills may be granted at most. A skill gets what its manifest asks for and this allows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct Policy {
    /// Roles (default: all that are listed).
    pub roles: Option<Vec<String>>,
    /// Networks (default: `none` alone). Also what the command line may launch.
    pub network: Vec<Network>,
    /// Cores of one sandbox (default 4).
    pub cpus: f64,
    /// Memory of one sandbox in MiB (default 8192).
    pub memory_mib: u64,
    /// Host roots that skills may copy out to (default: none).
    pub copy_out: Vec<String>,
    /// Rules for single skills by name; what they say stands in place of the above.
    pub skills: BTreeMap<String, SkillPolicy>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            roles: None,
            network: vec![Network::None],
            cpus: 4.0,
            memory_mib: 8192,
            copy_out: Vec::new(),
            skills: BTreeMap::new(),
        }
    }
}

/// What one skill may be granted; what is absent is as for all.
#[derive(Debug, Clone, PartialEq, Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct SkillPolicy {
    /// Roles.
    pub roles: Option<Vec<String>>,
    /// Networks.
    pub network: Option<Vec<Network>>,
    /// Host roots that it may copy in from.
    pub copy_in: Option<Vec<String>>,
    /// Host roots that it may copy out to.
    pub copy_out: Option<Vec<String>>,
}

/// A host directory that skills may name.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Root {
    /// Absolute, or relative to the configuration file.
    pub path: PathBuf,
}

impl Config {
    /// The configuration in force: `named`, or the user's own file when there is one.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let file = named.map(Path::to_owned).or_else(users_own);
        Self::load(file.as_deref())
    }

    /// The roles: the file that is named, or those that are built in.
    pub fn roles(&self) -> Result<Roles> {
        match &self.images {
            Some(path) => Roles::load(path),
            None => Roles::shipped(),
        }
    }

    /// Reads the file, when there is one.
    pub fn load(file: Option<&Path>) -> Result<Self> {
        let mut config = match file {
            Some(path) => Self::read(path)?,
            None => Self::default(),
        };
        if config.sandbox.exec_timeout.0 > config.sandbox.exec_timeout_ceiling.0 {
            config.sandbox.exec_timeout = config.sandbox.exec_timeout_ceiling;
        }
        Ok(config)
    }

    fn read(path: &Path) -> Result<Self> {
        let place = |error: std::io::Error| Error::from(error).context(format!("cannot read {}", path.display()));
        let size = std::fs::metadata(path).map_err(place)?.len();
        if size > MAX_FILE {
            let message = format!("{} has {size} bytes; a configuration has at most {MAX_FILE}", path.display());
            return Err(Error::too_large(message));
        }
        let text = std::fs::read_to_string(path).map_err(place)?;
        let mut config: Self = toml::from_str(&text).map_err(|error| {
            Error::invalid_argument(format!("{}: {}", path.display(), error.to_string().trim_end()))
        })?;
        if let Some(odd) = config.local.read_only.iter().find(|shown| !can_be_shown(shown)) {
            return Err(Error::invalid_argument(format!(
                "{}: [local] read-only = {:?}: a path that sandboxes see must be absolute, plain, and neither `/` nor in \
                 what every sandbox has of its own (/dev, /proc, /workspace, /.skillhost)",
                path.display(),
                odd.display().to_string()
            )));
        }
        let base = path.parent().unwrap_or(Path::new("."));
        if let Some(images) = &mut config.images {
            *images = base.join(&*images);
        }
        for root in config.roots.values_mut() {
            root.path = base.join(&root.path);
        }
        Ok(config)
    }
}

/// Whether a path of this machine can be seen in a sandbox in its own place.
fn can_be_shown(path: &Path) -> bool {
    use std::path::Component;
    let mut parts = path.components();
    let plain = parts.next() == Some(Component::RootDir) && parts.all(|part| matches!(part, Component::Normal(_)));
    let taken = ["/dev", "/proc", "/workspace", "/.skillhost"].iter().any(|own| path.starts_with(own));
    plain && !taken && ![Path::new("/"), Path::new("/tmp")].contains(&path)
}

/// `skillhost/skillhost.toml` where the user's programs keep their configuration.
fn users_own() -> Option<PathBuf> {
    let from_env = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = from_env("XDG_CONFIG_HOME").or_else(|| from_env("HOME").map(|home| home.join(".config")))?;
    let file = base.join("skillhost/skillhost.toml");
    file.exists().then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("skillhost.toml");
        std::fs::write(&path, text).unwrap();
        Config::load(Some(&path))
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = load("backend = \"docker\"\n[quota]\nsandboxs = 3\n").unwrap_err();
        assert!(error.message.contains("line 3") && error.message.contains("sandboxs"), "{error}");
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let config = load("images = \"roles.toml\"\n[roots.data]\npath = \"data\"\n").unwrap();
        assert!(config.images.unwrap().is_absolute());
        assert!(config.roots["data"].path.is_absolute());
    }
}
