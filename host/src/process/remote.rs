//! The host process as something that answers many calls at once: a connection for each, kept for the next.

use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::{HostProcess, connect_or_start};
use crate::api::client::Client;
use crate::api::server::Service;
use crate::api::types::Call;
use crate::error::Result;
use crate::host::CallIo;

/// The most connections that wait for the next call.
const IDLE: usize = 32;

/// The host process of a state directory, started when there is none.
#[derive(Debug)]
pub struct Remote {
    wanted: HostProcess,
    idle: Mutex<Vec<Client>>,
}

impl Remote {
    /// None is connected yet.
    pub fn new(wanted: HostProcess) -> Self {
        Self { wanted, idle: Mutex::default() }
    }

    /// A connection; one that waited unless its host has left since.
    async fn client(&self) -> Result<Client> {
        loop {
            let waiting = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            match waiting {
                Some(client) if client.is_open() => return Ok(client),
                Some(_) => {}
                None => return connect_or_start(&self.wanted).await,
            }
        }
    }
}

impl Service for Remote {
    async fn call(&self, call: Call, io: CallIo) -> Result<Value> {
        let mut client = self.client().await?;
        // Dropped with this future, which cancels the call at the other end.
        let answer = client.call(&call, io).await;
        if client.is_ready() {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE {
                idle.push(client);
            }
        }
        answer
    }

    fn busy(&self) -> bool {
        false
    }
}
