//! What tenants and sessions have of the blackboard.

use futures_util::future::join_all;
use serde_json::json;
use skillhost_api::error::ErrorKind;

use super::tests::{Board, board_with, limits, me, write};
use super::*;

fn of(tenant: &str, session: &str) -> Caller {
    Caller { tenant: tenant.into(), session: session.into(), agent: "a".into() }
}

fn tenants_have(entries: u64, bytes: u64, eviction: Eviction) -> Board {
    board_with(BlackboardLimits { tenant: BoardShare { entries, bytes }, eviction, ..limits() })
}

#[tokio::test]
async fn a_tenants_share_is_exact_when_all_its_sessions_write_at_once() {
    let board = tenants_have(10, u64::MAX, Eviction::Refuse);
    for round in 0..3 {
        let writes = (0..40).map(|number| {
            let (store, by) = (board.store.clone(), of("t", &format!("s{}", number % 8)));
            tokio::spawn(async move {
                store.publish(&by, write(&format!("k{number}"), json!(1))).await.map(|_| (by, number))
            })
        });
        let ended: Vec<_> = join_all(writes).await.into_iter().map(Result::unwrap).collect();
        let written: Vec<_> = ended.iter().filter_map(|end| end.as_ref().ok()).collect();
        assert_eq!(written.len(), 10, "round {round}");
        let refused = ended.iter().find_map(|end| end.as_ref().err()).unwrap();
        assert!(refused.kind == ErrorKind::QuotaExceeded && refused.message.contains("[quota.tenant]"), "{refused}");
        // Another tenant has its own, and what is deleted comes back.
        board.store.publish(&of("other", "s0"), write("k", json!(1))).await.unwrap();
        for (by, number) in written {
            board.store.delete(by, &format!("k{number}"), None).await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_makes_room_for_a_tenants_write_is_of_the_same_session() {
    let board = tenants_have(4, u64::MAX, Eviction::Lru);
    let (one, two) = (of("t", "one"), of("t", "two"));
    for key in ["a", "b", "c"] {
        board.store.publish(&one, write(key, json!(1))).await.unwrap();
    }
    for key in ["d", "e"] {
        board.store.publish(&two, write(key, json!(1))).await.unwrap();
    }
    let has = async |by: &Caller, key: &str| board.store.get(by, key).await.unwrap().is_some();
    for (by, key, there) in [(&one, "a", true), (&one, "c", true), (&two, "d", false), (&two, "e", true)] {
        assert_eq!(has(by, key).await, there, "{key}");
    }
    // A session that has nothing to give up is refused, and nothing of others goes.
    let refused = board.store.publish(&of("t", "three"), write("f", json!(1))).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::QuotaExceeded);
    assert!(has(&one, "a").await && has(&two, "e").await);
}

#[tokio::test]
async fn bytes_of_a_tenant_are_bounded_and_what_shrinks_is_let_through() {
    let board = tenants_have(u64::MAX, 1_000, Eviction::Refuse);
    let (one, two) = (of("t", "one"), of("t", "two"));
    board.store.publish(&one, write("k", json!("x".repeat(600)))).await.unwrap();
    let larger = board.store.publish(&two, write("k", json!("x".repeat(600)))).await;
    assert_eq!(larger.unwrap_err().kind, ErrorKind::QuotaExceeded);
    board.store.publish(&two, write("k", json!("x".repeat(200)))).await.unwrap();
    board.store.publish(&one, write("k", json!("x".repeat(100)))).await.unwrap();
    board.store.publish(&two, write("k", json!("x".repeat(600)))).await.unwrap();
}

#[tokio::test]
async fn published_output_counts_and_its_end_is_told_whatever_there_is() {
    let board = board_with(BlackboardLimits {
        tenant: BoardShare { entries: 2, bytes: u64::MAX },
        session: BoardShare { entries: 2, bytes: u64::MAX },
        ..limits()
    });
    board.put("a", json!(1)).await;
    board.put("b", json!(1)).await;
    let stream = PublishedExec { by: me(), container_id: "c".into(), exec_id: "e".into(), started_at_ms: 1 };
    board.store.open_stream(&stream).await.unwrap();
    let after = Totals { chunks: 1, ..Totals::default() };
    let refused = board.store.append(&stream, Totals::default(), vec![json!("x")], after).await.unwrap_err();
    assert!(refused.message.contains("[quota.session]"), "{refused}");
    board.store.end_stream(&stream, json!({"exit_code": 0})).await.unwrap();
    assert!(board.store.get(&me(), &complete_key("e")).await.unwrap().is_some());
}
