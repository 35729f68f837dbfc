//! What the documentation shows as a terminal's recording is what a terminal shows.

use std::process::{Command, Stdio};

use skillhost_e2e::{User, binary, needs_engine};

/// Between what one command printed and what the next one did.
const MARK: &str = "--- the next command ---";

/// The commands of the recording below `heading`, and what each printed.
fn recording(heading: &str) -> Vec<(String, String)> {
    let page = skillhost_test_support::workspace().join("docs/sandboxes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```console\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push((command.to_owned(), String::new())),
            (None, Some((_, printed))) => *printed += &format!("{line}\n"),
            (None, None) => panic!("output before any command: {line}"),
        }
    }
    assert!(!steps.is_empty());
    steps
}

/// Needs a shared sandbox, which only a container engine gives.
mod docker {
    use super::*;

    #[test]
    fn two_agents_and_a_server() {
        needs_engine!();
        let user = User::new("");
        let steps = recording("Two agents and a server");
        let script: String = steps.iter().map(|(command, _)| format!("{command}\necho \"{MARK}\"\n")).collect();
        let mut shell = Command::new("bash");
        let template = user.command(["help"]);
        for (name, value) in template.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
        shell.current_dir(user.project()).env("PATH", path).args(["-c", &script]).stdin(Stdio::null());
        let done = shell.output().unwrap();
        let (printed, said) = (String::from_utf8(done.stdout).unwrap(), String::from_utf8_lossy(&done.stderr));
        let mark = format!("{MARK}\n");
        let mut printed = printed.split(mark.as_str());
        for (command, expected) in &steps {
            assert_eq!(printed.next(), Some(expected.as_str()), "$ {command}\n{said}");
        }
        assert_eq!(printed.next(), Some(""), "{said}");
        assert!(done.status.success(), "{said}");
    }
}
