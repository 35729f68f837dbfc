//! Hosts that work as one, over NATS: each session has one home, and each host is a door to all of them.
//!
//! # Invariants
//!
//! - Execution state is never replicated: a session's blackboard, shells, sandboxes and workspace are its home's.
//! - A home answers for a session only while its lease lasts ([`lease`]) and for the revision of the session's record that it took it
//!   with ([`homes`]): it looks before a call begins, whenever the call goes on, and before it gives its answer.
//! - A call is sent to a home at most once. It is sent again only where nothing can have been done of it: nobody was there to receive
//!   it, or the host that did has said that it is for another.
//! - Nothing decides by what may be stale: what this host has heard of others only says whom to ask.

mod checks;
mod directory;
mod held;
mod homes;
mod incoming;
mod lease;
mod membership;
mod nats;
mod peers;
mod placement;
mod stream;
mod wire;

use std::sync::{Arc, Weak};

use skillhost_api::answer::Answer;
use skillhost_api::error::{Error, ErrorKind, Result};
use skillhost_api::exchange::Exchanged;
use skillhost_api::io::CallIo;
use skillhost_api::types::{Call, Check, HostList, HostSummary, Request, Resource};
use tokio::sync::{mpsc, watch};

use self::directory::Directory;
use self::held::HeldPlace;
use self::homes::{Home, Homes, cut_off};
use self::lease::Lease;
use self::membership::Membership;
use self::nats::Nats;
use self::peers::{Peers, Routed};
use crate::config::ClusterConfig;
use crate::host::{Host, Others};

/// How often a call is sent on that turns out to be for another host.
const TRIES: usize = 5;

/// This host as one of several.
pub struct Cluster {
    host: Arc<Host>,
    nats: Nats,
    lease: Arc<Lease>,
    directory: Arc<Directory>,
    homes: Homes,
    peers: Peers,
    membership: Membership,
}

impl Cluster {
    /// Joins the others. An error says why that cannot be; a host that should be one of several does not serve alone.
    pub async fn join(host: Arc<Host>, config: &ClusterConfig) -> Result<Arc<Self>> {
        let nats = Nats::connect(config).await?;
        let hosts = nats.bucket("hosts", Some(lease::LEASE)).await?;
        let sessions = nats.bucket("sessions", None).await?;
        let lease = Arc::new(Lease::default());
        let directory = Arc::new(Directory::new(hosts.clone()));
        let membership = Membership::new(&host, config, hosts)?;
        let own = membership.id().to_owned();
        let cluster = Arc::new(Self {
            homes: Homes::new(Arc::clone(&host), own, sessions, Arc::clone(&directory), Arc::clone(&lease)),
            peers: Peers::new(nats.clone(), Arc::clone(&directory)),
            host,
            nats,
            lease,
            directory,
            membership,
        });
        cluster.host.know_others(Box::new(KnownOthers(Arc::downgrade(&cluster))));
        cluster.beat().await?;
        cluster.directory.learn().await?;
        Ok(cluster)
    }

    /// Is one of them until this is dropped: hears of the others, and is heard of.
    pub async fn keep(&self) {
        tokio::join!(self.directory.follow(), self.keep_beating(), self.keep_settling());
    }

    /// Whether this host may answer for sessions.
    pub fn ready(&self) -> Result<()> {
        self.lease.term().map(drop).ok_or_else(cut_off)
    }

    /// Answers what other hosts send here until it is told to stop.
    pub async fn serve(self: &Arc<Self>, stop: watch::Receiver<bool>) {
        let opening =
            self.nats.client.subscribe(self.nats.subject(&format!("host.{}.open", self.membership.id()))).await;
        let asked = match opening {
            Ok(asked) => asked,
            Err(error) => {
                tracing::error!("no host can reach this one: {error}");
                return;
            }
        };
        incoming::serve(self, asked, stop).await;
    }

    /// Leaves the others, which need not wait until they miss this host. It answers for no session from here on.
    pub async fn leave(&self) {
        self.lease.end();
        self.membership.leave().await;
    }

    /// Answers a call here, or has it answered by the host that is the home of its session.
    pub async fn answer(&self, call: Call, mut io: CallIo) -> Result<Answer> {
        if matches!(call.request, Request::Approve(_)) {
            // It waits where the call was made that needs it: here, or at the home of who asks.
            let (output, _) = mpsc::channel(1);
            match self.host.answer(call.clone(), CallIo { output, input: None }).await {
                Err(error) if error.kind == ErrorKind::NotFound => {}
                answer => return answer,
            }
        } else if !of_session(&call.request) {
            return self.host.answer(call, io).await;
        }
        call.caller.check()?;
        // A project is a directory of this machine.
        let prefers_here = call.project.is_some();
        for _ in 0..TRIES {
            let home = match self.homes.of(&call.caller, prefers_here).await? {
                Home::Here(place) => return self.answer_here(&place, call, io).await,
                Home::At(home) => home,
            };
            match self.peers.call(&home, &call, &mut io).await? {
                Routed::Ended(Exchanged::Answered(answer)) => return answer,
                Routed::Ended(Exchanged::Elsewhere) => self.homes.forget(&call.caller),
                Routed::Undelivered => {
                    self.homes.forget(&call.caller);
                    if !self.directory.is_gone(&home.host).await? {
                        return Err(self.directory.unreachable(&home.host));
                    }
                }
                Routed::Ended(Exchanged::Vanished(error)) => {
                    self.homes.forget(&call.caller);
                    return Err(Error::unavailable(format!(
                        "the host {}, the home of this session, was lost during the call ({error}): what it has done of it is not known",
                        self.directory.name(&home.host)
                    )));
                }
            }
        }
        Err(Error::unavailable("the session is being moved between hosts: try again"))
    }

    /// Answers a call of a session whose home this is, for as long as it is.
    async fn answer_here(&self, place: &HeldPlace, call: Call, io: CallIo) -> Result<Answer> {
        let answer = tokio::select! {
            biased;
            () = self.lease.lost(place.term) => return Err(cut_off()),
            answer = self.host.answer(call, io) => answer,
        };
        match self.lease.term() == Some(place.term) {
            true => answer,
            false => Err(cut_off()),
        }
    }

    fn summary(&self, id: String, host: wire::HostRecord) -> HostSummary {
        HostSummary {
            this: id == self.membership.id(),
            id,
            name: host.name,
            version: host.version,
            accepts_sessions: host.accepts_sessions,
            sessions: host.sessions,
            sandboxes: host.sandboxes,
            cores: host.cores,
            started_at_ms: host.started_at_ms,
        }
    }
}

/// What the host knows of the others by this.
struct KnownOthers(Weak<Cluster>);

impl Others for KnownOthers {
    fn hosts(&self) -> HostList {
        let known = self.0.upgrade().map(|cluster| {
            cluster.directory.hosts().into_iter().map(|(id, host)| cluster.summary(id, host)).collect::<Vec<_>>()
        });
        let hosts = known.unwrap_or_default();
        HostList { count: hosts.len(), hosts }
    }

    fn checks(&self) -> Vec<Check> {
        self.0.upgrade().map(|cluster| cluster.checks()).unwrap_or_default()
    }
}

/// Whether a request is about what a session has, and so for its home.
fn of_session(request: &Request) -> bool {
    match request.resource() {
        Resource::Blackboard
        | Resource::Command
        | Resource::File
        | Resource::Process
        | Resource::Sandbox
        | Resource::Skill
        | Resource::Text => true,
        Resource::Catalog | Resource::Host | Resource::Role => false,
    }
}
