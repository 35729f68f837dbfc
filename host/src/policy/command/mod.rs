//! Whether a command may run: the operator's rules, held to what a command really starts.
//!
//! A command is taken apart into the programs that it starts ([`starters`]), a line for the shell with Bash's grammar ([`line`]).
//! Each part is held to the rules ([`matching`]), and the strictest of all is what becomes of the whole. What cannot be known
//! before it runs is never allowed.

mod line;
mod matching;
mod starters;
#[cfg(test)]
mod tests;
mod words;

use skillhost_api::types::Command;
use skillhost_api::visible;

use self::matching::RuleMatch;
use self::words::{CommandPart, CommandParts, Reading, Word};
use super::question::shortened;
use crate::config::{CommandDecision, CommandRule, CommandRules};

/// How often a command may start another one, or a line hold another line.
const MAX_DEPTH: usize = 12;
/// How much of a rule or a program is told.
const MAX_TOLD: usize = 120;

/// What becomes of a command, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommandVerdict {
    pub(crate) decision: CommandDecision,
    /// The rule, or what is not known, in words.
    pub(crate) because: String,
}

/// Decides about a command in an environment, of which those variables count that a caller has set.
pub(crate) fn decide<'a>(
    rules: &CommandRules,
    command: &Command,
    env: impl IntoIterator<Item = &'a String>,
) -> CommandVerdict {
    let mut parts = CommandParts::default();
    let reading = Reading { variables: &rules.variables, depth: MAX_DEPTH, in_shell: false, line: line::read };
    for name in env {
        if !words::is_harmless(name, &rules.variables) {
            parts.unknown(format!("the variable {} is set for it", shortened(&visible::line(name), MAX_TOLD)));
        }
    }
    match command {
        Command::Argv(argv) => starters::command(argv.iter().cloned().map(Word::Known).collect(), reading, &mut parts),
        Command::Shell(text) => line::read(text, Reading { in_shell: true, ..reading }, &mut parts),
    }
    let nothing = CommandVerdict { decision: CommandDecision::Allow, because: "it starts nothing".to_owned() };
    let verdicts = parts.found.iter().map(|part| of_part(rules, part));
    verdicts.fold(nothing, |all, one| {
        let is_first = all.decision == CommandDecision::Allow;
        if one.decision > all.decision || (is_first && one.decision == all.decision) { one } else { all }
    })
}

fn of_part(rules: &CommandRules, part: &CommandPart) -> CommandVerdict {
    let unknown = |why: &str| CommandVerdict {
        decision: rules.unknown(),
        because: format!("{why}, and `unknown` is {}", rules.unknown().name()),
    };
    match part {
        CommandPart::Unknown(why) => unknown(why),
        CommandPart::Program { words, transparent } => match words.split_first() {
            Some((Word::Known(program), args)) => of_program(rules, program, args, *transparent),
            _ => unknown("which program it runs is not known before it runs"),
        },
    }
}

fn of_program(rules: &CommandRules, program: &str, args: &[Word], transparent: bool) -> CommandVerdict {
    let mut maybe = None;
    for (decision, list) in [(CommandDecision::Deny, &rules.deny), (CommandDecision::Ask, &rules.ask)] {
        for (rule, number) in list.iter().zip(1..) {
            match matching::has_all(rule, program, args) {
                RuleMatch::Yes if maybe.is_none() || decision == CommandDecision::Deny => {
                    return CommandVerdict { decision, because: named(decision, number, rule) };
                }
                RuleMatch::Yes | RuleMatch::Maybe => maybe = maybe.or(Some((decision, number, rule))),
                RuleMatch::No => {}
            }
        }
    }
    if let Some((list, number, rule)) = maybe {
        let decision = rules.unknown();
        let because = format!(
            "whether {} matches is not known before it runs, and `unknown` is {}",
            named(list, number, rule),
            decision.name()
        );
        return CommandVerdict { decision, because };
    }
    let allowed = rules.allow.iter().zip(1..).find(|(rule, _)| matching::names_all(rule, program, args));
    if let Some((rule, number)) = allowed {
        let decision = CommandDecision::Allow;
        return CommandVerdict { decision, because: named(decision, number, rule) };
    }
    if transparent {
        let because = "it starts nothing but what is decided about besides".to_owned();
        return CommandVerdict { decision: CommandDecision::Allow, because };
    }
    let decision = rules.otherwise();
    let program = shortened(&visible::line(program), MAX_TOLD);
    CommandVerdict { decision, because: format!("no rule matches `{program}`, and `otherwise` is {}", decision.name()) }
}

/// Which rule it is, and where it stands.
fn named(list: CommandDecision, number: usize, rule: &CommandRule) -> String {
    format!("rule no. {number} of `{}` (`{}`)", list.name(), shortened(&visible::line(&rule.text), MAX_TOLD))
}
