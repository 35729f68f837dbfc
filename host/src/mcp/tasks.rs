//! Long calls as tasks (`io.modelcontextprotocol/tasks`, SEP-2663): a client that knows them is told that its call goes on,
//! and asks for the result later. A task is its caller's alone.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{CallToolResult, CreateTaskResult, DetailedTask};
use rmcp::task_manager::{TaskExit, TaskManager, TaskOptions};

use crate::caller::Caller;

/// How long a task is kept: the longest that a call can take, and a while to ask for its result.
const KEPT: Duration = Duration::from_secs(2 * 60 * 60);
/// How often a client had better ask.
const POLL_MS: u64 = 500;
/// The most tasks that one caller has at once.
const MAX_TASKS: usize = 64;

/// The tasks of all callers.
#[derive(Default)]
pub(super) struct Tasks {
    manager: TaskManager,
    owners: Mutex<HashMap<String, Caller>>,
}

impl Tasks {
    fn owners(&self) -> MutexGuard<'_, HashMap<String, Caller>> {
        let mut owners = self.owners.lock().unwrap_or_else(PoisonError::into_inner);
        // What the manager has let go of is nobody's.
        owners.retain(|task, _| self.manager.get_task(task).is_ok());
        owners
    }

    /// Whether the caller may have one more.
    pub(super) fn has_room(&self, caller: &Caller) -> bool {
        self.owners().values().filter(|owner| *owner == caller).count() < MAX_TASKS
    }

    /// Goes on with a call as a task.
    pub(super) fn go_on(
        &self,
        caller: &Caller,
        work: impl Future<Output = CallToolResult> + Send + 'static,
    ) -> CreateTaskResult {
        let options = TaskOptions::new()
            .with_ttl_ms(u64::try_from(KEPT.as_millis()).unwrap_or(u64::MAX))
            .with_poll_interval_ms(POLL_MS);
        let task = self.manager.spawn(options, |context| {
            Box::pin(async move {
                tokio::select! {
                    result = work => Ok(result),
                    // The call is dropped, which ends all that it started.
                    () = context.cancelled() => Err(TaskExit::Cancelled),
                }
            })
        });
        self.owners().insert(task.task_id.clone(), caller.clone());
        CreateTaskResult::new(task)
    }

    /// How a task of the caller's stands.
    pub(super) fn get(&self, caller: &Caller, task: &str) -> Result<DetailedTask, ErrorData> {
        self.check(caller, task)?;
        self.manager.get_task(task)
    }

    /// Ends a task of the caller's.
    pub(super) fn cancel(&self, caller: &Caller, task: &str) -> Result<(), ErrorData> {
        self.check(caller, task)?;
        self.manager.cancel_task(task)
    }

    /// Another's task is as unknown as one that never was.
    pub(super) fn check(&self, caller: &Caller, task: &str) -> Result<(), ErrorData> {
        match self.owners().get(task) {
            Some(owner) if owner == caller => Ok(()),
            _ => Err(ErrorData::invalid_params(format!("there is no task {task:?}"), None)),
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.manager.shutdown();
    }
}
