//! NATS servers of a test's own, and hosts that work as one over them.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use skillhost_test_support::nats_server;

use crate::{User, eventually, signal};

/// Servers that keep what they have on one another.
pub struct NatsServers {
    dir: tempfile::TempDir,
    program: PathBuf,
    servers: Vec<Server>,
    /// What else is in the configuration of each.
    more: String,
}

struct Server {
    port: u16,
    route: u16,
    child: Option<Child>,
}

impl NatsServers {
    /// So many of them. Where they cannot be had, the test is counted as skipped.
    pub fn start(count: usize) -> Option<Self> {
        Self::start_with(count, "")
    }

    /// One with this in its configuration besides.
    pub fn start_one(config: &str) -> Option<Self> {
        Self::start_with(1, config)
    }

    fn start_with(count: usize, more: &str) -> Option<Self> {
        let program = match nats_server() {
            Ok(program) => program,
            Err(why) => {
                skillhost_test_support::skip(&format!("there is no NATS server: {why}"));
                return None;
            }
        };
        let servers = (0..count).map(|_| Server { port: free_port(), route: free_port(), child: None }).collect();
        let dir = tempfile::Builder::new().prefix("nats").tempdir().unwrap();
        let mut all = Self { dir, program, servers, more: more.to_owned() };
        for index in 0..count {
            all.run(index);
        }
        Some(all)
    }

    /// Starts one, which may have been killed before.
    pub fn run(&mut self, index: usize) {
        let routes: Vec<_> = self.servers.iter().map(|server| format!("nats://127.0.0.1:{}", server.route)).collect();
        let server = &self.servers[index];
        let (name, dir) = (format!("n{index}"), self.dir.path().join(index.to_string()));
        let mut config =
            format!("server_name: {name}\nlisten: 127.0.0.1:{}\njetstream {{ store_dir: {dir:?} }}\n", server.port);
        config += &self.more;
        if self.servers.len() > 1 {
            config += &format!(
                "cluster {{ name: test, listen: 127.0.0.1:{}, routes: [{}] }}\n",
                server.route,
                routes.join(", ")
            );
        }
        let (file, log) = (self.dir.path().join(format!("{name}.conf")), self.dir.path().join(format!("{name}.log")));
        fs::write(&file, config).unwrap();
        let child = Command::new(&self.program)
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        self.servers[index].child = Some(child);
        eventually("the NATS server is ready", || {
            fs::read_to_string(&log).unwrap().contains("Server is ready").then_some(())
        });
    }

    /// Kills one.
    pub fn kill(&mut self, index: usize) {
        let mut child = self.servers[index].child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Has one that was killed lose all that it kept.
    pub fn lose(&self, index: usize) {
        fs::remove_dir_all(self.dir.path().join(index.to_string())).unwrap();
    }

    /// The port of one.
    pub fn port(&self, index: usize) -> u16 {
        self.servers[index].port
    }

    /// Stops one, or lets it go on.
    pub fn signal(&self, index: usize, what: Signal) {
        signal(i32::try_from(self.servers[index].child.as_ref().unwrap().id()).unwrap(), what);
    }

    /// Their addresses, as an array of TOML.
    pub fn addresses(&self) -> String {
        let all: Vec<_> = self.servers.iter().map(|server| format!("\"nats://127.0.0.1:{}\"", server.port)).collect();
        format!("[{}]", all.join(", "))
    }
}

impl Drop for NatsServers {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().filter_map(|server| server.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A host of a cluster: a user, whose host process runs.
pub struct Member {
    /// Whose state directory it is.
    pub user: User,
    serve: Option<Child>,
}

impl Member {
    /// A host of this name; `cluster` are further lines of `[cluster]`, and whatever else is configured.
    pub fn start(servers: &NatsServers, name: &str, cluster: &str) -> Self {
        Self::of(User::new(&Self::config(servers, name, cluster)))
    }

    /// Its configuration.
    pub fn config(servers: &NatsServers, name: &str, cluster: &str) -> String {
        format!("[cluster]\nnats = {}\nhost = \"{name}\"\n{cluster}\n", servers.addresses())
    }

    /// The host of this user, whose configuration says of which cluster it is.
    pub fn of(user: User) -> Self {
        let mut member = Self { user, serve: None };
        member.run();
        member
    }

    /// Starts its host process.
    pub fn run(&mut self) {
        let log = File::create(self.user.home().join("serve.log")).unwrap();
        let mut command = self.user.command(["serve"]);
        self.serve = Some(command.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let says = || self.log().contains("Ctrl-C ends it").then_some(());
        eventually("the host serves", says);
    }

    /// What its host process has said.
    pub fn log(&self) -> String {
        fs::read_to_string(self.user.home().join("serve.log")).unwrap()
    }

    /// Sends its host process a signal.
    pub fn signal(&self, what: Signal) {
        signal(i32::try_from(self.serve.as_ref().unwrap().id()).unwrap(), what);
    }

    /// Kills its host process.
    pub fn kill(&mut self) {
        let mut serve = self.serve.take().unwrap();
        serve.kill().unwrap();
        serve.wait().unwrap();
    }

    /// Ends its host process in order.
    pub fn stop(&mut self) {
        let mut serve = self.serve.take().unwrap();
        signal(i32::try_from(serve.id()).unwrap(), Signal::TERM);
        assert!(serve.wait().unwrap().success(), "{}", self.log());
    }

    /// What it says of a host of this name.
    pub fn knows(&self, name: &str) -> Option<Value> {
        let listed = self.user.run(["hosts", "--output", "json"]).ok().json();
        listed["hosts"].as_array().unwrap().iter().find(|host| host["name"] == name).cloned()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(mut serve) = self.serve.take() {
            signal(i32::try_from(serve.id()).unwrap(), Signal::CONT);
            signal(i32::try_from(serve.id()).unwrap(), Signal::TERM);
            let _ = serve.wait();
        }
    }
}
