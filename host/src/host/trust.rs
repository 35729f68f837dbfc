//! Trusting a project, and taking that back.

use std::path::{Path, PathBuf};

use skillhost_api::error::{Error, Result};
use skillhost_api::types::{Authority, Done};

use super::Host;
use crate::policy::trust::{TrustKind, real};
use crate::policy::{Actor, OwnerDecision};

/// Whether it is the owner who asks. Of a project that they develop, what they run is what they let run.
pub(super) fn is_owners(asks: Authority) -> bool {
    match asks {
        Authority::Person | Authority::Owner => true,
        Authority::Agent | Authority::Declined => false,
    }
}

impl Host {
    /// Gives trust or takes it. When a project is no longer trusted, what is taken back is all of it: also what single skills of it
    /// were let run with.
    pub(super) async fn set_trust(&self, actor: &Actor, project: &Path, kind: TrustKind, given: bool) -> Result<Done> {
        let _changing = self.changing();
        // Once: a link may lead elsewhere the next time.
        let found = real(project);
        // What leads nowhere is recorded as it was named.
        let noted = found.as_deref().unwrap_or(project).to_owned();
        let change = found.and_then(|real| {
            if given && real != project {
                return Err(Error::denied(format!(
                    "{} leads to {}, and trust is given to what was asked about alone: trust that directory by its own path",
                    project.display(),
                    real.display()
                )));
            }
            let decisions = OwnerDecision::on_project(real.clone(), kind, given);
            Ok(self.decide(decisions, self.change_trust(real, kind, given)))
        });
        self.broker.trust(actor, &noted, kind, given, change).await
    }

    /// Does it, at this host.
    pub(super) async fn change_trust(&self, real: PathBuf, kind: TrustKind, given: bool) -> Result<Done> {
        let done = self.trust.set(&real, kind, given).await?;
        if kind == TrustKind::Trusted && !given {
            self.broker.forget_project(&real).await?;
        }
        Ok(done)
    }
}
