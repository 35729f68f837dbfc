//! The conversation with the host: launch, copy in, ask git.

use std::time::Duration;

use skillhost_guest::sandbox::{Chunk, Outcome};
use skillhost_guest::{CommandBuilder, Context as _, Error, Sandbox, info, warn};

use crate::component::exports::skillhost::git_digest::changes::{Problem, Revision, Summary};
use crate::files::{Differences, size};
use crate::history::{self, History};
use crate::records::Fields;

const ROLE: &str = "default";
/// What a repository may have, since it lies in the sandbox's memory.
const MEMORY_MIB: u64 = 2048;
/// The sandbox's own `/tmp`: it goes with the sandbox.
const TREE: &str = "/tmp/repository";
const OBJECTS: &str = "/tmp/objects";
const READ_AT_MOST: u32 = 256 * 1024;
const TIMEOUT: Duration = Duration::from_secs(240);
/// Bytes of git's complaints that are worth repeating.
const COMPLAINTS_AT_MOST: usize = 2000;

/// Settings that a repository cannot override: nothing that it names is run, fetched or replaced.
const SETTINGS: [&str; 7] = [
    "safe.directory=*",
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "protocol.allow=never",
    "log.showSignature=false",
    "log.showRoot=true",
    "i18n.logOutputEncoding=UTF-8",
];
/// The same for what has no setting. The repository is the one in [`TREE`] and none above it.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_CEILING_DIRECTORIES", "/tmp"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("LC_ALL", "C"),
];
/// What a diff is made with: renames, and no program but git.
const DIFF: [&str; 5] = ["-z", "--numstat", "--find-renames", "--no-ext-diff", "--no-textconv"];

/// What was asked for.
pub(crate) struct Asked {
    pub(crate) repository: String,
    pub(crate) base: String,
    pub(crate) target: String,
    pub(crate) limit: usize,
}

/// A repository that was copied into a sandbox.
struct Git {
    sandbox: Sandbox,
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Sandbox(error.to_string())
    }
}

pub(crate) fn digest(asked: Asked) -> Result<Summary, Problem> {
    let git = Git::copy(&asked.repository)?;
    let (_, said) = git.answer(&["rev-parse", "--git-dir"])?;
    if let Err(complaint) = said {
        return Err(Problem::NotARepository(format!("`{}`: {complaint}", asked.repository)));
    }
    let base = git.revision(asked.base)?;
    let target = git.revision(asked.target)?;
    let descends = git.answer(&["merge-base", "--is-ancestor", &base.id, &target.id])?.0 == 0;

    info!("comparing");
    let mut differences = Differences::default();
    let mut argv = vec!["diff-tree", "-r", "--raw", "--no-abbrev"];
    argv.extend(DIFF);
    argv.extend([base.id.as_str(), target.id.as_str()]);
    git.fields(&argv, &mut |field| differences.field(field))?;
    let objects = differences.objects().map_err(Problem::Unreadable)?;
    differences.sizes(&git.sizes(objects)?).map_err(Problem::Unreadable)?;

    info!("reading the history");
    let mut history = History::new(asked.limit);
    let (mailmap, range) = (format!("mailmap.blob={}:.mailmap", target.id), format!("{}..{}", base.id, target.id));
    let mut argv = vec!["-c", &mailmap, "log", history::FORMAT];
    argv.extend(DIFF);
    argv.extend([range.as_str(), "--"]);
    git.fields(&argv, &mut |field| history.field(field))?;

    let mut totals = crate::no_totals();
    let files = differences.finish(asked.limit, &mut totals);
    let (count, authors) = history.authors();
    (totals.commits, totals.authors) = (history.count, count);
    Ok(Summary {
        base,
        target,
        descends,
        files_truncated: totals.files > files.len() as u64,
        commits_truncated: totals.commits > history.commits.len() as u64,
        totals,
        authors,
        files,
        commits: history.commits,
    })
}

impl Git {
    /// Copies what git keeps of a repository; of one without a work tree, that is all of it.
    fn copy(repository: &str) -> Result<Self, Problem> {
        let sandbox = Sandbox::with_role(ROLE).memory_mib(MEMORY_MIB).launch();
        let sandbox = sandbox.context("a sandbox could not be launched")?;
        let inside = format!("{}/.git", repository.trim_end_matches('/'));
        let copied = match sandbox.copy_in("project", &inside, &format!("{TREE}/.git")) {
            Err(error) if error.kind() == "not-found" => sandbox.copy_in("project", repository, TREE),
            copied => copied,
        }?;
        if !copied.message.is_empty() {
            warn!("{}", copied.message);
        }
        Ok(Self { sandbox })
    }

    fn argv(argv: &[&str]) -> Vec<String> {
        let mut all = vec!["git", "-C", TREE, "--no-pager"];
        for setting in SETTINGS {
            all.extend(["-c", setting]);
        }
        all.extend(argv);
        all.into_iter().map(String::from).collect()
    }

    /// A command with the environment that git is to have.
    fn command(&self, argv: Vec<String>) -> CommandBuilder<'_> {
        let mut argv = argv.into_iter();
        let program = argv.next().unwrap_or_default();
        self.sandbox.command(&program).args(argv).cwd("/tmp").envs(ENVIRONMENT).timeout(TIMEOUT)
    }

    /// Runs git for a short answer: its exit code, and what it wrote; or what it complained of.
    fn answer(&self, argv: &[&str]) -> Result<(i32, Result<String, String>), Problem> {
        let done = self.command(Self::argv(argv)).run()?.into_inner();
        let text = |bytes: &[u8]| history::clipped(String::from_utf8_lossy(bytes).trim(), COMPLAINTS_AT_MOST);
        match done.outcome {
            Outcome::Exited(0) => Ok((0, Ok(text(&done.stdout)))),
            Outcome::Exited(code) => Ok((code, Err(text(&done.stderr)))),
            outcome => Err(ended(&outcome, "")),
        }
    }

    /// The commit that a revision is.
    fn revision(&self, asked: String) -> Result<Revision, Problem> {
        let commit = format!("{asked}^{{commit}}");
        match self.answer(&["rev-parse", "--verify", "--quiet", &commit])?.1 {
            Ok(id) if is_id(&id) => Ok(Revision { asked, id }),
            Ok(_) => Err(Problem::InvalidArgument(format!("`{asked}` is not a single revision"))),
            Err(_) => Err(Problem::UnknownRevision(format!(
                "`{asked}` is no commit of this repository; a clone with `--depth` does not have the earlier ones"
            ))),
        }
    }

    /// Runs git and gives each of its fields to `each`, as they come.
    fn fields(&self, argv: &[&str], each: &mut dyn FnMut(&str) -> Result<(), String>) -> Result<(), Problem> {
        let mut fields = Fields::default();
        self.read(Self::argv(argv), &mut |bytes| fields.push(bytes, each))
    }

    /// The sizes of objects, whose names are given one a line.
    fn sizes(&self, objects: String) -> Result<Vec<Option<u64>>, Problem> {
        self.sandbox.write(OBJECTS, &objects)?;
        drop(objects);
        // From a file: what is written to a command that waits for its output to be read would wait, too.
        let mut argv = ["sh", "-c", "exec \"$@\" <\"$0\"", OBJECTS].map(String::from).to_vec();
        argv.extend(Self::argv(&["cat-file", "--batch-check=%(objectsize)"]));
        let (mut sizes, mut begun) = (Vec::new(), String::new());
        self.read(argv, &mut |bytes| {
            for piece in String::from_utf8_lossy(bytes).split_inclusive('\n') {
                begun.push_str(piece);
                if let Some(line) = begun.strip_suffix('\n') {
                    sizes.push(size(line)?);
                    begun.clear();
                }
            }
            Ok(())
        })?;
        Ok(sizes)
    }

    /// Runs a command to its end and gives what it writes to `each`.
    fn read(&self, argv: Vec<String>, each: &mut dyn FnMut(&[u8]) -> Result<(), String>) -> Result<(), Problem> {
        let process = self.command(argv).start()?;
        let mut complaints = Vec::new();
        while let Some(chunk) = process.read(READ_AT_MOST).context("what git says could not be read")? {
            match chunk {
                Chunk::Stdout(bytes) => each(&bytes).map_err(Problem::Unreadable)?,
                Chunk::Stderr(bytes) => {
                    let room = COMPLAINTS_AT_MOST.saturating_sub(complaints.len());
                    complaints.extend(bytes.into_iter().take(room));
                }
            }
        }
        match process.wait().context("how git ended is not known")?.outcome {
            Outcome::Exited(0) => Ok(()),
            outcome => Err(ended(&outcome, String::from_utf8_lossy(&complaints).trim())),
        }
    }
}

fn is_id(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn ended(outcome: &Outcome, complaints: &str) -> Problem {
    match outcome {
        Outcome::Exited(code) => Problem::Unreadable(format!("git failed with exit code {code}: {complaints}")),
        Outcome::Signaled(signal) => Problem::Sandbox(format!("git was ended by signal {signal}")),
        Outcome::TimedOut => {
            Problem::Sandbox("git took too long; choose revisions that are nearer to each other".into())
        }
        Outcome::Cancelled => Problem::Sandbox("git was cancelled".into()),
        Outcome::OutOfMemory => Problem::Sandbox(format!("git ran out of the sandbox's {MEMORY_MIB} MiB of memory")),
        Outcome::NotStarted(why) => Problem::Sandbox(format!("git did not start ({why}); the role `{ROLE}` needs git")),
    }
}
