//! The state directory is its owner's alone, however it came to be and whatever the program was started with.

use std::fs;
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
        let user = User::with_skills(&["hello"]);
        user.run(["host", "stop"]).ok();
        fs::remove_dir_all(user.state()).unwrap();
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
    let is_anew = |what: &str, planted: u64| {
        hello(&user, 0o022);
        let metadata = compiled(&user).symlink_metadata().unwrap();
        assert!(metadata.is_file() && metadata.ino() != planted && metadata.mode() & 0o777 == 0o600, "{what}");
        user.run(["host", "stop"]).ok();
    };
    user.run(["host", "stop"]).ok();

    // The very code, in a file that others can write.
    chmod(&kept, 0o666);
    is_anew("a file that others can write", kept.metadata().unwrap().ino());

    // The very code, by a link.
    let elsewhere = user.elsewhere().join("code");
    fs::copy(&kept, &elsewhere).unwrap();
    fs::remove_file(&kept).unwrap();
    symlink(&elsewhere, &kept).unwrap();
    is_anew("a link", kept.symlink_metadata().unwrap().ino());

    // The very code in a directory where others could have put it.
    let planted = kept.metadata().unwrap().ino();
    chmod(kept.parent().unwrap(), 0o777);
    is_anew("a directory that others could write", planted);
    assert_eq!(kept.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
}
