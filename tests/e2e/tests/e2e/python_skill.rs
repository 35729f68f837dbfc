//! A skill that somebody wrote in Python, made with componentize-py, through the program.

use serde_json::json;
use skillhost_e2e::{User, write};

#[test]
fn it_is_listed_inspected_and_run() {
    let component = std::fs::read(skillhost_test_support::python_guest()).unwrap();
    let user = User::new("");
    let skill = user.project().join("skills/snake");
    write(&skill.join("snake.wasm"), component);
    write(&skill.join("SKILL.md"), "---\nname: snake\ndescription: A skill in Python.\n---\n");
    let manifest = "[skill]\nname = \"snake\"\nversion = \"0.1.0\"\ncomponent = \"snake.wasm\"\n";
    write(&skill.join("skill.toml"), manifest);
    user.trust();

    let listed = user.run(["list", "--output", "json"]).ok().json();
    assert_eq!(listed["skills"][0]["state"], "ready", "{listed}");
    assert_eq!(
        listed["skills"][0]["actions"],
        json!(["double", "greet"]),
        "and not what the toolchain exports for itself"
    );

    // Compiled once, and then from the cache, also by another host process.
    let greet = || user.call("snake.greet", &json!({"name": "you"})).ok().json()["result"].clone();
    assert_eq!((greet(), greet()), (json!("hello you"), json!("hello you")));
    user.run(["host", "stop"]).ok();
    assert_eq!(greet(), "hello you");
    assert_eq!(std::fs::read_dir(user.state().join("compiled")).unwrap().count(), 1, "one component, compiled once");
    let failed = user.call("snake.double", &json!({"item": {"name": "a", "n": 101}})).code(1).json();
    assert_eq!(failed["failure"], "too big", "{failed}");
}
