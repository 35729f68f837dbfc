//! What is on, what is missing, and how to get it.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::Host;
use crate::api::types::{Check, DoctorReport, ImageFilter};
use crate::engine::Allocation;
use crate::units::show_bytes;

/// How many files are looked at to say what takes up the room.
const MAX_SEEN: usize = 100_000;

impl Host {
    pub(super) async fn doctor(&self) -> DoctorReport {
        let sandboxes = self.broker.sandboxes();
        let mut checks = vec![self.state_check(), self.engine_check()];
        checks.extend(self.config.readable_secrets().into_iter().map(|(path, mode)| Check {
            name: "secrets".into(),
            ok: false,
            detail: format!("other users of this machine can read {} (mode {mode:o})", path.display()),
            remedy: Some(format!(
                "chmod go-rwx {}, and change what is in it if anybody may have read it",
                path.display()
            )),
        }));
        let mut can_sandbox = false;
        let mut working = Vec::new();
        for (backend, probed) in sandboxes.probe().await {
            let name = format!("sandboxes by {backend}");
            match probed {
                Ok(probe) => {
                    working.push(backend);
                    let mut detail = format!("{}; isolation: {}", probe.engine, probe.isolation);
                    for note in probe.notes {
                        detail.push_str("; ");
                        detail.push_str(&note);
                    }
                    checks.push(Check { name, ok: true, detail, remedy: None });
                }
                Err(error) => {
                    let remedy = (backend == "docker").then(|| {
                        "install Docker where there is none (in Debian: `apt-get install docker.io`), and let this user \
                         reach its socket"
                            .into()
                    });
                    checks.push(Check { name, ok: false, detail: error.message, remedy });
                }
            }
        }
        if let Ok(list) = sandboxes.images(&ImageFilter::default()).await {
            for image in list.images {
                can_sandbox |= image.backend.as_deref().is_some_and(|backend| working.contains(&backend));
                checks.push(Check {
                    name: format!("image of the role {}", image.role),
                    ok: image.present,
                    detail: match image.problem {
                        Some(problem) => problem,
                        None => format!("{} {}", image.image, image.id.as_deref().unwrap_or("is not in the engine")),
                    },
                    remedy: (!image.present).then(|| "skillhost images build".into()),
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
        DoctorReport { checks, can_sandbox }
    }

    fn state_check(&self) -> Check {
        let dir = &self.options.state_dir;
        let (ok, detail, remedy) = match self.db.disk().space() {
            Err(error) => (false, error.to_string(), None),
            Ok(space) if !space.is_short() => (true, space.to_string(), None),
            Ok(space) => {
                let remedy = "make room on its file system: what sandboxes wrote is in `workspaces`, and what they no longer need \
                              there can be removed; until then nothing is launched or written, while reading, deleting and \
                              stopping go on";
                let detail = format!("its file system is full: {space}; {}", held(dir));
                (false, detail, Some(remedy.to_owned()))
            }
        };
        Check { name: "state directory".into(), ok, detail: format!("{}: {detail}", dir.display()), remedy }
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

/// What takes up the room in a directory, the largest first.
fn held(dir: &Path) -> String {
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
