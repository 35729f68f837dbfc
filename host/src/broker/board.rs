//! The blackboard, brokered.

use serde_json::Value;

use super::{Actor, Broker};
use crate::api::types::{BlackboardEntry, BlackboardList};
use crate::blackboard::{check_key, matches};
use crate::error::{Error, Result};

impl Broker {
    /// Writes a value.
    pub(crate) async fn publish(&self, actor: &Actor, key: &str, value: Value) -> Result<BlackboardEntry> {
        let mut record = self.begin(actor, "blackboard.publish").await?;
        record.note("key", key);
        let result = async {
            check_key(key)?;
            actor.grant.publish(key)?;
            self.blackboard.publish(&actor.caller, key, value).await
        }
        .await;
        if let Ok(entry) = &result {
            record.note("version", entry.version);
        }
        record.end(result).await
    }

    /// Reads a value.
    pub(crate) async fn get(&self, actor: &Actor, key: &str) -> Result<Option<BlackboardEntry>> {
        let mut record = self.begin(actor, "blackboard.get").await?;
        record.note("key", key);
        let result = async {
            check_key(key)?;
            actor.grant.read(key)?;
            self.blackboard.get(&actor.caller, key).await
        }
        .await;
        record.end(result).await
    }

    /// Lists what matches `pattern` and may be read.
    pub(crate) async fn list(&self, actor: &Actor, pattern: &str) -> Result<BlackboardList> {
        let mut record = self.begin(actor, "blackboard.list").await?;
        record.note("pattern", pattern);
        let result = async {
            if pattern.len() > crate::blackboard::MAX_KEY {
                return Err(Error::invalid_argument(format!(
                    "a pattern has at most {} bytes",
                    crate::blackboard::MAX_KEY
                )));
            }
            let readable = actor.grant.readable();
            let allowed =
                move |key: &str| readable.as_ref().is_none_or(|all| all.iter().any(|pattern| matches(pattern, key)));
            let entries = self.blackboard.list(&actor.caller, pattern, allowed).await?;
            Ok(BlackboardList { count: entries.len(), entries })
        }
        .await;
        record.end(result).await
    }
}
