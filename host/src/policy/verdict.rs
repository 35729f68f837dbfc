//! What becomes of an effect, and why: the word of rules, and of guardrails.

use crate::config::EffectDecision;

/// What becomes of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EffectVerdict {
    pub(crate) decision: EffectDecision,
    /// The reason, in words.
    pub(crate) because: String,
}

impl EffectVerdict {
    /// The stricter of two, and of two alike the first; but where both let it happen, the one that says why.
    #[must_use]
    pub(crate) fn or_stricter(self, other: Self) -> Self {
        let says_more = self.because.is_empty() && other.decision == self.decision;
        if other.decision > self.decision || says_more { other } else { self }
    }
}
