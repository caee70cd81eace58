//! What a message says comes back exactly, whichever way it went into the file.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

mod support;

use std::cell::Cell;

use hermes_state::{
    Content, Error, Json, Message, NewMessage, NewSession, Role, SessionId, SessionStore,
    Timestamp, Turn,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use support::{
    all, assert_index_is_right, create, id, integer, json, options, rows, store, store_and_session,
    texts,
};

/// Stores a message in each of the ways there are: alone, in a turn, in a group with another
/// session's, beside a large row, as a replacement. Returns it as it was read after each.
async fn stored(store: &SessionStore, session: &SessionId, message: &NewMessage) -> Vec<Message> {
    let other = create(store, "another").await;
    let large = || NewMessage::user("x".repeat(300 * 1024));
    store
        .append_message(session, message.clone())
        .await
        .unwrap();
    let turn = Turn::new([message.clone(), message.clone()]);
    store.append_turn(session, turn).await.unwrap();
    let (here, there) = tokio::join!(
        store.append_message(session, message.clone()),
        store.append_message(&other, message.clone()),
    );
    assert_eq!((here.unwrap().ids.len(), there.unwrap().ids.len()), (1, 1));
    let turn = Turn::new([message.clone(), large(), message.clone()]);
    store.append_turn(session, turn).await.unwrap();
    let mut read = all(store, session).await;
    read.remove(5);
    read.extend(all(store, &other).await);
    store
        .replace_transcript(session, [message.clone(), message.clone()])
        .await
        .unwrap();
    read.extend(all(store, session).await);
    store.clear_messages(session).await.unwrap();
    store.clear_messages(&other).await.unwrap();
    assert_eq!(read.len(), 9);
    read
}

/// Texts that get lost in stores of this kind: between JSON, SQL and C strings.
fn awkward() -> Vec<String> {
    let mut texts: Vec<String> = [
        "",
        " ",
        "\0",
        "a\0b",
        "\0\0\0",
        "ends with NUL\0",
        "\\u0000",
        "\\",
        "\"",
        "'",
        "'; DROP TABLE messages; --",
        "%_?1:a@b$c",
        "\n",
        "\r",
        "\r\n",
        "\n\n lines \r\r \n",
        "\t\u{b}\u{c}\u{1}\u{1f}\u{7f}\u{80}\u{9f}",
        "null",
        "true",
        "0",
        "007",
        "1e400",
        "9223372036854775808",
        "-0.0",
        "{}",
        "[1,2]",
        "{\"a\":1}",
        "\"quoted\"",
        "{'json5':+.5,}",
        "x'ff'",
        "🦀👩‍👩‍👧‍👦🏳️‍🌈",
        "数据库迁移、修改youer服务端",
        "한국어 日本語 ภาษาไทย",
        "e\u{301}\u{301}\u{301}",
        "\u{202e}right to left\u{202c}\u{2066}\u{2069}\u{200f}",
        "\u{feff}\u{fffd}\u{fffe}\u{ffff}\u{10ffff}\u{2028}\u{2029}\u{200b}",
        "\u{d7ff}\u{e000}",
    ]
    .map(str::to_owned)
    .into();
    texts.push("长".repeat(100_000));
    texts.push("\0".repeat(50_000));
    texts
}

#[tokio::test]
async fn any_text_comes_back_exactly_from_every_field() {
    let (file, store, session) = store_and_session().await;
    for text in awkward() {
        let message = NewMessage::new(Role::Other(format!("role {text}")))
            .content(text.as_str())
            .tool_call_id(text.as_str())
            .tool_name(text.as_str())
            .finish_reason(text.as_str())
            .reasoning(text.as_str())
            .tool_calls(Json::from_value(&[&text]).unwrap())
            .reasoning_details(Json::from_value(&text).unwrap())
            .codex_reasoning_items(Json::from_value(&text).unwrap())
            .extra(Json::from_value(&text).unwrap());
        for read in stored(&store, &session, &message).await {
            let shown = text.chars().take(40).collect::<String>();
            assert!(
                read.role == Role::Other(format!("role {text}")),
                "{shown:?}"
            );
            assert!(
                read.content == Some(Content::Text(text.clone())),
                "{shown:?}"
            );
            for field in [
                read.tool_call_id,
                read.tool_name,
                read.finish_reason,
                read.reasoning,
            ] {
                assert!(field.as_ref() == Some(&text), "{shown:?}");
            }
            assert!(read.tool_calls.unwrap().to::<Vec<String>>().unwrap() == [text.as_str()]);
            for field in [
                read.reasoning_details,
                read.codex_reasoning_items,
                read.extra,
            ] {
                assert!(field.unwrap().to::<String>().unwrap() == text, "{shown:?}");
            }
        }
    }
    assert_index_is_right(&file.stock());
}

#[tokio::test]
async fn any_text_may_be_part_of_an_id_a_key_or_a_source() {
    let (_file, store) = store().await;
    for (n, text) in awkward().into_iter().enumerate() {
        let name: String = text.replace('\0', "").chars().take(100).collect();
        let session = id(&format!("{n}{name}"));
        let new = NewSession::new(format!("source {text}"))
            .id(session.clone())
            .system_prompt(text.as_str())
            .user_id(text.as_str())
            .model(text.as_str());
        store.create_session(new).await.unwrap();
        let read = store.session(&session).await.unwrap().unwrap();
        assert!(read.source == format!("source {text}"));
        for field in [read.system_prompt, read.user_id, read.model] {
            assert!(field.as_ref() == Some(&text));
        }
        store.end_session(&session, text.as_str()).await.unwrap();
        let ended = store.session(&session).await.unwrap().unwrap();
        assert!(ended.end_reason.unwrap().as_str() == text);

        let key: String = text.chars().take(100).collect::<String>() + "k";
        let turn = || Turn::new(["a", "b"].map(NewMessage::user)).key(key.as_str());
        let first = store.append_turn(&session, turn()).await.unwrap();
        let again = store.append_turn(&session, turn()).await.unwrap();
        assert_eq!((first.repeated, again.repeated), (false, true), "{key:?}");
        // The statement that counts for several sessions at once looks them up by their ids.
        let other = create(&store, "another").await;
        let (here, there) = tokio::join!(
            store.append_message(&session, NewMessage::user("c")),
            store.append_message(&other, NewMessage::user("d")),
        );
        assert_eq!(
            (here.unwrap().ids.len(), there.unwrap().ids.len()),
            (1, 1),
            "{name:?}"
        );
        assert_eq!(texts(&all(&store, &session).await), ["a", "b", "c"]);
        assert_eq!(
            support::counters(&store, &session).await,
            (3, 0),
            "{name:?}"
        );
    }
}

fn nested(depth: usize) -> String {
    "[".repeat(depth) + "{\"deep\":0}" + &"]".repeat(depth)
}

#[tokio::test]
async fn json_comes_back_byte_for_byte() {
    let (file, store, session) = store_and_session().await;
    let deep = nested(1000);
    for text in [
        r#"[{"type":"text","text":"b","b":1,"a":2,"b":3}]"#,
        r#"[ {"n" : [1e3, 1000.0, 1E+3, -0, -0.0, 1e400, 123456789012345678901234567890]} ]"#,
        r#"[{"text":"\u00e9\/\u0000\n\ud83e\udd80 é"}]"#,
        r#"[{"text":"lone \ud800 surrogate \udfff"},"\udc00\ud800"]"#,
        "[\t\n{\r\"a\":\"🦀数据\u{2028}\u{7f}\"} ]",
        r#"[{"":""},{"\u0000":"\u0000"},[],{},null,true,false,""]"#,
        deep.as_str(),
    ] {
        let message = NewMessage::new(Role::User)
            .content(json(text))
            .tool_calls(json(text))
            .reasoning_details(json(text))
            .codex_reasoning_items(json(text))
            .extra(json(text));
        for read in stored(&store, &session, &message).await {
            let Some(Content::Parts(parts)) = read.content else {
                panic!("{text}")
            };
            assert_eq!(parts.as_str(), text);
            for field in [
                read.tool_calls,
                read.reasoning_details,
                read.codex_reasoning_items,
                read.extra,
            ] {
                assert_eq!(field.unwrap().as_str(), text);
            }
        }
        let config = NewSession::new("cli").model_config(json(text));
        let session = store.create_session(config).await.unwrap();
        let read = store.session(&session).await.unwrap().unwrap();
        assert_eq!(read.model_config.unwrap().as_str(), text);
    }
    assert_index_is_right(&file.stock());
}

#[test]
fn json_is_one_value_without_the_space_around_it() {
    for (text, kept) in [
        (" 1 ", "1"),
        ("\t\n\r [ 1 ]\n", "[ 1 ]"),
        ("\"\u{a0}\"", "\"\u{a0}\""),
        ("null", "null"),
        ("-0", "-0"),
    ] {
        assert_eq!(json(text).as_str(), kept);
    }
    let refused = [
        "",
        " ",
        "1 2",
        "[",
        "]",
        "{a:1}",
        "{'a':1}",
        "[1,]",
        "01",
        "+1",
        ".5",
        "NaN",
        "Infinity",
        "\u{feff}[]",
        "\u{a0}1",
        "1\0",
        "\"\0\"",
        "\"\n\"",
        "\"\\x\"",
        "\"\\ud8\"",
        "nul",
        "//\n1",
    ];
    for text in refused {
        let result = Json::parse(text);
        assert!(
            matches!(result, Err(Error::InvalidJson { .. })),
            "{text:?}: {result:?}"
        );
    }
    let value = serde_json::json!({"b": [1, "\u{0}é"], "a": null});
    assert_eq!(Json::from(value.clone()), Json::from_value(&value).unwrap());
    assert_eq!(json(" [1,2] ").to::<Vec<u8>>().unwrap(), [1, 2]);
    let no_keys = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(
        Json::from_value(&no_keys),
        Err(Error::InvalidJson { .. })
    ));
}

#[test]
fn reading_deep_json_into_a_type_fails_typed() {
    let deep = json(&nested(100_000));
    assert!(matches!(
        deep.to::<serde_json::Value>(),
        Err(Error::InvalidJson { .. })
    ));
}

const BASE64: &str = "aGVybWVzLXN0YXRlLW5ldmVyLWluZGV4ZXMtdGhpcw==";

#[tokio::test]
async fn other_programs_see_parts_as_text() {
    let (file, store, session) = store_and_session().await;
    let stock = file.stock();
    let cases = [
        (r"[]", ""),
        (r#"[{"type":"text","text":"a"}]"#, "a"),
        (
            r#"[{"type":"text","text":"a"},{"type":"text","text":"b\nc"}]"#,
            "a\nb\nc",
        ),
        (
            r#"[{"type":"text","text":""},{"type":"text","text":"b"}]"#,
            "\nb",
        ),
        (r#"["plain",{"type":"text","text":"b"}]"#, "plain\nb"),
        (
            r#"[{"type":"input_text","text":"a"},{"type":"output_text","text":"b"}]"#,
            "a\nb",
        ),
        (r#"[{"text":"no type"}]"#, "no type"),
        (r#"[{"type":"tool_result","content":"result"}]"#, "result"),
        (
            r#"[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:BASE64"}}]"#,
            "see\n[image]",
        ),
        (
            r#"[{"type":"image","source":{"type":"base64","data":"BASE64"}}]"#,
            "[image]",
        ),
        (
            r#"[{"type":"input_image","image_url":"data:image/png;base64,BASE64"}]"#,
            "[image]",
        ),
        (
            r#"[{"type":"input_audio","input_audio":{"data":"BASE64","format":"wav"}}]"#,
            "[audio]",
        ),
        (
            r#"[{"type":"file","file":{"file_data":"BASE64"}}]"#,
            "[file]",
        ),
        (r#"[{"type":"input_file","file_data":"BASE64"}]"#, "[file]"),
        (
            r#"[{"type":"document","source":{"data":"BASE64"}}]"#,
            "[file]",
        ),
        (
            r#"[{"type":"video_url","video_url":{"url":"data:BASE64"}}]"#,
            "[video]",
        ),
        // Where providers put the data is not ours to know.
        (r#"[{"type":"image","content":"BASE64"}]"#, "[image]"),
        (r#"[{"type":"image","text":"BASE64"}]"#, "[image]"),
        (
            r#"[{"type":"file","content":"BASE64","name":"a.pdf"}]"#,
            "[file]",
        ),
        (r#"[{"type":"audio","content":"BASE64"}]"#, "[audio]"),
        (r#"[{"type":"blob","content":"BASE64"}]"#, "[blob]"),
        (
            r#"[["image","BASE64"],["text","BASE64","BASE64"]]"#,
            "[part]\n[part]",
        ),
        (r#"[{"type":["image","BASE64"]}]"#, "[part]"),
        (r#"[{"type":"thinking","data":"BASE64"}]"#, "[thinking]"),
        (r#"[{"type":"we\nird] <x> 奇\u0000怪"}]"#, "[weirdx]"),
        (
            r#"[{"type":""},{},null,7,true,[]]"#,
            "[part]\n[part]\n[part]\n[part]\n[part]\n[part]",
        ),
        (r#"[{"type":"text","text":7}]"#, "[text]"),
        (r#"[{"type":"text","text":"a\u0000b"}]"#, "a\0b"),
        (
            r#"[{"type":"text","text":"\ud83e\udd80\u6570\u636e"}]"#,
            "🦀数据",
        ),
        (r#"[{"type":"a","type":"b","text":"x"}]"#, "[part]"),
    ];
    for (parts, expected) in cases {
        let parts = parts.replace("BASE64", BASE64);
        let message = NewMessage::user(json(&parts));
        assert_eq!(Content::from(json(&parts)).text(), expected, "{parts}");
        let turn = Turn::new([message.clone(), message.clone()]);
        store.append_message(&session, message).await.unwrap();
        store.append_turn(&session, turn).await.unwrap();
        for message in all(&store, &session).await {
            assert_eq!(message.content, Some(Content::Parts(json(&parts))));
        }
        for stored in rows(&stock, "SELECT content FROM messages") {
            assert_eq!(stored, [format!("{expected:?}")], "{parts}");
        }
        store.clear_messages(&session).await.unwrap();
    }
}

#[test]
fn the_text_of_parts_has_bounds() {
    let kind = "x".repeat(1000);
    let named = format!(r#"[{{"type":"{kind}"}}]"#);
    assert_eq!(
        Content::from(json(&named)).text(),
        format!("[{}]", "x".repeat(32))
    );
    let surrogate = Content::from(json(r#"[{"text":"lone \ud800!"}]"#));
    assert!(surrogate.text().starts_with("lone \u{fffd}") && surrogate.text().ends_with('!'));
    let deep = json(&format!("[{{\"text\":\"a\"}},{}]", nested(1000)));
    assert_eq!(Content::from(deep).text(), "a\n[part]");
}

/// A program that redacts a message knows `content` only: the parts, which still hold what was
/// said before, used to come back as if nothing had happened.
#[tokio::test]
async fn a_text_that_another_program_changed_counts_more_than_the_parts() {
    let (file, store, session) = store_and_session().await;
    let parts = r#"[{"type":"text","text":"my password is 1234"},{"type":"image","data":"x"}]"#;
    let message = || NewMessage::user(json(parts));
    store
        .append_turn(&session, Turn::new([message(), message(), message()]))
        .await
        .unwrap();
    file.stock()
        .execute_batch(
            "UPDATE messages SET content = '[redacted]' WHERE id = 1;
             UPDATE messages SET content = NULL WHERE id = 2;
             UPDATE messages SET token_count = 5 WHERE id = 3;",
        )
        .unwrap();
    let expected = [
        Some("[redacted]".into()),
        None,
        Some(Content::Parts(json(parts))),
    ];
    let read: Vec<_> = all(&store, &session)
        .await
        .into_iter()
        .map(|m| m.content)
        .collect();
    assert_eq!(read, expected);
    let conversation = store.conversation(&session).await.unwrap();
    let read: Vec<_> = conversation
        .messages
        .into_iter()
        .map(|m| m.content)
        .collect();
    assert_eq!(read, expected);
}

#[tokio::test]
async fn a_message_may_be_as_large_as_the_limit_and_no_larger() {
    let file = support::File::new();
    let store = file.open_with(options().message_limit(1000).unwrap()).await;
    let session = create(&store, "s").await;
    let parts = |n: usize| {
        json(&format!(
            r#"[{{"type":"image","data":"{}"}}]"#,
            "x".repeat(n)
        ))
    };
    // The role counts as well; parts count with the text that stands for them.
    let overhead = parts(0).as_str().len() + "[image]".len();
    let bloated = |n: usize| {
        NewMessage::user("a")
            .tool_call_id("b")
            .tool_calls(json("[1]"))
            .tool_name("c")
            .finish_reason("d")
            .reasoning("e")
            .reasoning_details(json("{}"))
            .codex_reasoning_items(json("[]"))
            .extra(json(&format!("\"{}\"", "长".repeat(n))))
    };
    for (fits, too_large, bytes) in [
        (
            NewMessage::user("x".repeat(996)),
            NewMessage::user("x".repeat(997)),
            1001,
        ),
        (
            NewMessage::user(parts(996 - overhead)),
            NewMessage::user(parts(997 - overhead)),
            1001,
        ),
        (
            bloated((1000 - 18) / 3),
            bloated((1000 - 18) / 3 + 1),
            18 + 3 * ((1000 - 18) / 3 + 1),
        ),
    ] {
        store.append_message(&session, fits.clone()).await.unwrap();
        let before = file.dump();
        let turn = Turn::new([fits.clone(), too_large.clone()]);
        let refused = [
            store
                .append_message(&session, too_large.clone())
                .await
                .map(drop),
            store.append_turn(&session, turn).await.map(drop),
            store
                .replace_transcript(&session, [fits, too_large])
                .await
                .map(drop),
        ];
        for result in refused {
            match result {
                Err(Error::MessageTooLarge {
                    bytes: found,
                    limit: 1000,
                }) => {
                    assert_eq!(found, bytes);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(file.dump(), before);
    }
}

#[tokio::test]
async fn token_counts_reach_to_the_end_of_their_range() {
    let (file, store, session) = store_and_session().await;
    let counts = [0, 1, (1 << 53) + 1, i64::MAX.unsigned_abs()];
    for count in counts {
        let message = NewMessage::user("x").token_count(count);
        for read in stored(&store, &session, &message).await {
            assert_eq!(read.token_count, Some(i64::try_from(count).unwrap()));
        }
    }
    assert_eq!(integer(&file.stock(), "SELECT COUNT(*) FROM messages"), 0);
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// A runner that says the same at every run.
fn runner(cases: u32) -> TestRunner {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    )
}

/// The times of a turn used to go through decimal text, which SQLite reads a bit beside at times.
#[test]
fn any_time_survives_a_turn_bit_for_bit() {
    let plausible = prop_oneof![
        4 => 1.6e9..1.9e9,
        1 => 0.0..1e11,
        1 => 0.0..1.0,
        1 => (0_u64..1e11_f64.to_bits()).prop_map(f64::from_bits),
    ];
    let edges = [
        0.0,
        f64::from_bits(1),
        2_f64.powi(-10),
        2_f64.powi(-10).next_down(),
        0.5,
        1.0,
    ]
    .into_iter()
    .chain([
        1.0_f64.next_down(),
        0.1 + 0.2,
        4_294_967_296.5,
        1e11_f64.next_down(),
    ]);
    let file = support::File::new();
    runner(32)
        .run(&proptest::collection::vec(plausible, 300), |times| {
            block_on(async {
                let store = file.open().await;
                let session = store.create_session(NewSession::new("cli")).await.unwrap();
                let times: Vec<f64> = edges.clone().chain(times).collect();
                let at = |time: &f64| {
                    NewMessage::user("x").timestamp(Timestamp::from_unix_seconds(*time).unwrap())
                };
                let turn = Turn::new(times.iter().map(at));
                store.append_turn(&session, turn).await.unwrap();
                for (message, time) in all(&store, &session).await.iter().zip(&times) {
                    let read = message.timestamp.as_unix_seconds();
                    prop_assert_eq!(read.to_bits(), time.to_bits(), "{:e}", time);
                }
                Ok(())
            })
        })
        .unwrap();
}

#[test]
fn any_string_survives_as_content_and_as_parts() {
    let file = support::File::new();
    let seen = Cell::new(0);
    let texts = proptest::collection::vec(".{0,20}|[\\x00-\\x1f\"\\\\\\u{d7ff}-\\u{e001}]{0,9}", 9);
    runner(32)
        .run(&texts, |texts| {
            block_on(async {
                let store = file.open().await;
                let session = create(&store, &seen.replace(seen.get() + 1).to_string()).await;
                let parts = |text: &String| serde_json::json!([{"type": "text", "text": text}]);
                let messages = texts.iter().flat_map(|text| {
                    [
                        NewMessage::user(text.as_str()).reasoning(text.as_str()),
                        NewMessage::user(Json::from(parts(text))),
                    ]
                });
                store
                    .append_turn(&session, Turn::new(messages))
                    .await
                    .unwrap();
                for (pair, text) in all(&store, &session).await.chunks(2).zip(&texts) {
                    prop_assert_eq!(&pair[0].content, &Some(Content::Text(text.clone())));
                    prop_assert_eq!(pair[0].reasoning.as_ref(), Some(text));
                    let parts = Content::Parts(Json::from(parts(text)));
                    prop_assert_eq!(&pair[1].content, &Some(parts));
                }
                Ok(())
            })
        })
        .unwrap();
}
