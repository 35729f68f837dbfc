//! Finds how a project runs its tests, by the files in its directory.

use crate::component::exports::skillhost::run_tests::tests::Runner;

/// The order in which they are looked for: those whose own file cannot mean anything else come first, and a makefile,
/// which often only calls one of the others, last.
const ORDER: [Runner; 5] = [Runner::Cargo, Runner::Go, Runner::Pytest, Runner::Npm, Runner::Make];

/// Where GNU make looks, in its order.
const MAKEFILES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];
/// Targets that run tests: everybody's, and GNU's.
const TARGETS: [&str; 2] = ["test", "check"];

/// How to run a project's tests.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    pub(crate) runner: Runner,
    /// What says so.
    pub(crate) by: String,
    /// The script of `package.json`, or the target of the makefile.
    pub(crate) what: String,
}

/// The project's directory: the names in it, and the contents of its files.
pub(crate) trait Project {
    fn names(&self) -> &[String];
    /// None for what is not there, or is no text.
    fn read(&self, name: &str) -> Result<Option<String>, String>;
}

/// Finds the first runner that the project has, or checks that it has `asked`.
pub(crate) fn find(project: &impl Project, asked: Option<Runner>) -> Result<Option<Found>, String> {
    for runner in ORDER.into_iter().filter(|runner| asked.is_none_or(|asked| asked == *runner)) {
        let found = match runner {
            Runner::Cargo => named(project, "Cargo.toml"),
            Runner::Go => named(project, "go.mod"),
            Runner::Pytest => pytest(project)?,
            Runner::Npm => npm(project)?,
            Runner::Make => make(project)?,
        };
        if let Some((by, what)) = found {
            return Ok(Some(Found { runner, by, what }));
        }
    }
    // Whoever asks for pytest by name need not have configured it.
    Ok((asked == Some(Runner::Pytest)).then(|| Found {
        runner: Runner::Pytest,
        by: "the caller".into(),
        what: String::new(),
    }))
}

fn has(project: &impl Project, name: &str) -> bool {
    project.names().iter().any(|known| known == name)
}

fn named(project: &impl Project, name: &str) -> Option<(String, String)> {
    has(project, name).then(|| (name.to_owned(), String::new()))
}

fn pytest(project: &impl Project) -> Result<Option<(String, String)>, String> {
    // Sections that configure it; `pytest.ini` does so even when it is empty.
    let configured = [
        ("pytest.ini", ""),
        ("pyproject.toml", "[tool.pytest"),
        ("tox.ini", "[pytest]"),
        ("setup.cfg", "[tool:pytest]"),
    ];
    for (name, section) in configured {
        if has(project, name)
            && project
                .read(name)?
                .is_some_and(|text| section.is_empty() || text.lines().any(|line| line.starts_with(section)))
        {
            return Ok(Some((name.to_owned(), String::new())));
        }
    }
    let python = ["pyproject.toml", "setup.py", "setup.cfg", "tox.ini", "conftest.py"];
    let is_test = |name: &&String| (name.starts_with("test_") || name.ends_with("_test.py")) && name.ends_with(".py");
    if let Some(name) = project.names().iter().find(is_test) {
        return Ok(Some((name.clone(), String::new())));
    }
    let directory = project.names().iter().find(|name| ["tests", "test", "testing"].contains(&name.as_str()));
    Ok(directory
        .filter(|_| python.iter().any(|name| has(project, name)))
        .map(|name| (format!("{name}/"), String::new())))
}

fn npm(project: &impl Project) -> Result<Option<(String, String)>, String> {
    let name = "package.json";
    if !has(project, name) {
        return Ok(None);
    }
    let Some(text) = project.read(name)? else { return Ok(None) };
    let package: serde_json::Value =
        serde_json::from_str(&text).map_err(|error| format!("{name}:{}: {error}", error.line()))?;
    let script =
        |of: &str| package.get("scripts").and_then(|scripts| scripts.get(of)).and_then(|script| script.as_str());
    // What `npm init` writes.
    let Some(test) = script("test").filter(|test| !test.contains("no test specified")) else { return Ok(None) };
    let all: Vec<&str> = [script("pretest"), Some(test), script("posttest")].into_iter().flatten().collect();
    Ok(Some((name.to_owned(), all.join(" && "))))
}

fn make(project: &impl Project) -> Result<Option<(String, String)>, String> {
    let Some(name) = MAKEFILES.into_iter().find(|name| has(project, name)) else { return Ok(None) };
    let Some(text) = project.read(name)? else { return Ok(None) };
    let target = TARGETS.into_iter().find(|target| text.lines().any(|line| is_rule(line, target)));
    Ok(target.map(|target| (name.to_owned(), target.to_owned())))
}

/// Whether a line of a makefile begins a rule for `target`: `test check: all`, but not `test := x`.
fn is_rule(line: &str, target: &str) -> bool {
    line.split_once(':').is_some_and(|(targets, rest)| {
        !line.starts_with(['\t', '#', ' ', '.'])
            && !rest.trim_start_matches(':').starts_with('=')
            && targets.split_ascii_whitespace().any(|name| name == target)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fake(Vec<String>, Vec<&'static str>);

    impl Project for Fake {
        fn names(&self) -> &[String] {
            &self.0
        }

        fn read(&self, name: &str) -> Result<Option<String>, String> {
            Ok(self.0.iter().position(|known| known == name).map(|at| self.1[at].to_owned()))
        }
    }

    fn found(files: &[(&str, &'static str)], asked: Option<Runner>) -> Option<(Runner, String, String)> {
        let project = Fake(
            files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            files.iter().map(|(_, text)| *text).collect(),
        );
        find(&project, asked).unwrap().map(|found| (found.runner, found.by, found.what))
    }

    #[test]
    fn by_its_own_file() {
        let of = |name| found(&[(name, "")], None).map(|(runner, by, _)| (runner, by));
        assert_eq!(of("Cargo.toml"), Some((Runner::Cargo, "Cargo.toml".into())));
        assert_eq!(of("go.mod"), Some((Runner::Go, "go.mod".into())));
        assert_eq!(of("pytest.ini"), Some((Runner::Pytest, "pytest.ini".into())));
        assert_eq!(of("test_x.py"), Some((Runner::Pytest, "test_x.py".into())));
        assert_eq!(of("README.md"), None);
    }

    #[test]
    fn pytest_by_its_section_or_by_what_it_collects() {
        let of = |files: &[(&str, &'static str)]| found(files, None).map(|(_, by, _)| by);
        assert_eq!(of(&[("pyproject.toml", "[project]\n[tool.pytest.ini_options]\n")]), Some("pyproject.toml".into()));
        assert_eq!(of(&[("setup.cfg", "[tool:pytest]\n")]), Some("setup.cfg".into()));
        assert_eq!(of(&[("setup.cfg", "[metadata]\n")]), None);
        assert_eq!(of(&[("setup.py", ""), ("tests", "")]), Some("tests/".into()));
        assert_eq!(of(&[("tests", "")]), None, "not every directory of tests is Python's");
    }

    #[test]
    fn a_script_with_what_npm_runs_around_it() {
        let package = r#"{"scripts": {"pretest": "lint", "test": "node --test"}}"#;
        assert_eq!(found(&[("package.json", package)], None).unwrap().2, "lint && node --test");
        let none = r#"{"scripts": {"test": "echo \"Error: no test specified\" && exit 1"}}"#;
        assert_eq!(found(&[("package.json", none)], None), None);
    }

    #[test]
    fn a_target_of_a_makefile() {
        let of = |text| found(&[("Makefile", text)], None).map(|(.., target)| target);
        assert_eq!(of("all:\n\ntest: all\n\t./run\n"), Some("test".into()));
        assert_eq!(of("check lint:\n"), Some("check".into()));
        for text in ["test := 1\n", "test ::= 1\n", "\ttest: x\n", "# test: x\n", "latest:\n", ".PHONY: test\n"] {
            assert_eq!(of(text), None, "{text}");
        }
    }

    #[test]
    fn the_makefile_comes_last_and_the_caller_first() {
        let files = [("Makefile", "test:\n"), ("Cargo.toml", "")];
        assert_eq!(found(&files, None).unwrap().0, Runner::Cargo);
        assert_eq!(found(&files, Some(Runner::Make)).unwrap().0, Runner::Make);
        assert_eq!(found(&files, Some(Runner::Go)), None);
        assert_eq!(found(&files, Some(Runner::Pytest)).unwrap().1, "the caller");
    }
}
