//! What is on, what is missing, and how to get it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillhost_api::types::{Check, DoctorReport, EngineState, EngineSummary, ImageFilter};
use skillhost_api::units::show_bytes;

use super::blocking::blocking;
use super::{Host, commands_user, names};
use crate::catalog::{Catalog, Roots};
use crate::db::Disk;
use crate::engine::Allocation;

/// How many files are looked at to say what takes up the room.
const MAX_SEEN: usize = 100_000;

impl Host {
    pub(super) async fn doctor(&self, project: Option<PathBuf>) -> DoctorReport {
        let sandboxes = self.broker.sandboxes();
        let state = state_check(self.options.state_dir.clone(), self.db.disk().clone()).await;
        // Without room there nothing is launched, whatever could make a sandbox.
        let has_room = state.ok;
        let mut checks = vec![state, self.audit_check(), self.engine_check(), self.memory_check()];
        checks.extend(self.config.readable_secrets().into_iter().map(|(path, mode)| Check {
            name: "secrets".into(),
            ok: false,
            detail: format!("other users of this machine can read {} (mode {mode:o})", path.display()),
            remedy: Some(format!(
                "chmod go-rwx {}, and change what is in it if anybody may have read it",
                path.display()
            )),
        }));
        checks.push(commands_user::check(self.config.sandbox.user_ids));
        let (config, roles, skill_cache) = (self.config.clone(), sandboxes.roles(), self.skill_cache.clone());
        let looking = blocking(move || {
            let catalog = Catalog::discover(&Roots::from_env(project.as_deref()), &skill_cache);
            Ok(names::missing(&config, &roles, &catalog))
        });
        checks.extend(looking.await.unwrap_or_default());
        checks.extend(self.check_guardrails().await);
        if let Ok(others) = self.others() {
            checks.extend(others.checks());
        }
        let mut can_sandbox = false;
        let mut working = Vec::new();
        for (engine, probed) in sandboxes.probe().await {
            let name = match engine.name == engine.backend {
                true => format!("sandboxes by {}", engine.backend),
                false => format!("sandboxes by {} on the engine {}", engine.backend, engine.name),
            };
            match probed {
                Ok(probe) => {
                    let mut detail = format!("{}; isolation: {}; {}", probe.engine, probe.isolation, probe.limits);
                    for note in probe.notes {
                        detail.push_str("; ");
                        detail.push_str(&note);
                    }
                    checks.push(use_check(&engine, name, detail));
                    working.push(engine.backend);
                }
                // What to do depends on why, so the error says it.
                Err(error) => checks.push(Check { name, ok: false, detail: error.message, remedy: None }),
            }
        }
        if let Ok(list) = sandboxes.images(&ImageFilter::default()).await {
            for image in list.images {
                can_sandbox |=
                    image.backend.as_deref().is_some_and(|backend| working.iter().any(|works| works == backend));
                let everywhere = image.present && image.missing_on.is_empty();
                let missing_on = match image.missing_on.as_slice() {
                    [] => String::new(),
                    engines => format!("; it is not on the engines: {}", engines.join(", ")),
                };
                checks.push(Check {
                    name: format!("image of the role {}", image.role),
                    ok: everywhere,
                    detail: match image.problem {
                        Some(problem) => problem,
                        None => {
                            let id = image.id.as_deref().unwrap_or("is not in the engine");
                            format!("{} {id}{missing_on}", image.image)
                        }
                    },
                    remedy: (!everywhere).then(|| "skillhost images build".into()),
                });
            }
            checks.extend(self.broker.lacking_env().into_iter().map(|lack| Check {
                name: "variables of roles".into(),
                ok: false,
                detail: lack.message,
                remedy: None,
            }));
            checks.extend(list.problems.into_iter().map(|problem| Check {
                name: "roles".into(),
                ok: false,
                detail: problem,
                remedy: Some(
                    "mend the roles' file; what is right in it is in use, and a change is seen at once".into(),
                ),
            }));
        }
        DoctorReport { checks, can_sandbox: can_sandbox && has_room }
    }

    /// What the host holds for those that call it. That some of it was refused is what it is for.
    fn memory_check(&self) -> Check {
        let memory = self.memory();
        let (held, total) = (show_bytes(memory.held()), show_bytes(memory.total()));
        let detail = format!(
            "{held} of {total} are held for calls, answers, tasks and kept outputs; {} times refused",
            memory.refused()
        );
        Check { name: "memory of the host".into(), ok: true, detail, remedy: None }
    }

    fn engine_check(&self) -> Check {
        let (ok, detail, remedy) = match self.engine.allocation() {
            Allocation::Pooling => (true, "instances come from a pool", None),
            Allocation::OnDemand => (
                false,
                "instances are made on demand, which is slower: the address space for a pool cannot be reserved",
                Some("raise `ulimit -v` and allow overcommit".to_owned()),
            ),
        };
        Check { name: "WebAssembly engine".into(), ok, detail: detail.into(), remedy }
    }
}

/// Whether an engine that answers is in use.
fn use_check(engine: &EngineSummary, name: String, detail: String) -> Check {
    match engine.state {
        EngineState::InUse => Check { name, ok: true, detail, remedy: None },
        EngineState::Drained => Check {
            name,
            ok: true,
            detail: format!("drained, with {} sandboxes on it; {detail}", engine.sandboxes),
            remedy: Some(format!("skillhost engines resume {}", engine.name)),
        },
        EngineState::OutOfRotation => {
            let seconds = engine.retry_after_ms.unwrap_or_default().div_ceil(1000);
            let problem = engine.problem.as_deref().unwrap_or_default();
            let detail = format!("out of rotation, to be tried again in {seconds} s: {problem}; {detail}");
            Check { name, ok: false, detail, remedy: None }
        }
    }
}

/// The state directory, looked at where nobody waits: its file system may be slow, and what is on a full one many files.
async fn state_check(dir: PathBuf, disk: Arc<Disk>) -> Check {
    let shown = dir.display().to_string();
    let looking = tokio::task::spawn_blocking(move || match disk.space() {
        Err(error) => (false, error.to_string(), None),
        Ok(space) if !space.is_short() => (true, space.to_string(), None),
        Ok(space) => {
            let remedy = "make room on its file system: what sandboxes wrote is in `workspaces`, and what they no longer need \
                          there can be removed; until then nothing is launched or written, while reading, deleting and \
                          stopping go on";
            let detail = format!("its file system is full: {space}; {}", largest_entries(&dir));
            (false, detail, Some(remedy.to_owned()))
        }
    });
    let failed = |error| (false, format!("it could not be looked at: {error}"), None);
    let (ok, detail, remedy) = looking.await.unwrap_or_else(failed);
    Check { name: "state directory".into(), ok, detail: format!("{shown}: {detail}"), remedy }
}

/// What takes up the room in a directory, the largest first.
fn largest_entries(dir: &Path) -> String {
    let mut seen = 0;
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut all: Vec<_> = entries.map(|entry| (size(&entry.path(), &mut seen), entry.file_name())).collect();
    all.sort_by(|one, other| other.cmp(one));
    let shown =
        all.iter().take(4).map(|(bytes, name)| format!("`{}` has {}", name.to_string_lossy(), show_bytes(*bytes)));
    shown.collect::<Vec<_>>().join(", ") + if seen >= MAX_SEEN { " or more" } else { "" }
}

/// Bytes of a file, or of all in a directory; however deep somebody made that.
fn size(path: &Path, seen: &mut usize) -> u64 {
    let (mut bytes, mut waiting) = (0, vec![path.to_owned()]);
    while let Some(path) = waiting.pop().filter(|_| *seen < MAX_SEEN) {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        *seen += 1;
        bytes += metadata.blocks().saturating_mul(512);
        if metadata.is_dir() {
            waiting.extend(std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::db::{Db, Durability};

    #[test]
    fn looking_at_the_state_directory_holds_up_nobody() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let db = Db::open(&dir.path().join("state.db"), Durability::Process).unwrap();
            // The only thread that may wait has something to wait for.
            let (release, held) = mpsc::channel::<()>();
            let busy = tokio::task::spawn_blocking(move || held.recv());
            let mut check = std::pin::pin!(state_check(dir.path().to_owned(), db.disk().clone()));
            assert!(futures_util::poll!(&mut check).is_pending(), "it looks in the thread of the host's own work");
            release.send(()).unwrap();
            assert!(check.await.detail.contains(" free of "));
            busy.await.unwrap().unwrap();
        });
    }
}
