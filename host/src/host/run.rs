//! Calling an action: find the skill, check, grant, lower, run, lift.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skillhost_api::caller::Caller;
use skillhost_api::error::{Error, Result};
use skillhost_api::io::{CallIo, CallOutput};
use skillhost_api::types::{Authority, RunAnswer, RunRequest};
use tokio::sync::{Semaphore, mpsc};

use crate::broker::{SKILL_RUN, SKILL_WATCHES, with_background};
use crate::capabilities::{Context, Log};
use crate::catalog::SkillSource;
use crate::engine::{Invocation, Preopen};
use crate::host::Host;
use crate::ids;
use crate::policy::{Actor, ActorGrant, Candidate, Effects};
use crate::policy::{granted, switched_off};
use crate::skills::manifest::WorkspaceAccess;
use crate::skills::{CallTarget, Component};

impl Host {
    pub(super) async fn run(
        self: &Arc<Self>,
        caller: &Caller,
        asks: Authority,
        project: Option<PathBuf>,
        request: RunRequest,
        io: &CallIo,
    ) -> Result<RunAnswer> {
        let started = Instant::now();
        let target: CallTarget = request.skill.parse()?;
        let found = self.found(project.as_deref(), &target.skill).await?;
        let entry = &found.entry;
        let name = entry.name.clone();
        let actor = Actor { skill: Some(name.clone()), ..Actor::owner(caller.clone()) };
        if let Some(why) = switched_off::for_those(&self.config, entry, asks) {
            return self.broker.refuse(&actor, SKILL_RUN, Error::denied(why)).await;
        }
        let trusted = entry.source != SkillSource::Project
            || found.project.as_deref().is_some_and(|project| self.trust.has_real(project));
        let descriptor = self.describe(entry).await?;
        let loaded = entry.loaded.clone()?;
        let candidate = Candidate {
            name: &name,
            dir: &entry.dir,
            component: &descriptor.digest,
            manifest: &loaded.manifest_digest,
            project: project.as_deref().filter(|_| entry.source == SkillSource::Project),
            trusted,
        };
        // What is accepted here is what runs: these bytes of the manifest, and a component of this digest.
        self.broker.accept(&actor, &candidate, &loaded).await?;
        let action = descriptor.action(target.action.as_deref()).map_err(|error| error.context(&name))?;
        let args = action.with_text(request.args, &request.text_args)?;
        let args = action.lower(&args).map_err(|error| error.context(format!("{name}.{}", action.name)))?;
        let prepared = self
            .engine
            .prepare(&descriptor.digest, async || {
                let (dir, manifest) = (entry.dir.clone(), loaded.manifest.clone());
                let component = tokio::task::spawn_blocking(move || Component::read(&dir, &manifest))
                    .await
                    .map_err(|error| Error::other(format!("reading the component failed: {error}")))??;
                // What runs must be what was described.
                if component.digest != descriptor.digest {
                    return Err(Error::unavailable("the component changed while it was loaded: try again"));
                }
                Ok(component.bytes)
            })
            .await
            .map_err(|error| error.context(&name))?;

        let granted =
            granted::to_skill(&self.config, &name, &loaded.manifest.capabilities).in_project(project.as_deref());
        let invocation_id = ids::invocation()?;
        let (containers, workspace) = (granted.containers, granted.workspace);
        let actor = Actor {
            grant: Arc::new(ActorGrant::Skill(Box::new(granted))),
            invocation_id: Some(invocation_id.clone()),
            effects: Some(Arc::new(Effects::new(loaded.manifest.limits.effects))),
            watches: Some(Arc::new(Semaphore::new(SKILL_WATCHES))),
            containers: Some(Arc::new(Semaphore::new(usize::try_from(containers).unwrap_or(usize::MAX)))),
            ..actor
        };
        let mut limits = loaded.manifest.limits.clone();
        if let Some(shorter) = request.deadline_ms {
            limits.deadline = limits.deadline.min(Duration::from_millis(shorter));
        }
        let workspace = match workspace {
            WorkspaceAccess::None => None,
            access => Some(Preopen {
                path: self.broker.sandboxes().workspace(caller)?,
                write: access == WorkspaceAccess::ReadWrite,
            }),
        };
        // What is in flight is bounded by the log's own budget.
        let (events, mut queue) = mpsc::unbounded_channel();
        let sink = Arc::new(move |event| {
            // The caller left: the call is being dropped.
            let _ = events.send(event);
        });
        let log = Log::new(sink, usize::try_from(limits.log_bytes).unwrap_or(usize::MAX));
        let context = Context {
            broker: self.broker.clone(),
            actor: Arc::new(actor),
            log: log.clone(),
            // From here: compiling a component for the first time is the host's work, not the skill's.
            deadline: Instant::now() + limits.deadline,
            runtime: tokio::runtime::Handle::current(),
        };
        let invocation = Invocation {
            prepared,
            interface: action.export.interface.clone(),
            function: action.export.function.clone(),
            args,
            returns: action.result.is_some(),
            limits,
            workspace,
            context,
        };
        let forward = async {
            while let Some(event) = queue.recv().await {
                if io.send(CallOutput::Event(event)).await.is_err() {
                    break;
                }
            }
        };
        let finished = with_background(self.engine.call(invocation), forward).await;
        log.finish();
        while let Ok(event) = queue.try_recv() {
            io.send(CallOutput::Event(event)).await?;
        }
        let finished = finished.map_err(|error| error.context(format!("{name}.{}", action.name)))?;
        let lifted = action.lift(&finished.results)?;
        Ok(RunAnswer {
            action: action.name.clone(),
            skill: name,
            invocation_id,
            result: lifted.result,
            failure: lifted.failure,
            failed: lifted.failed,
            wall_time_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            fuel_used: Some(finished.fuel_used),
        })
    }
}
