//! An engine that dies and comes back: sandboxes that it took along end with that cause, and new ones are launched by the same host.

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use skillhost_e2e::{User, ask, eventually, signal};

#[test]
fn what_it_took_along_has_ended_for_that_and_the_same_host_launches_again() {
    // An engine that is nobody else's, and is started again when it is killed (`xtask/src/engine.rs`).
    let Ok(pid_file) = std::env::var("SKILLHOST_TEST_ENGINE_PID_FILE") else { return };
    let pid = || fs::read_to_string(&pid_file).ok()?.trim().parse::<i32>().ok();
    let user = User::new("[sandbox]\nlease = \"3s\"\n[quota]\nsandboxes = 1\n");
    let id = user.launch([]);
    user.run(["blackboard", "publish", "key", "1"]).ok();
    let (host, engine) = (user.host_pid(), pid().unwrap());
    signal(engine, Signal::KILL);
    let status =
        eventually("it has ended", || Some(ask(&user, &["status", &id])).filter(|status| status["running"] == false));
    assert_eq!(status["cause"], "engine-gone", "{status}");
    assert!(status["message"].as_str().unwrap().contains("its engine is gone"), "{status}");
    let refused = user.run(["sandbox", "exec", &id, "--output", "json", "--", "true"]).code(5).json();
    assert_eq!(refused["error"]["kind"], "sandbox-died", "{refused}");

    let next = eventually("the engine is back, and found again", || {
        let launched = user.run(["sandbox", "launch", "--role", "default", "--output", "json"]);
        assert!([0, 4, 5].contains(&launched.code), "{launched:?}");
        (launched.code == 0).then(|| launched.json()["container_id"].as_str().unwrap().to_owned())
    });
    assert_eq!(user.shell(&next, "echo alive")["stdout"], "alive\n");
    assert_eq!((user.host_pid(), user.run(["blackboard", "get", "key"]).ok().code), (host, 0));
    let deployment = fs::read_to_string(user.state().join("sandboxes/deployment")).unwrap();
    eventually("only the new one has a container", || {
        let filter = format!("label=skillhost.deployment={deployment}");
        let format = "{{.Label \"skillhost.sandbox\"}}";
        let listed =
            Command::new("docker").args(["ps", "-a", "--filter", &filter, "--format", format]).output().unwrap();
        (String::from_utf8_lossy(&listed.stdout).trim() == next).then_some(())
    });
    let listed: Value = ask(&user, &["list"]);
    assert_eq!(listed["count"], 1, "{listed}");
}
