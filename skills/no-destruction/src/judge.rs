//! What one program with its arguments destroys.

/// What it destroys, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Judgement {
    Harmless,
    /// What nobody can mean in a sandbox.
    DestroysMachine(String),
    /// What somebody may mean, and cannot take back.
    DestroysWork(String),
}

use Judgement::{DestroysMachine, DestroysWork, Harmless};

/// Programs that have no other use.
const ALWAYS: [&str; 14] = [
    "wipefs",
    "fdisk",
    "sfdisk",
    "gdisk",
    "sgdisk",
    "parted",
    "blkdiscard",
    "cryptsetup",
    "mkswap",
    "shutdown",
    "reboot",
    "halt",
    "poweroff",
    "telinit",
];

/// Programs with subcommands, and those that cannot be taken back.
const SUBCOMMANDS: [(&str, &[&str]); 6] = [
    ("terraform", &["destroy"]),
    ("tofu", &["destroy"]),
    ("kubectl", &["delete", "drain"]),
    ("docker", &["prune"]),
    ("podman", &["prune"]),
    ("helm", &["uninstall", "delete"]),
];

/// Clients of databases, whose words may hold statements.
const DATABASES: [&str; 6] = ["psql", "mysql", "mariadb", "sqlite3", "duckdb", "mongosh"];

/// Judges a program and its arguments; a word that is not known is none.
pub(crate) fn judge(words: &[Option<String>]) -> Judgement {
    let Some((Some(program), args)) = words.split_first() else { return Harmless };
    let base = program.rsplit('/').next().unwrap_or(program);
    let known: Vec<&str> = args.iter().flatten().map(String::as_str).collect();
    let is_open = known.len() < args.len();
    match base {
        ">" => match known.first() {
            Some(path) if is_device(path) => DestroysMachine(format!("it would write to the device `{path}`")),
            _ => Harmless,
        },
        always if ALWAYS.contains(&always) || always.starts_with("mkfs") => {
            DestroysMachine(format!("`{always}` destroys what is on a device, or ends the machine"))
        }
        "rm" | "unlink" | "rmdir" => removal(base, &known, is_open),
        "chmod" | "chown" | "chgrp" if recursive(&known) => match known.iter().find(|path| is_system(path)) {
            Some(path) => DestroysMachine(format!("`{base}` would change `{path}` with all that is in it")),
            None => Harmless,
        },
        "dd" | "tee" | "cp" | "shred" | "truncate" => {
            let target = known.iter().map(|word| word.strip_prefix("of=").unwrap_or(word));
            match target.into_iter().find(|path| is_device(path)) {
                Some(path)
                    if base != "cp" && base != "dd" || known.iter().any(|word| *word == format!("of={path}")) =>
                {
                    DestroysMachine(format!("`{base}` would write to the device `{path}`"))
                }
                _ if ["shred", "truncate"].contains(&base) => {
                    DestroysWork(format!("`{base}` overwrites or shortens files"))
                }
                _ => Harmless,
            }
        }
        "find" | "fd" if known.contains(&"-delete") => {
            DestroysWork(format!("`{base} -delete` removes all that it finds"))
        }
        "git" => git(&known, is_open),
        database if DATABASES.contains(&database) => {
            let text = known.join(" ").to_ascii_lowercase();
            let drops = ["drop table", "drop database", "drop schema", "truncate table", "dropdatabase"];
            match drops.iter().find(|statement| text.contains(*statement)) {
                Some(statement) => DestroysWork(format!("`{database}` would do `{statement}`")),
                None => Harmless,
            }
        }
        "dropdb" => DestroysWork("`dropdb` removes a database".to_owned()),
        "kill" if known.contains(&"-1") && known.len() > 1 => DestroysWork("`kill -1` ends every process".to_owned()),
        other => {
            let last = SUBCOMMANDS.iter().find(|(name, _)| *name == other).map(|(_, last)| *last).unwrap_or_default();
            match known.iter().find(|word| last.contains(word)) {
                Some(subcommand) => DestroysWork(format!("`{other} … {subcommand}` cannot be taken back")),
                None => Harmless,
            }
        }
    }
}

fn removal(program: &str, known: &[&str], is_open: bool) -> Judgement {
    let recurses = recursive(known);
    if let Some(path) = known.iter().find(|path| is_system(path)) {
        return match recurses {
            true => DestroysMachine(format!("`{program}` would remove `{path}` with all that is in it")),
            false => Harmless,
        };
    }
    match (recurses, is_open) {
        (true, _) => DestroysWork(format!("`{program}` removes directories with all that is in them")),
        (false, true) => DestroysWork(format!("what `{program}` removes is not known before it runs")),
        (false, false) => Harmless,
    }
}

/// Whether an option says that all beneath is meant, too.
fn recursive(words: &[&str]) -> bool {
    words.iter().any(|word| match word.strip_prefix("--") {
        Some(long) => long.len() > 2 && "recursive".starts_with(long),
        None => word.strip_prefix('-').is_some_and(|letters| letters.contains(['r', 'R'])),
    })
}

fn is_device(path: &str) -> bool {
    let harmless = ["null", "zero", "full", "stdin", "stdout", "stderr", "tty", "random", "urandom"];
    path.strip_prefix("/dev/").is_some_and(|device| {
        let is_stream = ["fd/", "pts/", "shm/", "tcp/", "udp/"].iter().any(|start| device.starts_with(start));
        !harmless.contains(&device) && !is_stream
    })
}

/// Whether a path is the root, a directory of the system's, or a home directory.
fn is_system(path: &str) -> bool {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    if !path.starts_with('/') {
        return ["~", "~root"].contains(&parts.join("/").as_str());
    }
    let system = [
        "bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "srv", "sys", "usr",
        "var",
    ];
    match parts.as_slice() {
        [] | ["*"] => true,
        [one] | [one, "*"] => system.contains(one),
        ["home", _] | ["usr" | "var", "bin" | "lib" | "lib64" | "sbin" | "share" | "local"] => true,
        _ => false,
    }
}

fn git(known: &[&str], is_open: bool) -> Judgement {
    let has = |words: &[&str]| known.iter().any(|word| words.contains(word));
    let bundled = |letter: char| {
        known
            .iter()
            .any(|word| word.strip_prefix('-').is_some_and(|rest| !rest.starts_with('-') && rest.contains(letter)))
    };
    let forced = bundled('f') || known.iter().any(|word| word.starts_with("--force"));
    let what = if has(&["reset"]) && has(&["--hard", "--merge"]) {
        "`git reset` would drop what is not committed"
    } else if has(&["clean"]) && (forced || is_open) {
        "`git clean` would remove files that are not tracked"
    } else if has(&["push"])
        && (forced
            || bundled('d')
            || has(&["--delete", "--mirror", "--prune"])
            || known.iter().any(|word| word.starts_with('+')))
    {
        "`git push` would overwrite or delete what others have"
    } else if has(&["branch", "tag"]) && (bundled('D') || bundled('d') || has(&["--delete"])) {
        "`git` would delete a branch or a tag"
    } else if has(&["checkout", "restore"]) && has(&["--", ".", "-f", "--force"]) {
        "`git` would drop changes that are not committed"
    } else if has(&["filter-branch", "filter-repo", "gc"]) && has(&["--force", "--prune=now", "--all"]) {
        "`git` would rewrite or drop history"
    } else if has(&["stash"]) && has(&["drop", "clear"]) {
        "`git stash` would drop what was put aside"
    } else {
        return Harmless;
    };
    DestroysWork(what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Judgement {
        judge(&line.split(' ').map(|word| (word != "?").then(|| word.to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn what_destroys_a_machine_is_denied() {
        for line in [
            "rm -rf /",
            "rm -fr /*",
            "/bin/rm --recursive /usr",
            "rm -r /home/me",
            "rm -rf ~",
            "rm -rf /tmp/../etc",
            "mkfs.ext4 /dev/sda1",
            "dd if=/dev/zero of=/dev/sda",
            "shred /dev/nvme0n1",
            "> /dev/sda",
            "chmod -R 777 /",
            "chown -R me /etc",
            "wipefs -a x",
            "reboot",
        ] {
            assert!(matches!(of(line), DestroysMachine(_)), "{line}: {:?}", of(line));
        }
    }

    #[test]
    fn what_destroys_work_is_asked_about() {
        for line in [
            "rm -rf build",
            "rm ?",
            "find . -delete",
            "git reset --hard HEAD~1",
            "git clean -fdx",
            "git -C dir push --force-with-lease",
            "git push origin +main",
            "git branch -D main",
            "git checkout -- .",
            "truncate -s 0 log",
            "terraform destroy",
            "docker system prune",
            "psql -c DROP TABLE x",
        ] {
            assert!(matches!(of(line), DestroysWork(_)), "{line}: {:?}", of(line));
        }
    }

    #[test]
    fn what_destroys_nothing_is_allowed() {
        for line in [
            "rm file",
            "rm -f a b",
            "ls -R /",
            "dd if=/dev/zero of=file",
            "cp /dev/null x",
            "> out",
            "> /dev/null",
            "git push origin main",
            "git commit -m reset",
            "git branch topic",
            "chmod -R u+w build",
            "find . -name x",
            "kubectl get pods",
            "?",
        ] {
            assert_eq!(of(line), Harmless, "{line}");
        }
    }
}
