//! A brokered effect while it happens: begun before it, ended with its outcome, and recorded also when it is dropped.

use std::sync::Arc;

use serde_json::Value;
use skillhost_api::error::{ErrorKind, Result};

use super::audit::{Audit, UnrecordedEffect};
use super::facts::Facts;
use crate::policy::Actor;

/// An effect that has begun. Every one ends in one audit record: by [`EffectRecord::end`], or as `cancelled` when its
/// caller leaves and it is dropped.
pub(crate) struct EffectRecord {
    open: Option<Open>,
}

struct Open {
    _under_way: UnrecordedEffect,
    audit: Arc<Audit>,
    actor: Actor,
    effect: &'static str,
    facts: Facts,
}

impl EffectRecord {
    pub(super) fn begin(audit: &Arc<Audit>, actor: &Actor, effect: &'static str) -> Self {
        let open = Open {
            _under_way: audit.under_way(),
            audit: audit.clone(),
            actor: actor.clone(),
            effect,
            facts: Facts::default(),
        };
        Self { open: Some(open) }
    }

    /// What kind of effect it is.
    pub(super) fn effect(&self) -> &'static str {
        self.open.as_ref().map_or("", |open| open.effect)
    }

    /// Adds a fact, as much of it as a record may have.
    pub(crate) fn note(&mut self, name: &str, value: impl Into<Value>) {
        if let Some(open) = &mut self.open {
            open.facts.note(name, value.into());
        }
    }

    /// Writes the record of something that has begun and goes on, and gives the one of its end: what was noted is in both.
    pub(crate) async fn begun(self, end: &'static str) -> Result<Self> {
        let next = self.open.as_ref().map(|open| Open {
            _under_way: open.audit.under_way(),
            audit: open.audit.clone(),
            actor: open.actor.clone(),
            effect: end,
            facts: open.facts.clone(),
        });
        self.end(Ok(())).await?;
        Ok(Self { open: next })
    }

    /// Writes the record, and only then lets `change` be: what more may happen from then on is never without a record. When
    /// the change fails, or its caller leaves, another record says so.
    pub(super) async fn before<T>(self, change: impl Future<Output = Result<T>>) -> Result<T> {
        let effect = self.effect();
        let mut failed = self.begun(effect).await?;
        match change.await {
            Ok(value) => {
                failed.open = None;
                Ok(value)
            }
            error => failed.end(error).await,
        }
    }

    /// Writes the record and gives the result back, so that the caller answers only after it is written.
    pub(crate) async fn end<T>(mut self, result: Result<T>) -> Result<T> {
        let outcome = match &result {
            Ok(_) => Ok(()),
            Err(error) => {
                if let Some(open) = &mut self.open {
                    open.facts.error(&error.message);
                }
                Err(error.kind)
            }
        };
        if let Some(open) = self.open.take() {
            open.write(outcome).await?;
        }
        result
    }
}

impl EffectRecord {
    /// Ends well without anybody waiting for it: what has no other end than that its caller leaves.
    pub(super) fn leave(mut self) {
        if let Some(open) = self.open.take() {
            open.write_later(Ok(()));
        }
    }
}

impl Open {
    async fn write(self, outcome: std::result::Result<(), ErrorKind>) -> Result<()> {
        self.audit.record(&self.actor, self.effect, outcome, self.facts.into()).await
    }

    fn write_later(self, outcome: std::result::Result<(), ErrorKind>) {
        // Without a runtime the process itself is on its way out.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = self.write(outcome).await {
                    tracing::error!("an audit record was lost: {error}");
                }
            });
        }
    }
}

impl Drop for EffectRecord {
    fn drop(&mut self) {
        // Dropped in the middle: the caller left.
        if let Some(open) = self.open.take() {
            open.write_later(Err(ErrorKind::Cancelled));
        }
    }
}
