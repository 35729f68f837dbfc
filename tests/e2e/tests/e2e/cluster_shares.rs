//! A tenant's share is that of all hosts of a cluster together.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Instant;

use skillhost_e2e::nats::{Member, NatsServers};
use skillhost_e2e::{Done, User, ask, eventually, needs_engine, refusal};

/// Launches in a session that is begun from this directory, and so has its home at this user's host.
fn launch(user: &User, session: &str) -> Done {
    let project = user.project();
    user.run(["sandbox", "launch", "--session", session, "--project", project.to_str().unwrap(), "--output", "json"])
}

fn id(launched: Done) -> String {
    launched.ok().json()["container_id"].as_str().unwrap().to_owned()
}

fn stop(user: &User, session: &str, id: &str) {
    user.run(["sandbox", "stop", id, "--session", session]).ok();
}

#[track_caller]
fn is_over(launched: Done) {
    let refused = launched.code(4).json();
    let (kind, message) = refusal(&refused);
    assert!(kind == "quota-exceeded" && message.contains("[quota.tenant]"), "{refused}");
}

#[test]
fn hosts_have_a_tenants_sandboxes_together_and_give_back_what_they_do_not_use() {
    needs_engine!();
    let Some(servers) = NatsServers::start(1) else { return };
    let quota = "[quota.tenant]\nsandboxes = 3\n";
    let one = Member::start(&servers, "one", quota);
    let mut other = Member::start(&servers, "other", quota);
    eventually("they know each other", || one.knows("other"));
    let (a, b) = (id(launch(&one.user, "a")), id(launch(&one.user, "a")));
    let c = id(launch(&other.user, "b"));
    for (user, session) in [(&one.user, "a"), (&other.user, "b")] {
        is_over(launch(user, session));
    }
    // What one no longer uses, the other can have at once.
    stop(&one.user, "a", &a);
    let d = id(launch(&other.user, "b"));
    is_over(launch(&one.user, "a"));
    for (user, session, id) in [(&one.user, "a", &b), (&other.user, "b", &c), (&other.user, "b", &d)] {
        stop(user, session, id);
    }
    let ids: Vec<_> = (0..3).map(|_| id(launch(&other.user, "b"))).collect();
    is_over(launch(&one.user, "a"));
    assert_eq!(ask(&other.user, &["status", &ids[0], "--session", "b"])["status"], "running");
    // What a dead host had is had by others when its lease is over.
    other.kill();
    let killed = Instant::now();
    is_over(launch(&one.user, "a"));
    eventually("it comes back", || (launch(&one.user, "a").code == 0).then_some(()));
    println!("it came back after {:?}", killed.elapsed());
}

#[test]
fn sixty_four_at_once_at_three_hosts_get_just_what_there_is() {
    needs_engine!();
    let Some(servers) = NatsServers::start(1) else { return };
    let quota = "[quota]\nsandboxes = 64\n[quota.tenant]\nsandboxes = 4\n";
    let hosts: Vec<_> = ["one", "two", "three"].iter().map(|name| Member::start(&servers, name, quota)).collect();
    eventually("they know each other", || hosts[0].knows("two").and(hosts[0].knows("three")));
    let launched = |round: usize| -> usize {
        let launch = |number: usize| {
            let host = number % hosts.len();
            launch(&hosts[host].user, &format!("r{round}h{host}"))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..64).map(|number| scope.spawn(move || launch(number))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        results.into_iter().filter(|done| done.code == 0).count()
    };
    assert_eq!(launched(0), 4);
}

#[test]
fn commands_are_counted_over_all_hosts() {
    needs_engine!();
    let Some(servers) = NatsServers::start(1) else { return };
    let quota = "[quota.tenant]\ncommands = 3\n";
    let one = Member::start(&servers, "one", quota);
    let other = Member::start(&servers, "other", quota);
    eventually("they know each other", || one.knows("other"));
    let sandboxes = [(&one.user, "a", id(launch(&one.user, "a"))), (&other.user, "b", id(launch(&other.user, "b")))];
    let [(_, _, at_one), (_, _, at_other)] = &sandboxes;
    let command = |user: &User, session: &str, id: &str| {
        user.command(["--session", session, "sandbox", "exec", id, "--stream", "--shell", "echo up; sleep 600"])
    };
    let begin = |user: &User, session: &str, id: &str| {
        let mut child = command(user, session, id).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("up"), "{line}");
        child
    };
    let mut under_way = vec![begin(&one.user, "a", at_one), begin(&one.user, "a", at_one)];
    // The first has leased all, for commands are many and short; it gives back what it does not use.
    under_way.push(begin(&other.user, "b", at_other));
    for (user, session, id) in &sandboxes {
        is_over(command(user, session, id).args(["--output", "json"]).output().unwrap().into());
    }
    for mut child in under_way {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
