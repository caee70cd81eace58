//! Files of every age become current, and keep every byte.

use hermes_state::{Error, JournalMode, StoreOptions, Warning};

use crate::original::{SHAPES, Shape, make, make_empty};
use crate::support::{
    assert_kept, assert_sound, connect, content, current_schema, integer, open, open_with, place,
    refused, rows, schema, strings, without_message_index,
};

#[tokio::test]
async fn a_new_file_holds_schema_six_and_our_additions() {
    let (_folder, path) = place();
    let environment = open(&path).await.unwrap();
    assert_eq!(environment.schema_version, 6);
    assert_eq!(environment.migration, 8);
    assert_eq!(environment.warnings, []);
    assert_eq!(environment.page_size, 4096);
    assert_eq!(environment.path, path.canonicalize().unwrap());
    let file = connect(&path);
    assert_sound(&file);

    let (_other, plain) = place();
    let mut expected = schema(&make_empty(&plain, 6, Shape::Fresh));
    let ours = schema(&file);
    assert!(
        expected.is_subset(&ours),
        "{:#?}",
        expected.difference(&ours)
    );
    expected.extend(
        ours.iter()
            .filter(|entry| {
                ["append_keys", "deleted_sessions", "hermes_state_"]
                    .iter()
                    .any(|name| entry.contains(name))
            })
            .cloned(),
    );
    let additions: Vec<_> = ours.difference(&expected).collect();
    assert_eq!(
        additions,
        [
            "index idx_messages_session_id on messages: CREATE INDEX idx_messages_session_id ON messages(session_id)",
            r#"messages: ["\"content_parts\"", "\"TEXT\"", "Integer(0)", "Null", "Integer(0)", "Integer(0)"]"#,
            r#"messages: ["\"extra_json\"", "\"TEXT\"", "Integer(0)", "Null", "Integer(0)", "Integer(0)"]"#,
        ]
    );
}

#[tokio::test]
async fn a_new_file_is_in_wal_mode_and_vacuums_in_steps() {
    let (_folder, path) = place();
    let environment = open(&path).await.unwrap();
    assert_eq!(environment.journal_mode, JournalMode::Wal);
    let file = connect(&path);
    assert_eq!(strings(&file, "PRAGMA journal_mode"), ["wal"]);
    assert_eq!(integer(&file, "PRAGMA auto_vacuum"), 2);
}

#[tokio::test]
async fn every_version_is_adopted_and_keeps_every_byte() {
    let expected = current_schema().await;
    for version in 1..=6 {
        for shape in SHAPES {
            let (_folder, path) = place();
            let before = content(&make(&path, version, shape));
            let environment = open(&path).await.unwrap();
            assert_eq!(environment.schema_version, 6, "{version} {shape:?}");
            assert_eq!(environment.warnings, [Warning::MessageIndexMissing]);
            let file = connect(&path);
            assert_kept(&file, &before);
            assert_sound(&file);
            let schema = schema(&file);
            assert!(
                schema
                    .iter()
                    .any(|entry| entry.starts_with("index idx_messages_session_id"))
            );
            assert_eq!(
                without_message_index(schema),
                expected,
                "{version} {shape:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_file_without_messages_gets_the_index_that_costs_nothing() {
    for version in [1, 6] {
        let (_folder, path) = place();
        make_empty(&path, version, Shape::Chain);
        assert_eq!(open(&path).await.unwrap().warnings, []);
        let index = "SELECT count(*) FROM sqlite_schema WHERE name = 'idx_messages_session_id'";
        assert_eq!(integer(&connect(&path), index), 1);
    }
}

#[tokio::test]
async fn opening_a_current_file_changes_no_byte() {
    let (_folder, path) = place();
    drop(make(&path, 3, Shape::Chain));
    open(&path).await.unwrap();
    drop(connect(&path));
    let before = std::fs::read(&path).unwrap();
    for _ in 0..3 {
        open(&path).await.unwrap();
    }
    assert!(std::fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn each_single_piece_that_is_missing_is_added() {
    let expected = current_schema().await;
    let mut drops: Vec<String> = [
        "DROP INDEX idx_sessions_source",
        "DROP INDEX idx_sessions_parent",
        "DROP INDEX idx_sessions_started",
        "DROP INDEX idx_sessions_title_unique",
        "DROP INDEX idx_messages_session",
        "DROP TRIGGER messages_fts_insert",
        "DROP TRIGGER messages_fts_delete",
        "DROP TRIGGER messages_fts_update",
        "DROP TABLE messages_fts",
        "DROP TABLE schema_version",
        "DELETE FROM schema_version",
        "INSERT INTO schema_version VALUES (2), (6)",
        "UPDATE schema_version SET version = 0",
    ]
    .map(str::to_owned)
    .into();
    for column in [
        "sessions.user_id",
        "sessions.model",
        "sessions.model_config",
        "sessions.system_prompt",
        "sessions.ended_at",
        "sessions.end_reason",
        "sessions.message_count",
        "sessions.tool_call_count",
        "sessions.input_tokens",
        "sessions.output_tokens",
        "sessions.cache_read_tokens",
        "sessions.cache_write_tokens",
        "sessions.reasoning_tokens",
        "sessions.billing_provider",
        "sessions.billing_base_url",
        "sessions.billing_mode",
        "sessions.estimated_cost_usd",
        "sessions.actual_cost_usd",
        "sessions.cost_status",
        "sessions.cost_source",
        "sessions.pricing_version",
        "messages.tool_call_id",
        "messages.tool_calls",
        "messages.tool_name",
        "messages.token_count",
        "messages.finish_reason",
        "messages.reasoning",
        "messages.reasoning_details",
        "messages.codex_reasoning_items",
    ] {
        let (table, column) = column.split_once('.').unwrap();
        drops.push(format!("ALTER TABLE {table} DROP COLUMN {column}"));
    }
    drops.push(
        "DROP INDEX idx_sessions_title_unique; ALTER TABLE sessions DROP COLUMN title".to_owned(),
    );
    let (_folder, template) = place();
    // Before and after our own migrations.
    for adopt in [false, true] {
        if adopt {
            open(&template).await.unwrap();
            drop(connect(&template));
        } else {
            drop(make(&template, 6, Shape::Fresh));
        }
        for statement in &drops {
            let (_folder, path) = place();
            std::fs::copy(&template, &path).unwrap();
            let file = connect(&path);
            file.execute_batch(statement).unwrap();
            let before = content(&file);
            drop(file);
            open(&path).await.unwrap();
            let file = connect(&path);
            assert_kept(&file, &before);
            assert_sound(&file);
            assert_eq!(
                without_message_index(schema(&file)),
                expected,
                "{statement}"
            );
        }
    }
}

#[tokio::test]
async fn what_another_program_took_of_our_own_pieces_is_added_again() {
    let expected = current_schema().await;
    for statement in [
        "DROP TABLE append_keys",
        "DROP TRIGGER append_keys_session_delete",
        "DROP TRIGGER append_keys_session_rename",
        "DROP TABLE deleted_sessions",
        "DROP TRIGGER deleted_sessions_session_insert",
        "DROP TRIGGER deleted_sessions_session_rename",
        "DROP TABLE hermes_state_compat",
        "DELETE FROM hermes_state_compat",
        "ALTER TABLE messages DROP COLUMN content_parts",
        "ALTER TABLE messages DROP COLUMN extra_json",
        "CREATE TABLE m2 AS SELECT id, session_id, role, timestamp FROM messages;
         DROP TABLE messages;
         CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
             session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
             timestamp REAL NOT NULL);
         INSERT INTO messages (id, session_id, role, timestamp) SELECT * FROM m2;
         DROP TABLE m2;",
    ] {
        let (_folder, path) = place();
        drop(make(&path, 6, Shape::Chain));
        open(&path).await.unwrap();
        connect(&path).execute_batch(statement).unwrap();
        open(&path).await.unwrap();
        let file = connect(&path);
        assert_eq!(
            without_message_index(schema(&file)),
            expected,
            "{statement}"
        );
        assert_sound(&file);
    }
}

#[tokio::test]
async fn a_file_that_was_only_begun_is_finished() {
    let expected = current_schema().await;
    for statements in [
        "CREATE TABLE schema_version (version INTEGER NOT NULL)",
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL);
         INSERT INTO sessions (id, source, started_at) VALUES ('s', 'cli', 1)",
        "CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT,
             session_id TEXT NOT NULL REFERENCES sessions(id), role TEXT NOT NULL, content TEXT,
             timestamp REAL NOT NULL);
         INSERT INTO messages (session_id, role, content, timestamp)
             VALUES ('s', 'user', 'hello there', 1)",
    ] {
        let (_folder, path) = place();
        connect(&path)
            .execute_batch(&format!("PRAGMA foreign_keys = OFF; {statements}"))
            .unwrap();
        open(&path).await.unwrap();
        let file = connect(&path);
        assert_sound(&file);
        assert_eq!(without_message_index(schema(&file)), expected, "{statements}");
    }
}

#[tokio::test]
async fn an_index_that_is_missing_or_was_not_kept_finds_all_messages() {
    let late = "INSERT INTO messages (session_id, role, content, timestamp)
                VALUES ('full', 'user', 'late arrival', 1)";
    for statements in [
        "DROP TABLE messages_fts",
        "DROP TABLE messages_fts; DROP TRIGGER messages_fts_insert",
        "DROP TRIGGER messages_fts_insert",
        "DROP TRIGGER messages_fts_insert; DROP TRIGGER messages_fts_delete;
         DROP TRIGGER messages_fts_update",
        // Without the module the table goes, its shadows stay.
        "PRAGMA writable_schema = ON;
         DELETE FROM sqlite_schema WHERE name = 'messages_fts';
         PRAGMA writable_schema = RESET",
    ] {
        let (_folder, path) = place();
        let file = make(&path, 6, Shape::Fresh);
        file.execute_batch(statements).unwrap();
        let arrivals = if statements.contains("TRIGGER messages_fts_insert") {
            file.execute(late, []).unwrap()
        } else {
            0
        };
        drop(file);
        open(&path).await.unwrap();
        let file = connect(&path);
        assert_sound(&file);
        let found = |word: &str| {
            let sql = format!("SELECT rowid FROM messages_fts WHERE messages_fts MATCH '{word}'");
            rows(&file, &sql).len()
        };
        assert_eq!(found("hello"), 1, "{statements}");
        assert_eq!(found("arrival"), arrivals, "{statements}");
    }
}

#[tokio::test]
async fn of_equal_titles_the_newest_is_kept_and_the_others_are_numbered() {
    for version in [3, 6] {
        let (_folder, path) = place();
        let file = make_empty(&path, 3, Shape::Chain);
        let long = "长".repeat(100);
        file.execute_batch(&format!(
            "INSERT INTO sessions (id, source, started_at, title) VALUES
                 ('old', 'cli', 1, 'plan'), ('mid', 'cli', 2, 'plan'), ('new', 'cli', 3, 'plan'),
                 ('three', 'cli', 9, 'plan #3'),
                 ('a', 'cli', 5, 'twin'), ('b', 'cli', 5, 'twin'),
                 ('n1', 'cli', 1, 'x #7'), ('n2', 'cli', 2, 'x #7'),
                 ('l1', 'cli', 1, '{long}'), ('l2', 'cli', 2, '{long}'),
                 ('none1', 'cli', 1, NULL), ('none2', 'cli', 2, NULL),
                 ('alone', 'cli', 2, 'alone');
             UPDATE schema_version SET version = {version};"
        ))
        .unwrap();
        drop(file);
        let mut warnings = open(&path).await.unwrap().warnings;
        warnings.sort_by_key(|warning| format!("{warning:?}"));
        let renamed = ["a", "l1", "mid", "n1", "old"].map(|id| Warning::DuplicateTitle {
            session_id: id.to_owned(),
        });
        assert_eq!(warnings, renamed);
        let file = connect(&path);
        assert_sound(&file);
        assert_eq!(
            rows(&file, "SELECT id, title FROM sessions ORDER BY id"),
            [
                ["a", "twin #2"],
                ["alone", "alone"],
                ["b", "twin"],
                ["l1", &format!("{} #2", "长".repeat(97))],
                ["l2", &long],
                ["mid", "plan #5"],
                ["n1", "x #8"],
                ["n2", "x #7"],
                ["new", "plan"],
                ["none1", ""],
                ["none2", ""],
                ["old", "plan #4"],
                ["three", "plan #3"],
            ]
            .map(|row| row.map(|text| match text {
                "" => "Null".to_owned(),
                text => format!("{text:?}"),
            }))
        );
        // The second time there is nothing to report.
        assert_eq!(open(&path).await.unwrap().warnings, []);
    }
}

#[tokio::test]
async fn equal_titles_that_are_not_text_do_not_stop_opening() {
    let (_folder, path) = place();
    let file = make_empty(&path, 3, Shape::Fresh);
    file.execute_batch(
        "INSERT INTO sessions (id, source, started_at, title) VALUES
             (NULL, 'cli', 1, x'ff'), ('b', 'cli', 2, x'ff'),
             (x'fe', 'cli', 1, CAST(x'ff' AS TEXT)), ('d', 'cli', 2, CAST(x'ff' AS TEXT))",
    )
    .unwrap();
    drop(file);
    let renamed = open(&path).await.unwrap().warnings;
    assert_eq!(renamed.len(), 2, "{renamed:?}");
    assert_sound(&connect(&path));
}

#[tokio::test]
async fn tables_of_a_host_application_beside_ours_are_left_alone() {
    let (_folder, path) = place();
    let file = make(&path, 2, Shape::Chain);
    let host = "CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, checksum BLOB);
         INSERT INTO _sqlx_migrations VALUES (99, x'00');
         CREATE TABLE notes (id INTEGER PRIMARY KEY, text);
         CREATE TRIGGER notes_insert AFTER INSERT ON notes BEGIN SELECT 1; END;
         INSERT INTO notes VALUES (1, 'mine');";
    file.execute_batch(host).unwrap();
    drop(file);
    open(&path).await.unwrap();
    let file = connect(&path);
    assert_sound(&file);
    assert_eq!(strings(&file, "SELECT text FROM notes"), ["mine"]);
    assert_eq!(integer(&file, "SELECT version FROM _sqlx_migrations"), 99);
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_its_file_keeps_every_byte() {
    for (statement, expected) in [
        ("UPDATE schema_version SET version = 7", 7),
        ("INSERT INTO schema_version VALUES (30)", 30),
    ] {
        // At rest, and with its owner's log beside it.
        for in_use in [false, true] {
            let (_folder, path) = place();
            let mut owner = Some(make(&path, 6, Shape::Fresh));
            owner.as_ref().unwrap().execute_batch(statement).unwrap();
            if !in_use {
                owner = None;
            }
            let bytes = || {
                ["state.db", "state.db-wal"]
                    .map(|name| std::fs::read(path.with_file_name(name)).unwrap_or_default())
            };
            let before = bytes();
            for options in [StoreOptions::new(), StoreOptions::new().read_only()] {
                let error = open_with(options, &path).await.unwrap_err();
                assert!(
                    matches!(error, Error::NewerSchema { found, supported: 6, .. } if found == expected),
                    "{error:?}"
                );
            }
            assert!(bytes() == before);
            assert_eq!(owner.is_some(), in_use);
        }
    }
}

#[tokio::test]
async fn a_database_of_another_program_is_refused_and_keeps_every_byte() {
    for statements in [
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, text)",
        "CREATE TABLE sessions (id TEXT PRIMARY KEY, token TEXT)",
        "CREATE TABLE sessions (id TEXT, source TEXT, started_at REAL);
         CREATE TABLE messages (id INTEGER PRIMARY KEY, body TEXT)",
        "CREATE TABLE messages (id INTEGER PRIMARY KEY, session_id TEXT, role TEXT)",
        "CREATE TABLE schema_version (version INTEGER); CREATE TABLE users (name TEXT)",
        "CREATE TABLE schema_version (number INTEGER)",
        "CREATE TABLE s (id TEXT, source TEXT, started_at REAL);
         CREATE VIEW sessions AS SELECT * FROM s",
    ] {
        let (_folder, path) = place();
        connect(&path).execute_batch(statements).unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = refused(&path).await;
        assert!(
            matches!(error, Error::ForeignDatabase { .. }),
            "{statements}: {error:?}"
        );
        assert!(std::fs::read(&path).unwrap() == before, "{statements}");
    }
}

#[tokio::test]
async fn a_database_without_tables_is_fresh() {
    let (_folder, path) = place();
    connect(&path)
        .execute_batch("CREATE TABLE t (a); DROP TABLE t;")
        .unwrap();
    open(&path).await.unwrap();
    assert_sound(&connect(&path));
}

#[tokio::test]
async fn migrations_have_unix_line_ends_and_say_why_they_are() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains('\r'), "{}", path.display());
        assert!(text.starts_with("-- "), "{}", path.display());
    }
}

#[tokio::test]
async fn a_file_whose_record_of_our_migrations_is_gone_opens_again() {
    let (_folder, path) = place();
    open(&path).await.unwrap();
    for statements in [
        "DROP TABLE hermes_state_migrations",
        "DELETE FROM hermes_state_migrations",
        "DROP TABLE hermes_state_migrations; DROP TABLE append_keys",
    ] {
        connect(&path).execute_batch(statements).unwrap();
        open(&path).await.unwrap();
        let recorded = "SELECT count(*) FROM hermes_state_migrations";
        assert_eq!(integer(&connect(&path), recorded), 8);
        assert_eq!(
            without_message_index(schema(&connect(&path))),
            current_schema().await,
            "{statements}"
        );
    }
}
