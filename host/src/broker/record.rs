//! A brokered effect while it happens: begun before it, ended with its outcome, and recorded also when it is dropped.
//!
//! The types hold the order *authorise → reserve → act → record*: what has begun is an [`EffectRecord`], which can only fail or be
//! held to a check; what passes that is an [`AllowedEffect`], which takes its steps and ends well or not. Each step that
//! fails is recorded where it fails, so that `?` never leaves an effect in the middle.

use std::sync::Arc;

use serde_json::Value;
use skillhost_api::error::{Error, ErrorKind, Result};

use super::audit::{Audit, UnrecordedEffect};
use super::audit_detail::Facts;
use crate::policy::Actor;

/// An effect that has begun and is not allowed yet. Every one ends in one audit record: with its outcome, or as `cancelled`
/// when its caller leaves and it is dropped.
pub(crate) struct EffectRecord {
    open: Option<Open>,
}

/// An effect that passed its check, and may be done.
pub(crate) struct AllowedEffect(EffectRecord);

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

    /// Holds it to a check, and lets it go on with what that gives. A refusal is recorded.
    pub(super) async fn authorise<T>(
        mut self,
        check: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(AllowedEffect, T)> {
        match check(&mut self) {
            Ok(granted) => Ok((AllowedEffect(self), granted)),
            Err(refusal) => self.fail(refusal).await,
        }
    }

    /// Writes the record of an effect that does not come about, and gives the error back.
    pub(crate) async fn fail<T>(self, error: Error) -> Result<T> {
        self.end(Err(error)).await
    }

    async fn end<T>(mut self, result: Result<T>) -> Result<T> {
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

impl AllowedEffect {
    /// Adds a fact, as much of it as a record may have.
    pub(super) fn note(&mut self, name: &str, value: impl Into<Value>) {
        self.0.note(name, value);
    }

    /// Takes a step, reserving or acting, and goes on with what that gives. A failure is recorded.
    pub(super) async fn step<T>(self, work: impl Future<Output = Result<T>>) -> Result<(Self, T)> {
        match work.await {
            Ok(value) => Ok((self, value)),
            Err(error) => self.0.fail(error).await,
        }
    }

    /// Takes the last step, and ends with what becomes of it.
    pub(super) async fn act<T>(self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = work.await;
        self.end(result).await
    }

    /// Writes the record and gives the result back, so that the caller answers only after it is written.
    pub(super) async fn end<T>(self, result: Result<T>) -> Result<T> {
        self.0.end(result).await
    }

    /// Writes the record of something that has begun and goes on, and gives the one of its end: what was noted is in both.
    pub(super) async fn begun(self, end: &'static str) -> Result<Self> {
        let next = self.0.open.as_ref().map(|open| Open {
            _under_way: open.audit.under_way(),
            audit: open.audit.clone(),
            actor: open.actor.clone(),
            effect: end,
            facts: open.facts.clone(),
        });
        self.end(Ok(())).await?;
        Ok(Self(EffectRecord { open: next }))
    }

    /// Writes the record, and only then lets `change` be: what more may happen from then on is never without a record. When
    /// the change fails, or its caller leaves, another record says so.
    pub(super) async fn before<T>(self, change: impl Future<Output = Result<T>>) -> Result<T> {
        let effect = self.0.effect();
        let mut failed = self.begun(effect).await?;
        match change.await {
            Ok(value) => {
                failed.0.open = None;
                Ok(value)
            }
            error => failed.end(error).await,
        }
    }

    /// Ends well without anybody waiting for it: what has no other end than that its caller leaves.
    pub(super) fn leave(mut self) {
        if let Some(open) = self.0.open.take() {
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

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use skillhost_api::caller::Caller;

    use super::*;
    use crate::db::{Db, Durability};

    #[tokio::test]
    async fn wherever_an_effect_ends_there_is_one_record_of_it() {
        let temp = tempfile::tempdir().unwrap();
        let db = Db::open(&temp.path().join("state.db"), Durability::Process).unwrap();
        let audit = Arc::new(Audit::open(db, 1 << 20).await.unwrap());
        let actor = Actor::owner(Caller::default());
        let allowed = async |effect| {
            let mut record = EffectRecord::begin(&audit, &actor, effect);
            record.note("fact", effect);
            record.authorise(|_| Ok(())).await.unwrap().0
        };
        let failed = || ready(Err::<(), _>(Error::other("it broke")));

        let denied = EffectRecord::begin(&audit, &actor, "denied");
        assert!(denied.authorise(|_| Err::<(), _>(Error::denied("no"))).await.is_err());
        assert!(allowed("step").await.step(failed()).await.is_err());
        let (effect, two) = allowed("act").await.step(ready(Ok(2))).await.unwrap();
        assert_eq!(effect.act(ready(Ok(two + 1))).await.unwrap(), 3);
        drop(allowed("begun").await.begun("end").await.unwrap());
        while audit.effects() > 0 {
            tokio::task::yield_now().await;
        }
        allowed("before").await.before(ready(Ok(()))).await.unwrap();
        assert!(allowed("before that fails").await.before(failed()).await.is_err());
        allowed("left").await.leave();
        while audit.effects() > 0 {
            tokio::task::yield_now().await;
        }
        let step = allowed("dropped").await.step(pending::<Result<()>>());
        assert!(tokio::time::timeout(Duration::from_millis(1), step).await.is_err());
        while audit.effects() > 0 {
            tokio::task::yield_now().await;
        }

        let records = audit.tail(100, None).await.unwrap().records;
        let seen: Vec<_> = records.iter().map(|record| (record.effect.as_str(), record.outcome.as_str())).collect();
        let expected = [
            ("denied", "denied"),
            ("step", "other"),
            ("act", "ok"),
            ("begun", "ok"),
            ("end", "cancelled"),
            ("before", "ok"),
            ("before that fails", "ok"),
            ("before that fails", "other"),
            ("left", "ok"),
            ("dropped", "cancelled"),
        ];
        assert_eq!(seen, expected);
        assert_eq!(records[1].detail, serde_json::json!({"fact": "step", "error": "it broke"}));
    }
}
