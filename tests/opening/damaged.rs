//! What is no database, or not a whole one, is refused by name and left as it is.

use std::fs;
use std::path::Path;

use hermes_state::Error;

use crate::original::{Shape, make};
use crate::support::{connect, open_read_only, place, refused};

/// Asserts that the bytes are refused as `expected` says and stay what they are.
#[track_caller]
fn check(name: &str, bytes: &[u8], expected: impl Fn(&Error) -> bool) {
    let (_folder, path) = place();
    fs::write(&path, bytes).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for error in runtime.block_on(async {
        [
            refused(&path).await,
            open_read_only(&path).await.unwrap_err(),
        ]
    }) {
        assert!(expected(&error), "{name}: {error:?}");
    }
    assert!(fs::read(&path).unwrap() == bytes, "{name}");
}

fn is_no_database(error: &Error) -> bool {
    matches!(error, Error::NotADatabase { .. })
}

fn is_corrupt(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. })
}

/// A whole file in rollback mode.
fn whole() -> Vec<u8> {
    let (_folder, path) = place();
    let file = make(&path, 6, Shape::Fresh);
    file.pragma_update(None, "journal_mode", "delete").unwrap();
    drop(file);
    fs::read(&path).unwrap()
}

#[test]
fn what_is_no_database_is_refused() {
    check(
        "text",
        "dear diary\n".repeat(100).as_bytes(),
        is_no_database,
    );
    check("zeros", &[0; 8192], is_no_database);
    let mut garbled = whole();
    garbled[3] ^= 0xff;
    check("garbled magic", &garbled, is_no_database);
    let encrypted: Vec<u8> = whole().iter().map(|byte| byte ^ 0x5a).collect();
    check("encrypted", &encrypted, is_no_database);
}

#[test]
fn a_file_that_was_cut_off_is_refused() {
    for length in [1, 15, 16, 50, 99, 100, 511] {
        check(
            &length.to_string(),
            &whole()[..length],
            |error| matches!(error, Error::Truncated { bytes, .. } if *bytes == length as u64),
        );
    }
    for length in [512, 600, 4095, 4096, 8192] {
        check(&length.to_string(), &whole()[..length], is_corrupt);
    }
}

#[test]
fn a_damaged_schema_is_refused() {
    let mut file = whole();
    // The type of the page that holds the schema.
    file[100] = 0x77;
    check("page type", &file, is_corrupt);
    let mut file = whole();
    let at = file
        .windows(21)
        .position(|window| window == b"CREATE TABLE messages")
        .unwrap();
    file[at..at + 6].copy_from_slice(b"CREASE");
    check("schema text", &file, is_corrupt);
}

#[tokio::test]
async fn an_error_names_the_path_and_says_what_to_do() {
    let (_folder, path) = place();
    fs::write(&path, "short").unwrap();
    let text = refused(&path).await.to_string();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("restore"), "{text}");
    assert!(Path::new(&path).exists());
}

#[tokio::test]
async fn a_log_without_its_database_is_not_taken_for_a_new_file() {
    let (_folder, path) = place();
    let beside = path.with_file_name("state.db-wal");
    for empty in [false, true] {
        if empty {
            fs::write(&path, "").unwrap();
        }
        fs::write(&beside, "turns that only the log holds").unwrap();
        assert!(matches!(refused(&path).await, Error::OrphanedLog { .. }));
        assert!(fs::read(&beside).unwrap() == b"turns that only the log holds");
        assert_eq!(path.exists(), empty);
    }
}

#[tokio::test]
async fn a_database_of_utf_16_texts_is_refused_whatever_it_holds() {
    for (encoding, schema) in [
        ("UTF-16le", "CREATE TABLE notes(text)"),
        (
            "UTF-16be",
            "CREATE TABLE schema_version(version INTEGER NOT NULL)",
        ),
    ] {
        let (_folder, path) = place();
        let file = connect(&path);
        file.execute_batch(&format!("PRAGMA encoding = '{encoding}'; {schema}"))
            .unwrap();
        drop(file);
        let before = fs::read(&path).unwrap();
        assert!(matches!(refused(&path).await, Error::Utf16 { .. }));
        assert!(matches!(
            open_read_only(&path).await,
            Err(Error::Utf16 { .. })
        ));
        assert!(fs::read(&path).unwrap() == before);
    }
}
