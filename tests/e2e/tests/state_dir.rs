//! The state directory is its owner's alone, however it came to be and whatever the program was started with.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use skillhost_e2e::User;

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs the program with a umask.
#[track_caller]
fn run<const N: usize>(user: &User, umask: u32, args: [&str; N]) -> String {
    let mut command = user.command(args);
    // SAFETY: between fork and exec only this system call is made.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(move || {
            rustix::process::umask(Mode::from_raw_mode(umask));
            Ok(())
        });
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs the skill in a program that was started with a umask.
#[track_caller]
fn hello(user: &User, umask: u32) {
    assert_eq!(run(user, umask, ["run", "hello", "--arg", "name=World"]), "Hello, World!\n");
}

/// Everything in the state directory that others could open, if they came as far. What is in a workspace, or is mounted into a
/// sandbox, has other users.
fn open_to_others(dir: &Path) -> Vec<(PathBuf, u32)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        if metadata.mode() & 0o077 != 0 && !metadata.is_symlink() && !path.starts_with(dir.join("sandboxes")) {
            found.push((path.clone(), metadata.mode() & 0o7777));
        }
        let others = ["workspaces", "sandboxes"].iter().any(|name| path.ends_with(name));
        if metadata.is_dir() && !others {
            found.extend(open_to_others(&path));
        }
    }
    found
}

/// Compiled code that is kept.
fn compiled(user: &User) -> PathBuf {
    let mut all = fs::read_dir(user.state().join("compiled")).unwrap();
    let one = all.next().unwrap().unwrap().path();
    assert!(all.next().is_none());
    one
}

#[test]
fn a_state_directory_made_under_any_umask_is_private() {
    for umask in [0, 0o022, 0o077] {
        let user = User::new("[approvals]\nwithout-terminal = true\n");
        user.add_skill("hello");
        run(&user, umask, ["trust"]);
        hello(&user, umask);
        assert_eq!(open_to_others(&user.state()), [], "under {umask:o}");
        assert_eq!(user.state().metadata().unwrap().mode() & 0o777, 0o700);
    }
}

#[test]
fn a_state_directory_that_others_could_read_is_closed_with_all_that_was_in_it() {
    let user = User::with_skills(&["hello"]);
    hello(&user, 0o022);
    user.run(["host", "stop"]).ok();
    // As systemd makes one, and as an earlier version left it.
    let state = user.state();
    chmod(&state, 0o755);
    for name in ["state.db", "state.db-wal", "host.log"] {
        if state.join(name).exists() {
            chmod(&state.join(name), 0o644);
        }
    }
    chmod(&state.join("compiled"), 0o755);
    chmod(&state.join("descriptors"), 0o755);
    hello(&user, 0o022);
    assert_eq!(open_to_others(&state), []);
    assert_eq!(state.metadata().unwrap().mode() & 0o777, 0o700);
    assert!(fs::read_to_string(state.join("host.log")).unwrap().contains("closed to other users"));
}

#[test]
fn compiled_code_that_somebody_else_could_have_written_is_compiled_anew() {
    let user = User::with_skills(&["hello"]);
    hello(&user, 0o022);
    let kept = compiled(&user);
    // Open, so that its number is not given again.
    let is_anew = |what: &str, planted: &File| {
        hello(&user, 0o022);
        let (now, planted) = (compiled(&user).symlink_metadata().unwrap(), planted.metadata().unwrap());
        assert!(now.is_file() && now.ino() != planted.ino() && now.mode() & 0o777 == 0o600, "{what}");
        user.run(["host", "stop"]).ok();
    };
    user.run(["host", "stop"]).ok();

    // The very code, in a file that others can write.
    chmod(&kept, 0o666);
    is_anew("a file that others can write", &File::open(&kept).unwrap());

    // The very code, by a link.
    let elsewhere = user.elsewhere().join("code");
    fs::copy(&kept, &elsewhere).unwrap();
    fs::remove_file(&kept).unwrap();
    symlink(&elsewhere, &kept).unwrap();
    is_anew("a link", &File::open(&kept).unwrap());

    // The very code in a directory where others could have put it.
    let planted = File::open(&kept).unwrap();
    chmod(kept.parent().unwrap(), 0o777);
    is_anew("a directory that others could write", &planted);
    assert_eq!(kept.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
}

#[test]
fn a_damaged_database_stops_the_host_and_is_put_aside_by_a_person_alone() {
    let user = User::with_skills(&["hello"]);
    let refused = user.run(["host", "recover"]).code(2);
    assert!(refused.stderr.contains("in use"), "{refused:?}");
    user.run(["host", "stop"]).ok();
    assert!(user.run(["host", "recover"]).code(2).stderr.contains("is whole"));
    let (database, log) = (user.state().join("state.db"), user.state().join("state.db-wal"));
    let bad = [0x5a; 64 << 10];
    fs::write(&database, bad).unwrap();
    fs::remove_file(log).unwrap();
    let refused = user.run(["list"]).code(5);
    assert!(refused.stderr.contains("is damaged") && refused.stderr.contains("skillhost host recover"), "{refused:?}");
    assert_eq!(fs::read(&database).unwrap(), bad, "nothing was changed");
    let kept = user.run(["host", "recover", "--output", "json"]).ok().json()["kept"].as_str().unwrap().to_owned();
    assert_eq!(fs::read(kept).unwrap(), bad);
    let listed = user.run(["list", "--output", "json"]).ok().json();
    assert_eq!(listed["skills"][0]["state"], "untrusted", "what was lost is asked again: {listed}");
}
