//! Whether whom commands run as is somebody on this machine.
//!
//! An ordinary user's commands are that user's. Those of a host that runs as root have a number that is nobody's to it, but is the first
//! person's on most machines.

use skillhost_api::types::Check;

use crate::sandbox::members::SandboxUser;

/// What a person should know of it; `passwd` is the machine's list of users.
pub(super) fn check(is_root: bool, commands: SandboxUser, passwd: &str) -> Option<Check> {
    let name = name_of(passwd, commands.uid).filter(|_| is_root)?;
    Some(Check {
        name: "user of commands".into(),
        ok: false,
        detail: format!(
            "the host runs as root, so commands in sandboxes run as uid {}, who is `{name}` on this machine: `{name}` can read the \
             memory and files of all tenants' commands, and end them",
            commands.uid
        ),
        remedy: Some("run the host as an ordinary user of its own, or give that person another uid".into()),
    })
}

fn name_of(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_with_the_commands_number_is_named_where_root_runs_the_host() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\n:\nada:x:1000:1000:Ada:/home/ada:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n";
        let commands = SandboxUser { uid: 1000, gid: 1000 };
        let found = check(true, commands, passwd).unwrap();
        assert!(!found.ok && found.detail.contains("`ada`"), "{}", found.detail);
        assert!(check(false, commands, passwd).is_none());
        assert!(check(true, SandboxUser { uid: 1002, gid: 1002 }, passwd).is_none());
        assert!(check(true, commands, "").is_none());
    }
}
