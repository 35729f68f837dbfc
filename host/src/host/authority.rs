//! What only the machine's owner may ask, whatever an agent says: each operation declares it. What an agent may ask is still
//! held to its grant by the broker.

use skillhost_api::error::{Error, Result};
use skillhost_api::types::operation::{Needs, OwnersAlone};
use skillhost_api::types::{Authority, Call};

use super::handlers::Handler;
use crate::host::Host;
use crate::policy::Actor;
use crate::policy::granted;

impl Host {
    /// Who makes the call, with what they may do; refused at once where that is only for the owner.
    pub(super) async fn actor<O: Handler>(&self, call: &Call<O>) -> Result<Actor> {
        let caller = call.caller.clone();
        let actor = match call.authority {
            Authority::Person | Authority::Declined | Authority::Owner => Actor::owner(caller),
            Authority::Agent => {
                Actor::agent(caller, granted::to_agents(&self.config).in_project(call.project.as_deref()))
            }
        };
        let declined = || Error::denied("the owner of this machine's skillhost did not say yes, so nothing was done");
        let (OwnersAlone { effect, what }, in_person) = match O::NEEDS {
            Needs::Anybody if call.authority == Authority::Declined => return Err(declined()),
            Needs::Anybody => return Ok(actor),
            Needs::Owner(alone) => (alone, false),
            Needs::Person(alone) => (alone, true),
        };
        let refusal = match call.authority {
            Authority::Person => return Ok(actor),
            Authority::Declined => declined(),
            Authority::Owner if !in_person || self.config.approvals.without_terminal => return Ok(actor),
            Authority::Owner => Error::denied(
                "only a person can say yes to this, and nobody was asked: run it in a terminal, which shows what it is about, or \
                 use a client that shows forms. docs/configuration.md says under \"What is asked about\" what the operator of a \
                 machine without either can do",
            ),
            Authority::Agent => Error::denied(format!(
                "this is not for agents, whatever they are told: only the owner of this machine's skillhost {what}"
            )),
        };
        let Some(effect) = effect else { return Err(refusal) };
        let mut record = self.broker.refused(&actor, effect);
        if call.authority == Authority::Declined {
            record.note("answer", "no");
        }
        call.request.refused(&self.broker, &mut record);
        record.fail(refusal).await
    }
}
