//! The credentials of a registry, from Docker's own configuration: whoever has logged in with `docker login` has done it here, too.

use std::path::Path;

use docker_credential::{CredentialRetrievalError, DockerCredential, get_credential_from_reader};
use skillhost_api::error::{Error, ErrorKind, Result};

use super::reference::Reference;
use crate::rooted::read_named;

/// The file in Docker's directory.
const FILE: &str = "config.json";
/// The most bytes of it.
const MAX_BYTES: u64 = 1024 * 1024;
/// What Docker Hub is called there.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The credential that the directory `docker_config` has for a registry, asked of a helper where it says so: that is a program of the
/// owner's. None where there is none.
pub(crate) fn find(docker_config: &Path, reference: &Reference) -> Result<Option<DockerCredential>> {
    let file = docker_config.join(FILE);
    let within = |error: Error| error.context(file.display());
    let text = match read_named(&file, MAX_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(within(error)),
    };
    let registry = &reference.registry;
    let names = match reference.is_docker_hub() {
        true => vec![DOCKER_HUB.to_owned()],
        false => vec![registry.clone(), format!("https://{registry}"), format!("http://{registry}")],
    };
    let mut failed = None;
    for name in &names {
        match get_credential_from_reader(text.as_slice(), name) {
            Ok(credential) => return Ok(Some(credential)),
            Err(CredentialRetrievalError::NoCredentialConfigured | CredentialRetrievalError::ConfigNotFound) => {}
            // A store says that it has none in words of its own, and what it knows may stand under another name.
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
    }
    match failed {
        None => Ok(None),
        Some(CredentialRetrievalError::HelperFailure { helper, .. }) => {
            tracing::debug!("{helper} has no credential for {registry}");
            Ok(None)
        }
        Some(error) => {
            Err(within(Error::invalid_argument(format!("there is no credential for {registry} to be had: {error}"))))
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;

    use super::*;

    #[test]
    fn what_docker_login_wrote_is_found_under_each_name() {
        let temp = tempfile::tempdir().unwrap();
        let auth = base64::engine::general_purpose::STANDARD.encode("me:secret");
        let find = |config: &str, reference: &str| {
            std::fs::write(temp.path().join(FILE), config).unwrap();
            find(temp.path(), &reference.parse().unwrap())
        };
        let own = DockerCredential::UsernamePassword("me".into(), "secret".into());
        for (name, reference) in
            [("reg.example:5000", "reg.example:5000/a"), ("https://ghcr.io", "ghcr.io/a/b"), (DOCKER_HUB, "acme/a")]
        {
            let config = serde_json::json!({"auths": {name: {"auth": auth}}}).to_string();
            assert_eq!(find(&config, reference).unwrap().as_ref(), Some(&own), "{name}");
            assert_eq!(find(&config, "other.example/a").unwrap(), None);
        }
        assert!(find("{", "ghcr.io/a").is_err());
        assert_eq!(super::find(Path::new("/nowhere"), &"ghcr.io/a".parse().unwrap()).unwrap(), None);
    }
}
