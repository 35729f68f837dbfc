//! The host process and the machine it runs on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One role.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageSummary {
    /// The role.
    pub role: String,
    /// The image's reference.
    pub image: String,
    /// What it holds.
    pub description: String,
    /// Whether the engine has it.
    pub present: bool,
    /// Its id when present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The backend that has it when present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
}

/// The roles.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ImageList {
    /// By role.
    pub images: Vec<ImageSummary>,
    /// Entries of the roles' file that were skipped, with their place.
    pub problems: Vec<String>,
}

/// One thing that `doctor` looked at.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// Whether it is well.
    pub ok: bool,
    /// What was seen.
    pub detail: String,
    /// What to do when it is not well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// What `doctor` saw.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DoctorReport {
    /// In order.
    pub checks: Vec<Check>,
    /// Whether skills can run commands here.
    pub can_sandbox: bool,
}

/// The host process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HostStatus {
    /// Its process id.
    pub pid: u32,
    /// skillhost's version.
    pub version: String,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Since when, milliseconds since 1970.
    pub started_at_ms: u64,
    /// Calls under way.
    pub calls: usize,
    /// Sandboxes that run.
    pub sandboxes: usize,
    /// The backend in use.
    pub backend: String,
}

/// Done, with nothing more to say than this.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Done {
    /// In words.
    pub message: String,
}
