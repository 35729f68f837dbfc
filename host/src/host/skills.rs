//! What skills there are, and what each is.

use std::path::{Path, PathBuf};

use super::{Host, grant};
use crate::api::types::{ActionDetail, Permission, SkillDetail, SkillList, SkillState, SkillSummary};
use crate::error::{Error, Result};
use crate::skills::{Catalog, Descriptor, Entry, Roots, Source, Target, imports};

impl Host {
    pub(super) async fn catalog(&self, project: Option<PathBuf>) -> Result<Catalog> {
        blocking(move || Ok(Catalog::discover(&Roots::from_env(project.as_deref())))).await
    }

    /// The skill's descriptor, out of the cache when its component has not changed.
    pub(super) async fn describe(&self, entry: &Entry) -> Result<Descriptor> {
        let (entry, cache) = (entry.clone(), self.descriptors.clone());
        blocking(move || entry.describe(&*cache).map_err(|error| error.context(&entry.name))).await
    }

    /// Whether the skill may run, and why not. Whether its component is fit to run is not looked at.
    pub(super) async fn state(&self, entry: &Entry, project: Option<&Path>) -> Result<(SkillState, Option<String>)> {
        if entry.source == Source::Project
            && let Some(project) = project
            && !self.trust.has(project).await?
        {
            let why = format!(
                "the skill {} is of the project {}, which is not trusted: look at it with `skillhost inspect {}`, then let the \
                 project's skills run with `skillhost trust {}`",
                entry.name,
                project.display(),
                entry.name,
                project.display()
            );
            return Ok((SkillState::Untrusted, Some(why)));
        }
        Ok((SkillState::Ready, None))
    }

    pub(super) async fn list_skills(&self, project: Option<PathBuf>, query: Option<String>) -> Result<SkillList> {
        let catalog = self.catalog(project.clone()).await?;
        let entries: Vec<&Entry> = match &query {
            Some(query) => catalog.search(query)?,
            None => catalog.skills.values().collect(),
        };
        let mut list = SkillList {
            collisions: catalog.collisions.clone(),
            problems: catalog.problems.clone(),
            ..SkillList::default()
        };
        for entry in entries {
            let descriptor = self.describe(entry).await;
            list.skills.push(self.summary(entry, &descriptor, project.as_deref()).await?);
        }
        Ok(list)
    }

    async fn summary(
        &self,
        entry: &Entry,
        descriptor: &Result<Descriptor>,
        project: Option<&Path>,
    ) -> Result<SkillSummary> {
        let (state, problem) = match descriptor {
            Err(error) => (SkillState::Broken, Some(error.message.clone())),
            Ok(_) => self.state(entry, project).await?,
        };
        let loaded = entry.loaded.as_ref().ok();
        Ok(SkillSummary {
            name: entry.name.clone(),
            description: loaded.map(|loaded| loaded.frontmatter.description.clone()).unwrap_or_default(),
            version: loaded.map(|loaded| loaded.manifest.skill.version.clone()).unwrap_or_default(),
            source: entry.source.name().into(),
            directory: entry.dir.clone(),
            actions: descriptor
                .iter()
                .flat_map(|descriptor| &descriptor.actions)
                .map(|action| action.name.clone())
                .collect(),
            state,
            problem,
        })
    }

    pub(super) async fn inspect_skill(&self, project: Option<PathBuf>, skill: &str) -> Result<SkillDetail> {
        let target: Target = skill.parse()?;
        let catalog = self.catalog(project.clone()).await?;
        let entry = catalog.get(&target.skill)?;
        let descriptor = self.describe(entry).await;
        let summary = self.summary(entry, &descriptor, project.as_deref()).await?;
        let descriptor = descriptor?;
        let loaded = entry.loaded.as_ref().map_err(Clone::clone)?;
        let granted = grant::grant(&self.config, &entry.name, &loaded.manifest.capabilities, project.as_deref());
        let permissions = descriptor.imports.iter().map(|import| Permission {
            lets: imports::lets(import).into(),
            granted: grant::in_words(&granted, import),
            import: import.clone(),
        });
        Ok(SkillDetail {
            permissions: permissions.collect(),
            summary,
            digest: descriptor.digest,
            actions_detail: descriptor
                .actions
                .into_iter()
                .map(|action| ActionDetail {
                    name: action.name,
                    description: action.docs,
                    signature: action.signature,
                    input_schema: action.input_schema,
                    output_schema: action.output_schema,
                })
                .collect(),
            unavailable: descriptor.unavailable,
            limits: loaded.manifest.limits.shown(),
            body: loaded.frontmatter.body.clone(),
        })
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::other(format!("the host failed: {error}")))?
}
