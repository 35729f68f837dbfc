//! Acting on a command that runs: writing to it, signalling it, ending it.
//!
//! Whoever acts has the command already, each in their own way: a guest by its handle, others by an id in the table of background
//! processes. What is checked and recorded of the act is the same for all, and is here.

use skillhost_api::error::{Error, Result};

use crate::broker::Broker;
use crate::policy::Actor;

/// The command that is acted on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CommandTarget<'a> {
    pub(crate) container_id: &'a str,
    pub(crate) exec_id: &'a str,
}

/// The result of a write to a command's standard input.
#[derive(Debug, Default)]
pub(crate) struct StdinWrite {
    /// The bytes that were written.
    pub(crate) bytes: u64,
    /// Whether it gets no more.
    pub(crate) closed: bool,
}

impl Broker {
    /// Records a write, which `work` does.
    pub(crate) async fn feed<T>(
        &self,
        actor: &Actor,
        target: CommandTarget<'_>,
        work: impl Future<Output = (StdinWrite, Result<T>)>,
    ) -> Result<T> {
        let mut record = self.begin(actor, "process.write").await?;
        record.note("container_id", target.container_id);
        record.note("exec_id", target.exec_id);
        let (fed, result) = work.await;
        record.note("bytes", fed.bytes);
        record.note("closed", fed.closed);
        record.end(result).await
    }

    /// Records a signal, or the end where there is none, which `work` sends.
    pub(crate) async fn signal<T>(
        &self,
        actor: &Actor,
        target: CommandTarget<'_>,
        signal: Option<i32>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut record = self.begin(actor, "process.signal").await?;
        record.note("container_id", target.container_id);
        record.note("exec_id", target.exec_id);
        record.note("signal", signal.map_or_else(|| "end".into(), serde_json::Value::from));
        let result = match signal.filter(|number| !(1..=64).contains(number)) {
            Some(number) => Err(Error::invalid_argument(format!("{number} is no signal: they are numbered 1 to 64"))),
            None => work.await,
        };
        record.end(result).await
    }
}
