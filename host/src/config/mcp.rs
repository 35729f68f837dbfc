//! What clients of the Model Context Protocol are offered.

use serde::Deserialize;

/// What is offered as tools.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default, deny_unknown_fields)]
pub struct McpConfig {
    /// What stands between the names of plugin, skill and action in a tool's name: `.` (default), or `__` for clients that
    /// take no dots.
    pub separator: Separator,
    /// Which groups of tools there are (default: all).
    pub tools: Vec<Group>,
    /// How many milliseconds a call may take before a client that knows tasks is given a task in its place (default 2000).
    pub task_after_ms: u64,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self { separator: Separator::Dot, tools: Group::ALL.to_vec(), task_after_ms: 2_000 }
    }
}

/// What joins names. Neither is in a name of a skill, so that no two skills can make one tool's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
pub enum Separator {
    /// `code-stats.count`
    #[serde(rename = ".")]
    #[value(name = ".")]
    Dot,
    /// `code-stats__count`
    #[serde(rename = "__")]
    #[value(name = "__")]
    Underscores,
}

impl Separator {
    /// As it stands in a name.
    pub fn text(self) -> &'static str {
        match self {
            Self::Dot => ".",
            Self::Underscores => "__",
        }
    }
}

/// Tools that are there together or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// A tool for each action of each skill.
    Actions,
    /// `run_skill`, `list_skills` and their like: all skills with five tools.
    Skills,
    /// Sandboxes: commands, scripts, shells, processes, files.
    Sandbox,
    /// The session's blackboard.
    Blackboard,
}

impl Group {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Actions, Self::Skills, Self::Sandbox, Self::Blackboard];
}
