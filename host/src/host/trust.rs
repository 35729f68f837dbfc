//! Trusting a project, and taking that back.

use std::path::Path;

use skillhost_api::error::{Error, Result};
use skillhost_api::types::Done;

use super::Host;
use crate::policy::Actor;
use crate::policy::trust::real;

impl Host {
    /// Gives trust or takes it. What is taken back is all of it: also what single skills of the project were let run with.
    pub(super) async fn set_trust(&self, actor: &Actor, project: &Path, trusted: bool) -> Result<Done> {
        let _changing = self.changing();
        // Once: a link may lead elsewhere the next time.
        let found = real(project);
        // What leads nowhere is recorded as it was named.
        let noted = found.as_deref().unwrap_or(project).to_owned();
        let change = found.and_then(|real| {
            if trusted && real != project {
                return Err(Error::denied(format!(
                    "{} leads to {}, and trust is given to what was asked about alone: trust that directory by its own path",
                    project.display(),
                    real.display()
                )));
            }
            Ok(async move {
                let done = self.trust.set(&real, trusted).await?;
                if !trusted {
                    self.broker.forget_project(&real).await?;
                }
                Ok(done)
            })
        });
        self.broker.trust(actor, &noted, trusted, change).await
    }
}
