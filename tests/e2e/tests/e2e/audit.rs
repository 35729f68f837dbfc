//! The audit log shows what was changed in it behind its back.

use rusqlite::Connection;
use serde_json::{Value, json};
use skillhost_e2e::User;

/// Changes the database while no host has it open.
fn change(user: &User, sql: &str) {
    user.run(["host", "stop"]).ok();
    Connection::open(user.state().join("state.db")).unwrap().execute_batch(sql).unwrap();
}

/// What a check finds that does not find it whole.
#[track_caller]
fn problem(user: &User, more: &[&str]) -> String {
    let found: Value = user.run([&["audit", "verify", "--output", "json"], more].concat()).code(1).json();
    assert_eq!(found["intact"], false, "{found}");
    found["problem"].as_str().unwrap().to_owned()
}

#[test]
fn what_is_changed_is_found_and_so_is_an_end_that_was_cut_off() {
    let user = User::local("");
    assert_eq!(user.run(["audit", "verify"]).ok().text(), "there is no record\n");
    for number in 1..=5 {
        user.run(["blackboard", "publish", &format!("key{number}"), "1"]).ok();
    }
    let verified = user.run(["audit", "verify"]).ok().text();
    assert!(verified.starts_with("5 records, from number 1 on, are what was written\nhead: 5:sha256:"), "{verified}");
    let head = verified.lines().find_map(|line| line.strip_prefix("head: ")).unwrap().to_owned();
    user.run(["audit", "verify", "--head", &head]).ok();
    user.run(["blackboard", "delete", "key1"]).ok();
    user.run(["audit", "verify", "--head", &head]).ok();
    change(&user, "DELETE FROM audit WHERE seq >= 5");
    user.run(["audit", "verify"]).ok();
    assert!(problem(&user, &["--head", &head]).contains("its end is missing"));
    change(&user, "UPDATE audit SET detail = '{}' WHERE seq = 3");
    assert!(problem(&user, &[]).starts_with("record 3 is not what was written"));
    let shown = user.run(["audit", "verify"]).code(1).text();
    assert!(shown.contains("2 records") && shown.contains("problem: record 3 is not what was written"), "{shown}");
    change(&user, "UPDATE audit SET detail = '{}' WHERE seq = 1");
    let shown = user.run(["audit", "verify"]).code(1).text();
    assert!(shown.starts_with("no record is what was written\nproblem: record 1 is not"), "{shown}");

    // It goes on with what it has, and says the same.
    user.run(["blackboard", "publish", "key1", "2"]).ok();
    assert!(problem(&user, &[]).starts_with("record 1 is not what was written"));
    for wrong in ["5", "5:sha256:12", "x:sha256:", &head.to_uppercase()] {
        assert!(user.run(["audit", "verify", "--head", wrong]).code(2).stderr.contains("64 hexadecimal digits"));
    }
    assert_eq!(user.audit().first().map(|first| first["effect"].clone()), Some(json!("blackboard.publish")));
}
