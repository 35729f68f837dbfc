//! Looks at catalogues that are kept for as long as nothing happens to what was seen.
//!
//! A look is worth keeping when its caller comes again and finds all as it was; what that takes is made beside the calls, and
//! a catalogue that changes all the time never pays for it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Host;
use super::actions::Look;
use crate::skills::{Roots, Still};

/// The most projects whose looks are kept. Each holds one of the 128 queues that a user has by default.
const MAX_KEPT: usize = 8;
/// How long a catalogue that cannot be kept is looked at each time before that is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// The looks that are kept.
#[derive(Default)]
pub(super) struct Looks {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    projects: HashMap<Option<PathBuf>, State>,
    /// Changes that are on no disk.
    changes: u64,
}

enum State {
    Kept(Arc<Kept>),
    /// Somebody is about to keep one.
    Trying,
    CannotBe(Instant),
}

pub(super) struct Kept {
    look: Arc<Look>,
    /// Of two who ask at once, the second must be told what the first was told.
    still: Mutex<Still>,
}

impl Looks {
    /// The look at a project's catalogue, if that is as it was.
    pub(super) fn get(&self, project: Option<&Path>) -> Option<Arc<Look>> {
        let project = project.map(Path::to_owned);
        let kept = match self.lock().projects.get(&project)? {
            State::Kept(kept) => kept.clone(),
            _ => return None,
        };
        // Not under the lock of all: the file system may take its time.
        if kept.still.lock().unwrap_or_else(PoisonError::into_inner).holds() {
            return Some(kept.look.clone());
        }
        {
            let mut known = self.lock();
            if matches!(known.projects.get(&project), Some(State::Kept(other)) if Arc::ptr_eq(other, &kept)) {
                known.projects.remove(&project);
            }
        }
        let_go(kept);
        None
    }

    /// Forgets all of them, for something has changed that is not on disk.
    pub(super) fn forget(&self) {
        let mut known = self.lock();
        known.changes += 1;
        known.clear();
    }

    /// Whether one is to be kept now: at which change one begins.
    fn begin(&self, project: &Option<PathBuf>) -> Option<u64> {
        let mut known = self.lock();
        match known.projects.get(project) {
            Some(State::CannotBe(since)) if since.elapsed() >= TRY_AGAIN => {}
            Some(_) => return None,
            None => {}
        }
        known.put(project.clone(), State::Trying);
        Some(known.changes)
    }

    fn end(&self, project: Option<PathBuf>, began: u64, kept: Option<Kept>) {
        let state = kept.map_or_else(|| State::CannotBe(Instant::now()), |kept| State::Kept(Arc::new(kept)));
        let mut known = self.lock();
        if known.changes == began {
            known.put(project, state);
        } else {
            known.projects.remove(&project);
            let_go(state);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn put(&mut self, project: Option<PathBuf>, state: State) {
        if self.projects.len() >= MAX_KEPT && !self.projects.contains_key(&project) {
            self.clear();
        }
        self.projects.insert(project, state);
    }

    fn clear(&mut self) {
        let_go(std::mem::take(&mut self.projects));
    }
}

/// Lets go of looks where nobody waits for it: to close a queue of a thousand places takes the kernel up to 20 ms.
fn let_go(looks: impl Send + 'static) {
    // Without another thread it is this one's to wait.
    let _ = std::thread::Builder::new().name("looks".into()).spawn(move || drop(looks));
}

/// What is about to change on no disk: whatever becomes of it, looks of before are worth nothing after it.
pub(super) struct Changing<'a>(&'a Host);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.looks.forget();
        self.0.watches.look_again();
    }
}

impl Host {
    /// To be held over a change of what skills' states depend on besides their files.
    pub(super) fn changing(&self) -> Changing<'_> {
        Changing(self)
    }

    /// Keeps a look at the catalogue, for one who has found it unchanged. Nobody waits for that.
    pub(super) fn keep_look(self: &Arc<Self>, project: Option<PathBuf>) {
        if let Some(began) = self.looks.begin(&project) {
            let host = self.clone();
            tokio::task::spawn_blocking(move || {
                let kept = host.look_to_keep(project.as_deref());
                host.looks.end(project, began, kept);
            });
        }
    }

    fn look_to_keep(&self, project: Option<&Path>) -> Option<Kept> {
        // A problem may be the machine's of that moment, and end without a change on disk.
        let look = || self.look_at(project, true).ok().filter(|look| look.problems.is_empty());
        let first = look()?;
        let mut still = Still::of(&Roots::from_env(project), &first.places, files(&first))?;
        // What happened before the queue was there shows in no event.
        let second = look().filter(|second| second.places == first.places)?;
        still.holds().then(|| Kept { look: Arc::new(second), still: Mutex::new(still) })
    }
}

/// What a look was made of.
fn files(look: &Look) -> impl Iterator<Item = PathBuf> {
    look.skills().flat_map(|(dir, loaded)| loaded.files().map(|file| dir.join(file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skills::{Catalog, Places, Root, Source};

    /// A look at no skills, of a root that is there.
    fn kept(root: &Path) -> Kept {
        let roots = Roots(vec![Root { dir: root.to_owned(), source: Source::User }]);
        let places = Places::of(&roots, &Catalog::default());
        let still = Still::of(&roots, &places, std::iter::empty()).unwrap();
        Kept { look: Arc::default(), still: Mutex::new(still) }
    }

    #[test]
    fn one_is_kept_until_something_happens() {
        let temp = tempfile::tempdir().unwrap();
        let looks = Looks::default();
        let project = Some(temp.path().to_owned());
        assert!(looks.get(Some(temp.path())).is_none());
        let began = looks.begin(&project).unwrap();
        assert!(looks.begin(&project).is_none(), "somebody does already");
        assert!(looks.get(Some(temp.path())).is_none());
        looks.end(project.clone(), began, Some(kept(temp.path())));
        assert!(looks.get(Some(temp.path())).is_some() && looks.get(Some(temp.path())).is_some());
        assert!(looks.get(None).is_none(), "another project's");
        std::fs::create_dir(temp.path().join("skill")).unwrap();
        assert!(looks.get(Some(temp.path())).is_none() && looks.get(Some(temp.path())).is_none());
        assert!(looks.begin(&project).is_some(), "a new one can be kept");
    }

    #[test]
    fn what_is_said_while_one_is_made_is_not_missed() {
        let temp = tempfile::tempdir().unwrap();
        let looks = Looks::default();
        let project = Some(temp.path().to_owned());
        let began = looks.begin(&project).unwrap();
        looks.forget();
        looks.end(project.clone(), began, Some(kept(temp.path())));
        assert!(looks.get(Some(temp.path())).is_none());
        let began = looks.begin(&project).unwrap();
        looks.end(project.clone(), began, Some(kept(temp.path())));
        assert!(looks.get(Some(temp.path())).is_some());
        looks.forget();
        assert!(looks.get(Some(temp.path())).is_none());
    }

    #[test]
    fn what_cannot_be_kept_is_not_tried_each_time_and_few_are_kept() {
        let looks = Looks::default();
        let began = looks.begin(&None).unwrap();
        looks.end(None, began, None);
        assert!(looks.begin(&None).is_none());
        let projects: Vec<_> = (0..3 * MAX_KEPT).map(|number| Some(PathBuf::from(number.to_string()))).collect();
        let began: Vec<_> = projects.iter().map(|project| looks.begin(project).unwrap()).collect();
        assert!(looks.lock().projects.len() <= MAX_KEPT);
        for (project, began) in projects.into_iter().zip(began) {
            looks.end(project, began, None);
        }
        assert!(looks.lock().projects.len() <= MAX_KEPT, "nor when all of them end");
    }
}
