//! Skills and plugins of others: published, fetched, installed, updated, removed.
//!
//! What would be installed is fetched, held to its signatures, written to a private place, and loaded and described there as any
//! skill is, before anybody is asked about it; it is fetched again to be installed, and refused when it is not what was shown.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillhost_api::error::{Error, ErrorKind, Result};
use skillhost_api::types::{
    Authority, Install, InstallAnswer, InstallPlan, InstallRoot, InstalledList, InstalledPackage, ListInstalled,
    PackageKind, PackageSource, PlanInstall, PlannedSkill, PullAnswer, PullPackage, PushAnswer, PushPackage,
    RegistryOptions, RemoveAnswer, RemovePackage,
};
use skillhost_api::units::{now_ms, show_time};

use super::Host;
use super::blocking::blocking;
use crate::broker::PackageFacts;
use crate::catalog::{Catalog, CatalogEntry, Roots, SkillCache, SkillRoot, SkillSource, is_skill_dir};
use crate::distribution::artifact::{of_package, to_package};
use crate::distribution::from_dir;
use crate::distribution::lock::LockFile;
use crate::distribution::package::{Identity, SkillPackage};
use crate::distribution::place::{IN_PROJECT, InstallBase, write_directory};
use crate::distribution::reference::Reference;
use crate::distribution::registry::{RegistryAccess, RegistryClient, RegistryUse};
use crate::distribution::signature::{self, SigningKey, TrustedKey};
use crate::distribution::tarball;
use crate::paths::real;
use crate::policy::grant::Grant;
use crate::policy::skill_gate::PendingAcceptance;
use crate::policy::{Actor, Candidate};
use crate::rooted::read_named;
use crate::skills::descriptor::Descriptor;
use crate::skills::name::check_part;

/// Where, in the state directory, what would be installed is loaded.
pub(super) const CHECKING: &str = "checking";
/// The most bytes of an archive as it is.
const MAX_ARCHIVE: u64 = 256 * 1024 * 1024;

/// Something that was fetched, and is what its signatures and digests say.
struct Fetched {
    package: SkillPackage,
    identity: Identity,
    source: String,
    digest: Option<String>,
    signed_by: Option<String>,
    notes: Vec<String>,
}

/// A skill of a package, loaded and described.
struct CheckedSkill {
    entry: CatalogEntry,
    descriptor: Arc<Descriptor>,
}

/// All that is known of what would be installed.
struct Planned {
    plan: InstallPlan,
    package: SkillPackage,
    base: InstallBase,
    accepted: Vec<PendingAcceptance>,
    /// Whether something would have more than it was let run with.
    widens: bool,
}

impl Host {
    /// What would be installed.
    pub(super) async fn plan_install(
        &self,
        actor: &Actor,
        project: Option<PathBuf>,
        request: PlanInstall,
    ) -> Result<InstallPlan> {
        let facts = asked(&request.source, request.root);
        let work = async {
            let planned = self.planned(project.as_deref(), &request).await?;
            let facts = told(&planned.plan.package);
            Ok((planned.plan, facts))
        };
        self.broker.handle_package(actor, "package.fetch", facts, work).await
    }

    /// Installs what was shown.
    pub(super) async fn install(
        &self,
        actor: &Actor,
        authority: Authority,
        project: Option<PathBuf>,
        request: Install,
    ) -> Result<InstallAnswer> {
        let _changing = self.changing();
        let Install { plan: asked_for, content, accept } = request;
        let planned = match self.planned(project.as_deref(), &asked_for).await {
            Ok(planned) => planned,
            Err(error) => {
                return self
                    .refuse_package(actor, "package.install", asked(&asked_for.source, asked_for.root), error)
                    .await;
            }
        };
        let Planned { plan, package, base, mut accepted, widens } = planned;
        let by_person = authority == Authority::Person;
        let allowed = if plan.package.content != content {
            Err(Error::new(
                ErrorKind::Denied,
                "it is not what was shown any more: run the same command again, and look at what it is now",
            ))
        } else if !plan.asks || by_person || self.config.approvals.without_terminal || (accept && !widens) {
            Ok(())
        } else if accept {
            Err(Error::denied(
                "it would have more than it was let run with before, and that only a person accepts, whatever --accept says: run it in \
                 a terminal, which shows what is new. docs/configuration.md says under \"What is asked about\" what the operator of a \
                 machine without one can do",
            ))
        } else {
            Err(Error::denied(
                "somebody has to accept what it may do, and nobody was asked: run it in a terminal, which shows that, or say --accept",
            ))
        };
        let mut facts = asked(&asked_for.source, asked_for.root);
        facts.extend(told(&plan.package));
        facts.push(("directory", plan.directory.display().to_string().into()));
        let accepted_by = match (plan.asks, by_person, accept) {
            (false, ..) => "nothing is new",
            (true, true, _) => "by a person",
            (true, false, true) => "by a flag",
            (true, false, false) => "by nobody",
        };
        facts.push(("accepted", accepted_by.into()));
        if let Some(previous) = &plan.previous {
            facts.push((
                "previous",
                format!("{} {}", previous.version, previous.digest.as_deref().unwrap_or(&previous.content)).into(),
            ));
        }
        facts.extend(
            plan.skills
                .iter()
                .filter(|skill| !skill.new.is_empty())
                .map(|skill| ("new", format!("{}: {}", skill.name, skill.new.join("; ")).into())),
        );
        let effect = if plan.previous.is_some() { "package.update" } else { "package.install" };
        accepted.iter_mut().for_each(|keeps| keeps.kept.approved = by_person);
        let (installed, previous) = (plan.package.clone(), plan.previous.clone());
        let change = async {
            blocking(move || {
                let mut locked = base.lock()?;
                if locked.lock.get(&installed.name) != previous.as_ref()
                    || (previous.is_none() && base.has(installed.kind, &installed.name))
                {
                    return Err(Error::new(
                        ErrorKind::Denied,
                        "somebody else changed what is installed there meanwhile: run the same command again",
                    ));
                }
                locked.install(&package, installed)
            })
            .await?;
            self.broker.accept_installed(accepted).await
        };
        self.broker.install_package(actor, effect, facts, allowed, change).await?;
        let InstallPlan { package, directory, previous, .. } = plan;
        let version = |package: &InstalledPackage| match package.version.as_str() {
            "" => short(package).to_owned(),
            version => format!("{version} ({})", short(package)),
        };
        let message = match &previous {
            Some(previous) => format!("updated {} from {} to {}", package.name, version(previous), version(&package)),
            None => format!(
                "installed the {} {} {} in {}",
                package.kind.name(),
                package.name,
                version(&package),
                directory.display()
            ),
        };
        Ok(InstallAnswer { message, package, directory, previous })
    }

    /// What is installed.
    pub(super) async fn list_installed(
        &self,
        project: Option<PathBuf>,
        request: ListInstalled,
    ) -> Result<InstalledList> {
        let at = base_path(request.root, project.as_deref())?;
        if !at.exists() {
            // To look makes nothing.
            return Ok(InstalledList { packages: Vec::new(), directory: at });
        }
        let base = base(request.root, &at)?;
        blocking(move || Ok(InstalledList { packages: base.lock_file()?.packages, directory: base.path().to_owned() }))
            .await
    }

    /// Removes what was installed, whole. What its skills were let run with is kept: what comes to the same place is held to it.
    pub(super) async fn remove_package(
        &self,
        actor: &Actor,
        project: Option<PathBuf>,
        request: RemovePackage,
    ) -> Result<RemoveAnswer> {
        let _changing = self.changing();
        let RemovePackage { name, root } = request;
        let facts = vec![("name", name.clone().into()), ("root", <&str>::from(root).into())];
        let work = async {
            let base = base(root, &base_path(root, project.as_deref())?)?;
            let (package, at) = blocking(move || {
                let mut locked = base.lock()?;
                let package = find_installed(&locked.lock, &name, root)?.clone();
                locked.remove(&package)?;
                let at = base.directory(package.kind, &package.name);
                Ok((package, at))
            })
            .await?;
            let message = format!("removed the {} {} from {}", package.kind.name(), package.name, at.display());
            let facts = told(&package);
            Ok((RemoveAnswer { message, package }, facts))
        };
        self.broker.handle_package(actor, "package.remove", facts, work).await
    }

    /// Publishes what is in a directory.
    pub(super) async fn push_package(&self, actor: &Actor, request: PushPackage) -> Result<PushAnswer> {
        let facts = vec![
            ("directory", request.directory.display().to_string().into()),
            ("reference", request.reference.clone().into()),
        ];
        let work = async {
            let answer = self.push(request).await?;
            let facts = vec![("digest", answer.digest.clone().into()), ("signed_by", answer.signed_by.clone().into())];
            Ok((answer, facts))
        };
        self.broker.handle_package(actor, "package.push", facts, work).await
    }

    async fn push(&self, request: PushPackage) -> Result<PushAnswer> {
        let PushPackage { directory, reference, registry, sign_key, source } = request;
        let reference: Reference = reference.parse()?;
        if reference.digest.is_some() {
            return Err(Error::invalid_argument("what is published gets its digest by that: name it by a tag"));
        }
        let key = sign_key.as_deref().map(SigningKey::read).transpose()?;
        let dir = directory.clone();
        let (package, left_out) = blocking(move || from_dir::read(&dir)).await?;
        let identity = package.identity()?;
        let (package, skills) = self.checked(package, &identity).await?;
        let imports = skills.first().map(|skill| skill.descriptor.imports.clone()).unwrap_or_default();
        let artifact = {
            let identity = identity.clone();
            blocking(move || of_package(package, &identity, source.as_deref(), &imports)).await?
        };
        let client = self.client(&reference, registry, RegistryUse::Push).await?;
        for blob in artifact.blobs {
            client.push_blob(blob).await?;
        }
        let digest = crate::digest::sha256(&artifact.manifest);
        client.push_manifest(&reference.pinned(&digest), artifact.manifest.clone()).await?;
        // Signed before the tag leads there, so that who asks for the tag finds both.
        if let Some(key) = &key {
            signature::sign(&client, &reference, &digest, key).await?;
        }
        client.push_manifest(&reference, artifact.manifest).await?;
        let signed_by = key.map(|key| key.public().id());
        let by = signed_by.as_ref().map(|key| format!(", signed by {key}")).unwrap_or_default();
        let version = if identity.version.is_empty() { String::new() } else { format!(" {}", identity.version) };
        let message =
            format!("published the {} {}{version} as {reference}, {digest}{by}", identity.kind.name(), identity.name);
        Ok(PushAnswer { message, reference: reference.pinned(&digest).to_string(), digest, signed_by, left_out })
    }

    /// Fetches into a directory.
    pub(super) async fn pull_package(&self, actor: &Actor, request: PullPackage) -> Result<PullAnswer> {
        let facts = vec![("reference", request.reference.clone().into())];
        let work = async {
            let PullPackage { reference, directory, beneath, registry } = request;
            let fetched = self.fetch_registry(&reference.parse()?, registry).await?;
            let directory = directory.unwrap_or_else(|| beneath.join(&fetched.identity.name));
            let package = fetched.installed();
            let at = directory.clone();
            blocking(move || write_directory(&at, &fetched.package)).await?;
            let message = format!(
                "fetched the {} {} into {}: nothing is installed by that",
                package.kind.name(),
                package.name,
                directory.display()
            );
            let mut facts = told(&package);
            facts.push(("directory", directory.display().to_string().into()));
            Ok((PullAnswer { message, directory, package }, facts))
        };
        self.broker.handle_package(actor, "package.pull", facts, work).await
    }

    async fn refuse_package<T>(
        &self,
        actor: &Actor,
        effect: &'static str,
        facts: PackageFacts,
        error: Error,
    ) -> Result<T> {
        let mut record = self.broker.refused(actor, effect);
        crate::broker::note_package(&mut record, facts);
        record.fail(error).await
    }

    /// Fetches and checks what is asked for, and compares it with what is there.
    async fn planned(&self, project: Option<&Path>, request: &PlanInstall) -> Result<Planned> {
        let base = base(request.root, &base_path(request.root, project)?)?;
        let lock = base.lock_file()?;
        let fetched = self.fetch(&lock, request).await?;
        let package = fetched.installed();
        let Identity { kind, name, description, .. } = fetched.identity.clone();
        let previous = lock.get(&name).cloned();
        let mut notes = fetched.notes;
        check_place(&base, &package, previous.as_ref(), project)?;
        let changed = compare(&package, previous.as_ref(), request, &mut notes)?;
        let at = base.content(kind, &name);
        let unchanged = previous
            .as_ref()
            .is_some_and(|previous| previous.content == package.content && previous.digest == package.digest)
            && at.as_ref() == Some(&package.content);
        let mut asks = previous.is_none() || changed;
        if let (Some(previous), Some(at)) = (&previous, &at)
            && previous.content != *at
        {
            notes.push(format!("{name} was changed here since it was installed, and those changes go"));
            asks = true;
        }
        let (files, skills) = self.checked(fetched.package, &fetched.identity).await?;
        let project = match request.root {
            InstallRoot::Project => project.map(real).transpose()?,
            InstallRoot::User => None,
        };
        let directory = base.directory(kind, &name);
        let (mut planned, mut accepted, mut widens) = (Vec::new(), Vec::new(), false);
        for CheckedSkill { entry, descriptor } in &skills {
            let loaded = entry.loaded.as_ref().map_err(Clone::clone)?;
            let dir = match kind {
                PackageKind::Skill => directory.clone(),
                PackageKind::Plugin => directory.join("skills").join(entry.name.rsplit('/').next().unwrap_or_default()),
            };
            notes.extend(self.broker.missing_roles(entry).map(|error| error.message));
            let limits = loaded.manifest.limits.shown();
            if loaded.is_document() {
                planned.push(PlannedSkill {
                    name: entry.name.clone(),
                    actions: Vec::new(),
                    may: Vec::new(),
                    new: Vec::new(),
                    limits: [].into(),
                });
                continue;
            }
            let candidate = Candidate {
                name: &entry.name,
                dir: &dir,
                component: &descriptor.digest,
                manifest: &loaded.manifest_digest,
                project: project.as_deref(),
                trusted: false,
                developed: false,
            };
            let (kept, keeps) = self.broker.foresee(&candidate, loaded);
            let may = keeps.kept.reach.beyond(&Grant::default());
            let mut new = kept.as_ref().map(|kept| keeps.kept.reach.beyond(kept)).unwrap_or_default();
            widens |= !new.is_empty();
            if let Some(old) = previous_limits(&dir) {
                new.extend(loaded.manifest.limits.beyond(&old).into_iter().map(|limit| format!("limit {limit}")));
            }
            // Nobody was asked about one that is new in a plugin, either.
            asks |= !new.is_empty() || (previous.is_some() && kept.is_none() && !dir.exists());
            planned.push(PlannedSkill {
                name: entry.name.clone(),
                actions: descriptor.actions.iter().map(|action| action.name.clone()).collect(),
                may,
                new,
                limits,
            });
            accepted.push(keeps);
        }
        let asks = asks && !unchanged;
        let plan = InstallPlan { package, description, directory, previous, unchanged, asks, skills: planned, notes };
        Ok(Planned { plan, package: files, base, accepted, widens })
    }

    /// Loads and describes all skills of a package as the host loads any skill, in a place of their own.
    async fn checked(&self, package: SkillPackage, identity: &Identity) -> Result<(SkillPackage, Vec<CheckedSkill>)> {
        let (state, identity, descriptors) =
            (self.options.state_dir.join(CHECKING), identity.clone(), self.descriptors.clone());
        blocking(move || {
            std::fs::create_dir_all(&state)?;
            let temp = tempfile::tempdir_in(&state)?;
            let kind = match identity.kind {
                PackageKind::Skill => "skills",
                PackageKind::Plugin => "plugins",
            };
            write_directory(&temp.path().join(kind).join(&identity.name), &package)?;
            let roots = Roots(vec![SkillRoot::new(temp.path().join("skills"), SkillSource::User)]);
            let catalog = Catalog::discover(&roots, &SkillCache::default());
            let (of, shown) = (identity.name.as_str(), format!("{}/", temp.path().display()));
            let told = |error: Error| {
                Error { message: error.message.replace(&shown, ""), ..error }.context(format!("{of} cannot be used"))
            };
            if let Some(problem) = catalog.problems.first() {
                return Err(told(Error::invalid_argument(problem.clone())));
            }
            let mut skills = Vec::new();
            for entry in catalog.skills.into_values() {
                let descriptor = entry.describe(&*descriptors).map_err(|error| told(error.context(&entry.name)))?;
                skills.push(CheckedSkill { entry, descriptor });
            }
            if skills.len() != identity.skills.len() {
                return Err(told(Error::invalid_argument("not all of its skills are found where they belong")));
            }
            Ok((package, skills))
        })
        .await
    }

    async fn fetch(&self, lock: &LockFile, request: &PlanInstall) -> Result<Fetched> {
        let source = match &request.source {
            PackageSource::Installed(name) => installed_source(find_installed(lock, name, request.root)?),
            other => other.clone(),
        };
        match source {
            PackageSource::Registry(reference) => {
                self.fetch_registry(&reference.parse()?, request.registry.clone()).await
            }
            PackageSource::Directory(path) => {
                self.unsigned(&path)?;
                let at = path.clone();
                let (package, left_out) = blocking(move || from_dir::read(&at)).await?;
                Fetched::of(package, path.display().to_string(), left_out)
            }
            PackageSource::Archive(path) => {
                self.unsigned(&path)?;
                let at = path.clone();
                let package = blocking(move || {
                    let mut package = SkillPackage::default();
                    let within = |error: Error| error.context(at.display());
                    let bytes = read_named(&at, MAX_ARCHIVE).map_err(within)?;
                    tarball::read_gz(&bytes, &mut package).map_err(within)?;
                    package.without_wrapper().map_err(within)
                })
                .await?;
                Fetched::of(package, path.display().to_string(), Vec::new())
            }
            PackageSource::Installed(name) => Err(Error::invalid_argument(format!("{name} has no source"))),
        }
    }

    /// Refuses what has no signature, where the operator wants one.
    fn unsigned(&self, path: &Path) -> Result<()> {
        match self.config.install.rule(None).requires_signature() {
            true => Err(Error::denied(format!(
                "{} has no signature, and the operator lets nothing be installed without one: `require-signature` under [install] in \
                 skillhost.toml",
                path.display()
            ))),
            false => Ok(()),
        }
    }

    async fn fetch_registry(&self, reference: &Reference, options: RegistryOptions) -> Result<Fetched> {
        let client = self.client(reference, options, RegistryUse::Pull).await?;
        let (manifest, digest) = client
            .manifest(reference)
            .await?
            .ok_or_else(|| Error::not_found(format!("the registry {} has no {reference}", reference.registry)))?;
        let rule = self.config.install.rule(Some(&reference.place()));
        let keys = rule.trusted_keys.iter().map(|file| TrustedKey::read(file)).collect::<Result<Vec<_>>>()?;
        let signed_by = match keys.is_empty() {
            true => None,
            false => signature::verify(&client, reference, &digest, &keys).await?,
        };
        if signed_by.is_none() && rule.requires_signature() {
            return Err(Error::denied(format!(
                "{reference} ({digest}) is not signed by a key that is trusted, and the operator lets nothing be installed from there \
                 without: `trusted-keys` and `require-signature` under [install] in skillhost.toml"
            )));
        }
        let (component, files) = manifest.layers_of_package()?;
        let component = match component {
            Some(layer) => Some(client.blob(layer).await?),
            None => None,
        };
        let files = client.blob(files).await?;
        let of = reference.to_string();
        let package = blocking(move || to_package(component, &files).map_err(|error| error.context(of))).await?;
        let fetched = Fetched::of(package, reference.to_string(), Vec::new())?;
        Ok(Fetched { digest: Some(digest), signed_by, ..fetched })
    }

    async fn client(
        &self,
        reference: &Reference,
        options: RegistryOptions,
        purpose: RegistryUse,
    ) -> Result<RegistryClient> {
        let RegistryOptions { docker_config, plain_http } = options;
        let access = RegistryAccess {
            plain_http: plain_http || self.config.install.plain_http.contains(&reference.registry),
            docker_config,
            certificates: self.config.install.ca_certificates.clone(),
            timeout: self.config.install.timeout.0,
        };
        let (reference, timeout) = (reference.clone(), access.timeout);
        let opening = blocking(move || RegistryClient::open(&reference, &access, purpose));
        // A credential helper is a program that may wait for somebody.
        tokio::time::timeout(timeout, opening)
            .await
            .map_err(|_| Error::new(ErrorKind::TimedOut, "Docker's credential helper does not answer"))?
    }
}

/// Beneath which directory things are installed.
fn base_path(root: InstallRoot, project: Option<&Path>) -> Result<PathBuf> {
    match (root, project) {
        (InstallRoot::User, _) => {
            let skills = Roots::users_own_from_env().ok_or_else(|| {
                Error::invalid_argument(
                    "neither HOME nor XDG_DATA_HOME says where the user's own skills are: set one, or use --in-project",
                )
            })?;
            Ok(skills.parent().unwrap_or(&skills).to_owned())
        }
        (InstallRoot::Project, Some(project)) => Ok(real(project)?.join(IN_PROJECT)),
        (InstallRoot::Project, None) => Err(Error::invalid_argument("there is no project to install in")),
    }
}

/// The same, opened, and made where it is not there.
fn base(root: InstallRoot, at: &Path) -> Result<InstallBase> {
    match root {
        InstallRoot::User => InstallBase::of_user(at),
        InstallRoot::Project => InstallBase::of_project(at.parent().unwrap_or(at)),
    }
}

impl Fetched {
    fn of(package: SkillPackage, source: String, notes: Vec<String>) -> Result<Self> {
        let identity = package.identity().map_err(|error| error.context(&source))?;
        Ok(Self { package, identity, source, digest: None, signed_by: None, notes })
    }

    /// As the lock file has it.
    fn installed(&self) -> InstalledPackage {
        let Identity { kind, name, version, skills, .. } = self.identity.clone();
        InstalledPackage {
            name,
            kind,
            version,
            source: self.source.clone(),
            digest: self.digest.clone(),
            content: self.package.digest(),
            signed_by: self.signed_by.clone(),
            installed_at: show_time(now_ms()),
            skills: if kind == PackageKind::Plugin { skills } else { Vec::new() },
        }
    }
}

/// Refuses a place that somebody else's skill has, or that another skill of the name would hide.
fn check_place(
    base: &InstallBase,
    package: &InstalledPackage,
    previous: Option<&InstalledPackage>,
    project: Option<&Path>,
) -> Result<()> {
    let InstalledPackage { name, kind, .. } = package;
    let at = base.directory(*kind, name);
    if previous.is_some_and(|previous| previous.kind != *kind) {
        let other = previous.map(|previous| previous.kind.name()).unwrap_or_default();
        return Err(taken(format!(
            "{name} is installed as a {other}, and this is a {}: `skillhost remove {name}` first",
            kind.name()
        )));
    }
    if previous.is_none() && base.has(*kind, name) {
        return Err(taken(format!(
            "{} is there, and was not installed by skillhost: move it away, or give one of the two another name",
            at.display()
        )));
    }
    let own = base.path().join("skills");
    let above = Roots::from_env(project)
        .0
        .into_iter()
        .take_while(|root| root.dir.canonicalize().map_or(root.dir != own, |real| real != own));
    for root in above {
        let owner = match kind {
            PackageKind::Skill => root.skill_dir(name).filter(|dir| is_skill_dir(dir)),
            PackageKind::Plugin if root.only.is_none() => {
                Some(root.dir.with_file_name("plugins").join(name)).filter(|dir| dir.join("skills").is_dir())
            }
            PackageKind::Plugin => None,
        };
        // The same one, by another way.
        if let Some(owner) = owner.filter(|owner| real(owner).ok() != Some(at.clone())) {
            return Err(taken(format!(
                "the name {name} is that of {}, which wins over what would be in {}: move that away, or install from elsewhere (it is seen \
                 from this project alone, unless it is your own)",
                owner.display(),
                at.display()
            )));
        }
    }
    Ok(())
}

fn taken(message: String) -> Error {
    Error::new(ErrorKind::AlreadyExists, message)
}

/// Compares with what is installed: refuses what is older, and says what else is odd. Whether that has to be accepted.
fn compare(
    package: &InstalledPackage,
    previous: Option<&InstalledPackage>,
    request: &PlanInstall,
    notes: &mut Vec<String>,
) -> Result<bool> {
    if let PackageSource::Installed(name) = &request.source
        && *name != package.name
    {
        return Err(Error::denied(format!(
            "what was installed as {name} calls itself {} now: `skillhost install` it under that name, if that is meant",
            package.name
        )));
    }
    let Some(previous) = previous else { return Ok(false) };
    let name = &package.name;
    let parse = |version: &str| semver::Version::parse(version).ok();
    let older = match (parse(&package.version), parse(&previous.version)) {
        (Some(new), Some(old)) => new < old,
        _ => package.version != previous.version && !previous.version.is_empty(),
    };
    if older && !request.downgrade {
        return Err(Error::denied(format!(
            "{name} {} is installed, and {} is not a later version: an older one may have faults that are known. `--downgrade` installs \
             it all the same",
            previous.version, package.version
        )));
    }
    let mut asks = false;
    if package.version == previous.version && package.content != previous.content {
        notes.push(format!(
            "{name} {} is another than the {} that is installed: whoever published it changed it and kept its version ({} is now {})",
            package.version,
            previous.version,
            short(previous),
            short(package)
        ));
    }
    let place = |package: &InstalledPackage| {
        package.source.parse::<Reference>().map_or_else(|_| package.source.clone(), |reference| reference.place())
    };
    if place(package) != place(previous) {
        notes.push(format!("{name} came from {} before, and comes from {} now", previous.source, package.source));
        asks = true;
    }
    if package.signed_by != previous.signed_by {
        let by =
            |package: &InstalledPackage| package.signed_by.clone().unwrap_or_else(|| "nobody that is trusted".into());
        notes.push(format!("{name} was signed by {}, and is signed by {} now", by(previous), by(package)));
        // A signature more is nothing to worry about.
        asks |= previous.signed_by.is_some();
    }
    Ok(asks)
}

/// The digest by which it is known, as far as people read it.
fn short(package: &InstalledPackage) -> &str {
    let digest = package.digest.as_deref().unwrap_or(&package.content);
    digest.get(..19).unwrap_or(digest)
}

fn find_installed<'l>(lock: &'l LockFile, name: &str, root: InstallRoot) -> Result<&'l InstalledPackage> {
    let plain = name.split('/').next().unwrap_or(name);
    check_part("skill", plain)?;
    let found = lock.get(plain).ok_or_else(|| {
        let of = <&str>::from(root);
        Error::not_found(format!("nothing is installed under the name {plain} among the {of}'s skills: `skillhost list --installed` says what is"))
    })?;
    match name.contains('/') {
        true => Err(Error::invalid_argument(format!(
            "{name} is of the plugin {plain}, which is updated and removed whole: name that"
        ))),
        false => Ok(found),
    }
}

/// Where something installed came from.
fn installed_source(package: &InstalledPackage) -> PackageSource {
    if package.digest.is_some() {
        return PackageSource::Registry(package.source.clone());
    }
    let path = PathBuf::from(&package.source);
    if path.is_dir() { PackageSource::Directory(path) } else { PackageSource::Archive(path) }
}

/// What the calls of the skill that is there now may use.
fn previous_limits(dir: &Path) -> Option<crate::skills::limits::Limits> {
    use crate::skills::manifest::{self, Manifest};
    let text = read_named(&dir.join(manifest::FILE), manifest::MAX_BYTES).ok()?;
    Some(Manifest::parse(std::str::from_utf8(&text).ok()?, Path::new(manifest::FILE)).ok()?.limits)
}

/// What was asked for, as it is recorded.
pub(super) fn asked(source: &PackageSource, root: InstallRoot) -> PackageFacts {
    let source = match source {
        PackageSource::Directory(path) | PackageSource::Archive(path) => path.display().to_string(),
        PackageSource::Registry(reference) => reference.clone(),
        PackageSource::Installed(name) => format!("the source of {name}"),
    };
    vec![("source", source.into()), ("root", <&str>::from(root).into())]
}

fn told(package: &InstalledPackage) -> PackageFacts {
    let InstalledPackage { name, kind, version, digest, content, signed_by, .. } = package;
    vec![
        ("name", name.clone().into()),
        ("kind", kind.name().into()),
        ("version", version.clone().into()),
        ("digest", digest.clone().into()),
        ("content", content.clone().into()),
        ("signed_by", signed_by.clone().into()),
    ]
}
