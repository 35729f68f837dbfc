//! Whose environment is whose: every command, script and shell of every agent gets its environment from
//! [`SandboxInfo::account`] and [`Account::env_with`].
//!
//! It has layers, and the later wins:
//!
//! 1. **The operator's, for everybody**: what the image sets, `[local] env`, and the supervisor's defaults. PID 1 has them, and
//!    lays them beneath every command. No caller can add to them.
//! 2. **The agent's own places** in a shared sandbox: `HOME` and `TMPDIR`.
//! 3. **What the launch gave, for its owner alone.** A variable can make a program load code (`BASH_ENV`, `LD_PRELOAD`, `PATH`,
//!    `HOME`); given to another agent's commands, it would be the owner's code with that agent's rights.
//! 4. **The command's own**, from the agent that asked for it. A script of the operator's has `[[script-env]]` above it.
//!
//! Where all that names no `HOME` which can be written, `HOME` is the agent's own place all the same, and never a directory in
//! which another user could leave a profile: `/tmp` only where the sandbox and its `/tmp` are one agent's.

use std::collections::BTreeMap;

use skillhost_api::error::{Error, Result};
use skillhost_api::types::Command;

use super::images::MAX_ARGUMENT;
use super::link::{DEFAULT_HOME, User};
use super::members::MemberSlot;
use super::spec::SandboxInfo;

/// The most text of a command and its environment. Linux takes 2 MiB with everything that it counts.
const MAX_COMMAND: usize = 3 * 512 * 1024;
/// The same with what the kernel counts for each string, its end and a pointer; the image's own environment has the rest.
const MAX_COUNTED: usize = 15 * 128 * 1024;
const FOR_EACH: usize = 9;

/// An agent's user in a sandbox, and what is that agent's own of its commands' environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Whom its commands and file calls run as.
    pub user: User,
    /// `HOME` where the environment names none that can be written.
    pub home: String,
    /// Beneath a command's own.
    pub env: BTreeMap<String, String>,
}

impl SandboxInfo {
    /// The account of an agent of its session: the owner, or one that is attached.
    pub fn account(&self, agent: &str) -> Option<Account> {
        let slot = self.slot(agent)?;
        let (user, home) = match self.shared {
            true => (slot.user(self.identity), slot.home()),
            false => {
                let home = self.home.clone().unwrap_or_else(|| DEFAULT_HOME.to_owned());
                (self.identity.user(), home)
            }
        };
        let mut env = BTreeMap::new();
        if self.shared {
            env.extend(["HOME", "TMPDIR"].map(|name| (name.to_owned(), home.clone())));
        }
        if slot == MemberSlot::OWNER {
            env.extend(self.env.clone());
        }
        Some(Account { user, home, env })
    }
}

impl Account {
    /// The environment of a command that has this one of its own.
    pub fn env_with(&self, own: BTreeMap<String, String>) -> Result<BTreeMap<String, String>> {
        check_env(&own)?;
        let mut env = self.env.clone();
        env.extend(own);
        Ok(env)
    }
}

/// Refuses names and values that an environment cannot hold.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<()> {
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Error::invalid_argument(format!(
                "{:?} is not a name of an environment variable: it must not be empty or hold `=` or a zero byte",
                clip(name)
            )));
        }
        if value.contains('\0') {
            return Err(Error::invalid_argument(format!(
                "the value of the environment variable {} holds a zero byte, which an environment cannot carry",
                clip(name)
            )));
        }
    }
    check_size(&[], env)
}

/// Refuses a command that no kernel starts with this environment.
pub(super) fn check_command(command: &Command, env: &BTreeMap<String, String>) -> Result<()> {
    match command {
        Command::Argv(argv) => check_size(argv, env),
        Command::Shell(line) => check_size(std::slice::from_ref(line), env),
    }
}

fn check_size(argv: &[String], env: &BTreeMap<String, String>) -> Result<()> {
    const REMEDY: &str = "write what is long to a file of the sandbox, or give it as standard input";
    if let Some(argument) = argv.iter().find(|argument| argument.len() > MAX_ARGUMENT) {
        return Err(Error::too_large(format!(
            "an argument, or the line for the shell, has {} bytes, and Linux takes at most {MAX_ARGUMENT} in one: {REMEDY}",
            argument.len()
        )));
    }
    let variable = |(name, value): (&String, &String)| name.len() + 1 + value.len();
    if let Some((name, value)) = env.iter().find(|one| variable(*one) > MAX_ARGUMENT) {
        return Err(Error::too_large(format!(
            "the environment variable {} has {} bytes with its name, and Linux takes at most {MAX_ARGUMENT} in one: {REMEDY}",
            clip(name),
            variable((name, value))
        )));
    }
    let text = argv.iter().map(String::len).sum::<usize>() + env.iter().map(variable).sum::<usize>();
    let strings = argv.len() + env.len();
    if text > MAX_COMMAND || text + strings * FOR_EACH > MAX_COUNTED {
        return Err(Error::too_large(format!(
            "the command and its environment have {text} bytes in {strings} strings, and at most {MAX_COMMAND} bytes are taken, or \
             {MAX_COUNTED} with the {FOR_EACH} that Linux counts for each string: {REMEDY}"
        )));
    }
    Ok(())
}

/// Refuses a line for a persistent shell that is longer than a whole command may be.
pub(super) fn check_line(line: &str) -> Result<()> {
    match line.len() > MAX_COMMAND {
        true => Err(Error::too_large(format!(
            "the line has {} bytes, and at most {MAX_COMMAND} are taken: write it to a file of the sandbox, and source that",
            line.len()
        ))),
        false => Ok(()),
    }
}

/// As much of a name that anybody may have made up as an error repeats.
fn clip(name: &str) -> String {
    name.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skillhost_api::error::ErrorKind;

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_the_launch_gave_is_the_owners_alone() {
        let mut info = SandboxInfo::for_test("owner");
        info.shared = true;
        info.env = env(&[("BASH_ENV", "/workspace/x"), ("HOME", "/workspace/h"), ("TMPDIR", "/workspace")]);
        info.members.attach("member").unwrap();
        let (owner, member) = (info.account("owner").unwrap(), info.account("member").unwrap());
        assert_eq!(owner.env, info.env);
        assert_eq!(member.env, env(&[("HOME", &member.home), ("TMPDIR", &member.home)]));
        assert_ne!(owner.home, member.home);
        assert_eq!(info.account("stranger"), None);
        // Also for who was there before, and comes back.
        info.members.detach("member");
        assert_eq!(info.account("member"), None);
        info.members.attach("member").unwrap();
        assert_eq!(info.account("member").unwrap(), member);
        // What a member says for its own command is its own.
        let own = member.env_with(env(&[("HOME", "/elsewhere")])).unwrap();
        assert_eq!((own["HOME"].as_str(), &own["TMPDIR"]), ("/elsewhere", &member.home));
    }

    #[test]
    fn without_others_the_home_is_the_sandboxs_own() {
        let mut info = SandboxInfo::for_test("owner");
        info.env = env(&[("A", "b")]);
        let account = info.account("owner").unwrap();
        assert_eq!((account.home.as_str(), &account.env), ("/tmp", &info.env));
        info.home = Some("/state/sandboxes/sbx/home".into());
        assert_eq!(info.account("owner").unwrap().home, "/state/sandboxes/sbx/home");
    }

    #[test]
    fn what_no_kernel_starts_is_too_large_and_names_the_limit() {
        let argv = |sizes: &[usize]| Command::Argv(sizes.iter().map(|size| "x".repeat(*size)).collect());
        let none = BTreeMap::new();
        check_command(&argv(&[64 * 1024; 24]), &none).unwrap();
        check_command(&argv(&[MAX_ARGUMENT]), &none).unwrap();
        let many = |count: usize| -> BTreeMap<String, String> {
            (0..count).map(|number| (format!("V{number:03}"), "y".repeat(64 * 1024 - 5))).collect()
        };
        check_command(&argv(&[64 * 1024; 8]), &many(16)).unwrap();
        for (command, env, names) in [
            (argv(&[MAX_ARGUMENT + 1]), none.clone(), MAX_ARGUMENT),
            (Command::Shell("x".repeat(MAX_ARGUMENT + 1)), none.clone(), MAX_ARGUMENT),
            (argv(&[64 * 1024; 25]), none.clone(), MAX_COMMAND),
            (argv(&[64 * 1024; 9]), many(16), MAX_COMMAND),
            (argv(&[1; 200_000]), none.clone(), MAX_COUNTED),
            (argv(&[1]), BTreeMap::from([("A".to_owned(), "x".repeat(MAX_ARGUMENT))]), MAX_ARGUMENT),
        ] {
            let error = check_command(&command, &env).unwrap_err();
            assert_eq!(error.kind, ErrorKind::TooLarge);
            assert!(error.message.contains(&names.to_string()) && error.message.len() < 400, "{error}");
        }
    }
}
