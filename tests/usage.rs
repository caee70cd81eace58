//! Tokens and cost: added, set, kept, refused.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::float_cmp,
    reason = "a test crate, whose costs are exact"
)]

mod support;

use hermes_state::{
    Error, MessageId, NewMessage, NewSession, Session, SessionId, SessionStore, Turn, Usage,
};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use support::{all, create, id, rows, store, store_and_session};

const TOKENS: &str = "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens,
     reasoning_tokens FROM sessions WHERE id = 's'";
const BILLING: &str = "SELECT estimated_cost_usd, actual_cost_usd, cost_status, cost_source,
     pricing_version, billing_provider, billing_base_url, billing_mode, model
     FROM sessions WHERE id = 's'";

async fn session(store: &SessionStore, id: &SessionId) -> Session {
    store.session(id).await.unwrap().unwrap()
}

/// Everything, each value different.
fn full() -> Usage {
    Usage::new()
        .input_tokens(1)
        .output_tokens(2)
        .cache_read_tokens(3)
        .cache_write_tokens(4)
        .reasoning_tokens(5)
        .estimated_cost_usd(0.5)
        .actual_cost_usd(0.25)
        .cost_status("estimated")
        .cost_source("list")
        .pricing_version("v1")
        .billing_provider("openrouter")
        .billing_base_url("https://example.org")
        .billing_mode("metered")
        .model("m")
}

const FULL_BILLING: [&str; 7] = [
    "\"estimated\"",
    "\"list\"",
    "\"v1\"",
    "\"openrouter\"",
    "\"https://example.org\"",
    "\"metered\"",
    "\"m\"",
];

fn billing(costs: [&str; 2]) -> Vec<Vec<String>> {
    let row = costs.into_iter().chain(FULL_BILLING).map(str::to_owned);
    vec![row.collect()]
}

#[tokio::test]
async fn deltas_are_added_each_to_its_own_column() {
    let (file, store, s) = store_and_session().await;
    for times in 1..=3 {
        store.record_usage(&s, full()).await.unwrap();
        let tokens = [1, 2, 3, 4, 5].map(|n| (n * times).to_string());
        assert_eq!(rows(&file.stock(), TOKENS), [tokens]);
    }
    assert_eq!(rows(&file.stock(), BILLING), billing(["1.5", "0.75"]));
    let read = session(&store, &s).await;
    assert_eq!(read.reasoning_tokens, 15);
    assert_eq!(read.actual_cost_usd, Some(0.75));
}

#[tokio::test]
async fn totals_are_set_each_in_its_own_column() {
    let (file, store, s) = store_and_session().await;
    store.record_usage(&s, full()).await.unwrap();
    let lower = Usage::new().output_tokens(0).estimated_cost_usd(0.125);
    for _ in 0..2 {
        store.set_usage(&s, full()).await.unwrap();
        assert_eq!(rows(&file.stock(), TOKENS), [["1", "2", "3", "4", "5"]]);
        assert_eq!(rows(&file.stock(), BILLING), billing(["0.5", "0.25"]));
        store.set_usage(&s, lower.clone()).await.unwrap();
        assert_eq!(rows(&file.stock(), TOKENS), [["1", "0", "3", "4", "5"]]);
        assert_eq!(rows(&file.stock(), BILLING), billing(["0.125", "0.25"]));
    }
}

/// A total that was not given used to be set to 0, so that the cost was gone.
#[tokio::test]
async fn what_is_not_given_keeps_its_value() {
    let (file, store, s) = store_and_session().await;
    store.set_usage(&s, full()).await.unwrap();
    let before = file.dump();
    store.set_usage(&s, Usage::new()).await.unwrap();
    store.record_usage(&s, Usage::new()).await.unwrap();
    let turn = Turn::new([]).usage(Usage::new());
    store.append_turn(&s, turn).await.unwrap();
    let zeros = Usage::new().input_tokens(0).actual_cost_usd(0.0);
    store.record_usage(&s, zeros).await.unwrap();
    assert_eq!(file.dump(), before);
}

#[tokio::test]
async fn a_cost_that_was_never_given_stays_unknown_and_is_not_free() {
    let (file, store, s) = store_and_session().await;
    store
        .record_usage(&s, Usage::new().input_tokens(7))
        .await
        .unwrap();
    store
        .set_usage(&s, Usage::new().output_tokens(7))
        .await
        .unwrap();
    let read = session(&store, &s).await;
    assert_eq!(
        (read.estimated_cost_usd, read.actual_cost_usd),
        (None, None)
    );
    let known = Usage::new().actual_cost_usd(0.5);
    store.record_usage(&s, known.clone()).await.unwrap();
    let read = session(&store, &s).await;
    assert_eq!(
        (read.estimated_cost_usd, read.actual_cost_usd),
        (None, Some(0.5))
    );
    // Free is known.
    store
        .record_usage(&s, Usage::new().estimated_cost_usd(0.0))
        .await
        .unwrap();
    let read = session(&store, &s).await;
    assert_eq!(
        (read.estimated_cost_usd, read.actual_cost_usd),
        (Some(0.0), Some(0.5))
    );
    assert_eq!(
        rows(&file.stock(), BILLING)[0][2..],
        ["NULL"; 7].map(str::to_owned)
    );
}

#[tokio::test]
async fn a_counter_of_another_program_without_a_value_counts_as_0() {
    let (file, store, s) = store_and_session().await;
    let forget = "UPDATE sessions SET input_tokens = NULL, output_tokens = NULL,
         cache_read_tokens = NULL, cache_write_tokens = NULL, reasoning_tokens = NULL";
    file.stock().execute(forget, []).unwrap();
    assert_eq!(session(&store, &s).await.input_tokens, 0);
    let some = Usage::new().input_tokens(3).reasoning_tokens(0);
    store.record_usage(&s, some).await.unwrap();
    assert_eq!(
        rows(&file.stock(), TOKENS),
        [["3", "NULL", "NULL", "NULL", "0"]]
    );
    store.record_usage(&s, full()).await.unwrap();
    assert_eq!(rows(&file.stock(), TOKENS), [["4", "2", "3", "4", "5"]]);
}

#[tokio::test]
async fn a_billing_field_is_replaced_when_a_new_one_is_given_the_model_only_if_empty() {
    let (file, store, s) = store_and_session().await;
    store.record_usage(&s, full()).await.unwrap();
    let new = Usage::new()
        .cost_status("final")
        .cost_source("")
        .pricing_version("v2")
        .billing_provider("anthropic")
        .billing_base_url("数")
        .billing_mode("subscription")
        .model("other");
    let expected = [
        "\"final\"",
        "\"\"",
        "\"v2\"",
        "\"anthropic\"",
        "\"数\"",
        "\"subscription\"",
        "\"m\"",
    ];
    for set in [true, false] {
        store.set_usage(&s, full()).await.unwrap();
        if set {
            store.set_usage(&s, new.clone()).await.unwrap();
        } else {
            store.record_usage(&s, new.clone()).await.unwrap();
        }
        assert_eq!(
            rows(&file.stock(), BILLING)[0][2..],
            expected.map(str::to_owned)
        );
    }
    let model = Usage::new().model("filled");
    for (empty, set) in [("NULL", true), ("''", true), ("NULL", false), ("''", false)] {
        let forget = format!("UPDATE sessions SET model = {empty}");
        file.stock().execute(&forget, []).unwrap();
        store.record_usage(&s, Usage::new()).await.unwrap();
        if set {
            store.set_usage(&s, model.clone()).await.unwrap();
        } else {
            store.record_usage(&s, model.clone()).await.unwrap();
        }
        assert_eq!(session(&store, &s).await.model.as_deref(), Some("filled"));
    }
}

#[tokio::test]
async fn usage_of_a_session_that_does_not_exist_is_not_lost_silently() {
    let (file, store, _) = store_and_session().await;
    let nobody = id("nobody");
    let before = file.dump();
    for usage in [full(), Usage::new()] {
        let turn = Turn::new([]).usage(usage.clone());
        for result in [
            store.record_usage(&nobody, usage.clone()).await,
            store.set_usage(&nobody, usage).await,
            store.append_turn(&nobody, turn).await.map(drop),
        ] {
            assert!(matches!(result, Err(Error::SessionNotFound { id }) if id == nobody));
        }
    }
    assert_eq!(file.dump(), before);
}

/// Its name in an error, its column, and how it is given.
type Field<N> = (&'static str, &'static str, fn(N) -> Usage);

fn counters() -> [Field<u64>; 5] {
    [
        ("input tokens", "input_tokens", |n| {
            Usage::new().input_tokens(n)
        }),
        ("output tokens", "output_tokens", |n| {
            Usage::new().output_tokens(n)
        }),
        ("cache read tokens", "cache_read_tokens", |n| {
            Usage::new().cache_read_tokens(n)
        }),
        ("cache write tokens", "cache_write_tokens", |n| {
            Usage::new().cache_write_tokens(n)
        }),
        ("reasoning tokens", "reasoning_tokens", |n| {
            Usage::new().reasoning_tokens(n)
        }),
    ]
}

fn costs() -> [Field<f64>; 2] {
    [
        ("estimated cost", "estimated_cost_usd", |n| {
            Usage::new().estimated_cost_usd(n)
        }),
        ("actual cost", "actual_cost_usd", |n| {
            Usage::new().actual_cost_usd(n)
        }),
    ]
}

/// The usage in all three ways; it must be refused, and nothing change.
async fn check_refused(usage: &Usage, what: &str, may_be_set: bool) {
    let (file, store, s) = store_and_session().await;
    // What is full already.
    let stock = file.stock();
    for (_, column, _) in counters() {
        let stuff = format!("UPDATE sessions SET {column} = {}", i64::MAX - 1);
        stock.execute(&stuff, []).unwrap();
    }
    for (_, column, _) in costs() {
        let stuff = format!("UPDATE sessions SET {column} = {:?}", f64::MAX);
        stock.execute(&stuff, []).unwrap();
    }
    let before = file.dump();
    let turn = Turn::new([NewMessage::user("x")])
        .usage(usage.clone().cost_status("x"))
        .key("k");
    let mut results = vec![
        store.record_usage(&s, usage.clone().cost_status("x")).await,
        store.append_turn(&s, turn).await.map(drop),
    ];
    if !may_be_set {
        results.push(store.set_usage(&s, usage.clone()).await);
    }
    for result in results {
        let refused = matches!(&result, Err(Error::InvalidInput { what: w, .. }) if *w == what);
        assert!(refused, "{usage:?}: {result:?}");
    }
    assert_eq!(file.dump(), before);
    if may_be_set {
        store.set_usage(&s, usage.clone()).await.unwrap();
    }
}

/// SQLite makes a REAL of a sum beyond its integers, and stores an infinity without a word.
#[tokio::test]
async fn numbers_and_sums_out_of_range_are_refused_and_change_nothing() {
    let beyond = 1_u64 << 63;
    for (what, _, usage) in counters() {
        check_refused(&usage(beyond), what, false).await;
        check_refused(&usage(u64::MAX), what, false).await;
        check_refused(&usage(2), what, true).await;
        check_refused(&usage(beyond - 1), what, true).await;
    }
    for (what, _, usage) in costs() {
        check_refused(&usage(f64::NAN), what, false).await;
        check_refused(&usage(f64::INFINITY), what, false).await;
        check_refused(&usage(f64::NEG_INFINITY), what, false).await;
        check_refused(&usage(-f64::MIN_POSITIVE), what, false).await;
        check_refused(&usage(-1.0), what, false).await;
        check_refused(&usage(f64::MAX), what, true).await;
    }
}

#[tokio::test]
async fn the_greatest_sum_is_stored_as_an_integer() {
    let (file, store, s) = store_and_session().await;
    let greatest = (1_u64 << 63) - 1;
    for (_, column, usage) in counters() {
        store.record_usage(&s, usage(greatest - 1)).await.unwrap();
        store.record_usage(&s, usage(1)).await.unwrap();
        let read = rows(&file.stock(), &format!("SELECT {column} FROM sessions"));
        assert_eq!(read, [[i64::MAX.to_string()]]);
        // Full is no reason to refuse what adds nothing.
        store.record_usage(&s, usage(0)).await.unwrap();
        assert!(store.record_usage(&s, usage(1)).await.is_err());
        store.set_usage(&s, usage(greatest)).await.unwrap();
    }
}

#[tokio::test]
async fn what_another_program_left_in_a_counter_is_read_as_a_number() {
    let (file, store, s) = store_and_session().await;
    let some = Usage::new().input_tokens(1).actual_cost_usd(0.5);
    let set = |tokens, cost| {
        let set = format!("UPDATE sessions SET input_tokens = {tokens}, actual_cost_usd = {cost}");
        file.stock().execute(&set, []).unwrap();
    };
    for (tokens, cost) in [("'x'", "'x'"), ("x'41'", "x'41'"), ("0.9", "0")] {
        set(tokens, cost);
        store.record_usage(&s, some.clone()).await.unwrap();
        let read = session(&store, &s).await;
        assert_eq!((read.input_tokens, read.actual_cost_usd), (1, Some(0.5)));
    }
    set("-5", "-1");
    store.record_usage(&s, some.clone()).await.unwrap();
    let read = session(&store, &s).await;
    assert_eq!((read.input_tokens, read.actual_cost_usd), (-4, Some(-0.5)));
    // Sums that went over before.
    for (tokens, cost) in [("9.3e18", "0"), ("0", "9e999")] {
        set(tokens, cost);
        let before = file.dump();
        let refused = store.record_usage(&s, some.clone()).await;
        assert!(matches!(refused, Err(Error::InvalidInput { .. })));
        assert_eq!(file.dump(), before);
    }
}

#[tokio::test]
async fn a_turn_stores_its_messages_and_its_usage_or_neither() {
    let (file, store, s) = store_and_session().await;
    let turn = || Turn::new(["a", "b"].map(NewMessage::user)).usage(full());
    let first = store.append_turn(&s, turn()).await.unwrap();
    assert_eq!(rows(&file.stock(), TOKENS), [["1", "2", "3", "4", "5"]]);
    assert_eq!(rows(&file.stock(), BILLING), billing(["0.5", "0.25"]));
    assert_eq!(session(&store, &s).await.message_count, 2);

    let before = file.dump();
    let conflict = store
        .append_turn(&s, turn().expect_last(MessageId::new(1)))
        .await;
    assert!(matches!(conflict, Err(Error::Conflict { .. })));
    let object = NewMessage::user(support::json("{}"));
    let invalid = store
        .append_turn(&s, Turn::new([object]).usage(full()))
        .await;
    assert!(matches!(invalid, Err(Error::InvalidInput { .. })));
    // A constraint that refuses a row takes the usage back.
    let stock = file.stock();
    stock
        .execute_batch(
            "CREATE TRIGGER no BEFORE INSERT ON messages BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        .unwrap();
    let refused = store.append_turn(&s, turn()).await;
    assert!(matches!(refused, Err(Error::Constraint { .. })));
    stock.execute_batch("DROP TRIGGER no").unwrap();
    assert_eq!(file.dump(), before);

    let last = first.last_id().unwrap();
    store
        .append_turn(&s, turn().expect_last(last))
        .await
        .unwrap();
    assert_eq!(rows(&file.stock(), TOKENS), [["2", "4", "6", "8", "10"]]);
    assert_eq!(all(&store, &s).await.len(), 4);
    // Usage alone.
    store
        .append_turn(&s, Turn::new([]).usage(full()))
        .await
        .unwrap();
    assert_eq!(session(&store, &s).await.input_tokens, 3);
}

#[tokio::test]
async fn a_repeated_append_does_not_add_its_usage_again() {
    let (file, store, s) = store_and_session().await;
    let turn = || {
        Turn::new([NewMessage::user("a")])
            .usage(full())
            .key("request")
    };
    let first = store.append_turn(&s, turn()).await.unwrap();
    let before = file.dump();
    let calls = (0..5).map(|_| store.append_turn(&s, turn()));
    for repeated in futures_util::future::join_all(calls).await {
        let repeated = repeated.unwrap();
        assert!(repeated.repeated);
        assert_eq!(repeated.ids, first.ids);
    }
    // Also when the sum would not be allowed.
    let stuff = "UPDATE sessions SET input_tokens = 9223372036854775807";
    file.stock().execute(stuff, []).unwrap();
    assert!(store.append_turn(&s, turn()).await.unwrap().repeated);
    let empty = "UPDATE sessions SET input_tokens = 1";
    file.stock().execute(empty, []).unwrap();
    assert_eq!(file.dump(), before);
    // Turns without messages have keys too.
    let alone = || Turn::new([]).usage(full()).key("usage");
    assert!(!store.append_turn(&s, alone()).await.unwrap().repeated);
    assert!(store.append_turn(&s, alone()).await.unwrap().repeated);
    assert_eq!(session(&store, &s).await.output_tokens, 4);
}

#[tokio::test]
async fn usage_of_many_tasks_adds_up() {
    let (_file, store, s) = store_and_session().await;
    let other = create(&store, "other").await;
    let calls = (0..200_u32).map(async |n| {
        let session = if n % 4 == 0 { &other } else { &s };
        let usage = Usage::new()
            .input_tokens(u64::from(n))
            .actual_cost_usd(0.25);
        if n % 2 == 0 {
            store.record_usage(session, usage).await.unwrap();
        } else {
            let turn = Turn::new([NewMessage::user("x")]).usage(usage);
            store.append_turn(session, turn).await.unwrap();
        }
    });
    futures_util::future::join_all(calls).await;
    let (mine, theirs) = (session(&store, &s).await, session(&store, &other).await);
    assert_eq!(
        (mine.input_tokens, mine.actual_cost_usd),
        (15_000, Some(37.5))
    );
    assert_eq!(
        (theirs.input_tokens, theirs.actual_cost_usd),
        (4_900, Some(12.5))
    );
    assert_eq!((mine.message_count, theirs.message_count), (100, 0));
}

/// A fork that began with its parent's numbers made one conversation look like many.
#[tokio::test]
async fn a_child_begins_without_its_parents_usage() {
    let (_file, store, s) = store_and_session().await;
    store.record_usage(&s, full()).await.unwrap();
    let child = NewSession::new("cli").parent(s);
    let child = store.create_session(child).await.unwrap();
    let child = session(&store, &child).await;
    assert_eq!((child.input_tokens, child.reasoning_tokens), (0, 0));
    assert_eq!(
        (child.actual_cost_usd, child.billing_provider),
        (None, None)
    );
}

#[test]
fn debug_shows_numbers_only() {
    let shown = format!("{:?}", full().billing_base_url("https://key@example.org"));
    assert!(shown.contains("Some(5)"), "{shown}");
    assert!(
        !shown.contains("key") && !shown.contains("openrouter"),
        "{shown}"
    );
}

/// What is given to one field.
type Given = Option<u32>;

#[derive(Clone, Debug)]
enum How {
    Record,
    Set,
    Turn(Option<u8>),
}

/// Costs are counted in 1/1024 dollars, which binary fractions hold exactly.
fn dollars(parts: u32) -> f64 {
    f64::from(parts) / 1024.0
}

fn usage(given: &[Given; 7], text: Given) -> Usage {
    let mut usage = Usage::new();
    let set: [fn(Usage, u64) -> Usage; 5] = [
        Usage::input_tokens,
        Usage::output_tokens,
        Usage::cache_read_tokens,
        Usage::cache_write_tokens,
        Usage::reasoning_tokens,
    ];
    for (set, tokens) in set.into_iter().zip(given) {
        usage = tokens
            .iter()
            .fold(usage, |usage, n| set(usage, (*n).into()));
    }
    let costs = [Usage::estimated_cost_usd, Usage::actual_cost_usd];
    for (set, parts) in costs.into_iter().zip(&given[5..]) {
        usage = parts.iter().fold(usage, |usage, n| set(usage, dollars(*n)));
    }
    let text = text.map(|n| n.to_string());
    text.iter()
        .fold(usage, |usage, text| usage.billing_mode(text).model(text))
}

#[test]
fn any_usage_adds_up_to_what_integers_say() {
    let given = || proptest::option::of(any::<u32>());
    let how = prop_oneof![
        Just(How::Record),
        Just(How::Set),
        proptest::option::of(0..3_u8).prop_map(How::Turn),
    ];
    let step = (how, proptest::array::uniform7(given()), given());
    let config = ProptestConfig {
        cases: 48,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    // The same cases at every run.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&proptest::collection::vec(step, 1..25), |steps| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let (_file, store) = store().await;
                let s = create(&store, "s").await;
                let mut totals: [Option<u64>; 7] = [None; 7];
                let (mut mode, mut model) = (None, None);
                let mut keys = std::collections::BTreeSet::new();
                for (how, given, text) in &steps {
                    let usage = usage(given, *text);
                    match how {
                        How::Record => store.record_usage(&s, usage).await.unwrap(),
                        How::Set => store.set_usage(&s, usage).await.unwrap(),
                        How::Turn(key) => {
                            let turn = Turn::new([NewMessage::user("x")]).usage(usage);
                            let turn = key.iter().fold(turn, |turn, k| turn.key(k.to_string()));
                            let appended = store.append_turn(&s, turn).await.unwrap();
                            let repeated = key.is_some_and(|key| !keys.insert(key));
                            assert_eq!(appended.repeated, repeated);
                            if repeated {
                                continue;
                            }
                        }
                    }
                    for (total, given) in totals.iter_mut().zip(given) {
                        if let Some(given) = given {
                            let before = match how {
                                How::Set => 0,
                                _ => total.unwrap_or(0),
                            };
                            *total = Some(before + u64::from(*given));
                        }
                    }
                    let text = text.map(|n| n.to_string());
                    mode = text.clone().or(mode);
                    model = model.or(text);
                }
                let read = session(&store, &s).await;
                let tokens = [
                    read.input_tokens,
                    read.output_tokens,
                    read.cache_read_tokens,
                    read.cache_write_tokens,
                    read.reasoning_tokens,
                ];
                for (read, total) in tokens.into_iter().zip(totals) {
                    assert_eq!(read, i64::try_from(total.unwrap_or(0)).unwrap());
                }
                let costs = [read.estimated_cost_usd, read.actual_cost_usd];
                for (read, total) in costs.into_iter().zip(&totals[5..]) {
                    let parts = read.map(|dollars| format!("{:.0}", dollars * 1024.0));
                    assert_eq!(parts, total.map(|total| total.to_string()));
                }
                assert_eq!((read.billing_mode, read.model), (mode, model));
                store.close().await.unwrap();
            });
            Ok(())
        })
        .unwrap();
}
