//! A NATS server of a row's own.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use skillhost_test_support::nats_server;
use tempfile::TempDir;

use crate::row::Missing;

/// For one to listen.
const TRIES: u32 = 100;
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// It ends with this.
pub(crate) struct NatsServer {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl NatsServer {
    pub(crate) fn start() -> Result<Self> {
        let program = nats_server().map_err(Missing)?;
        let dir = tempfile::Builder::new().prefix("skillhost-bench-nats-").tempdir()?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new(program);
        command
            .args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"])
            .arg(dir.path());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let server = Self { child, port, _dir: dir };
        for _ in 0..TRIES {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(server);
            }
            thread::sleep(LOOK);
        }
        bail!("the NATS server does not listen")
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
