//! No statement of this area may look at every session, whatever statistics another program left.

use rusqlite::Connection;

use super::find::{BY_PREFIX, LINEAGE, TIP, TITLE_AND_NUMBERED};
use super::write::OWNER;
use crate::session::FIND_BY_TITLE;
use crate::store::SessionStore;

/// Statistics: none, true ones, and false ones: only the wrong indexes are of use, or none is
/// because there are few sessions. (That a primary key finds many rows is not among them: no
/// statement by id would be safe from that.)
const STATISTICS: [&str; 5] = [
    "",
    "ANALYZE",
    "ANALYZE; DROP TABLE IF EXISTS sqlite_stat4; DELETE FROM sqlite_stat1;
     INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES
         ('sessions', 'sqlite_autoindex_sessions_1', '1000000 1'),
         ('sessions', 'idx_sessions_title_unique', '1000000 1000000'),
         ('sessions', 'idx_sessions_parent', '1000000 1000000'),
         ('sessions', 'idx_sessions_source', '1000000 1'),
         ('sessions', 'idx_sessions_started', '1000000 1')",
    "ANALYZE; DROP TABLE IF EXISTS sqlite_stat4; DELETE FROM sqlite_stat1;
     INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES
         ('sessions', 'sqlite_autoindex_sessions_1', '2 2'),
         ('sessions', 'idx_sessions_title_unique', '2 2'),
         ('sessions', 'idx_sessions_parent', '2 2'),
         ('sessions', NULL, '2')",
    "ANALYZE; DROP TABLE IF EXISTS sqlite_stat4; DELETE FROM sqlite_stat1;
     INSERT INTO sqlite_stat1(tbl, idx, stat) VALUES
         ('sessions', 'idx_sessions_title_unique', '1000000 1000000'),
         ('sessions', 'idx_sessions_parent', '1000000 1000000'),
         ('sessions', 'idx_sessions_source', '5 1')",
];

fn plan(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {sql}"))
        .unwrap();
    let parameters = statement.parameter_count();
    let nulls = vec![rusqlite::types::Null; parameters];
    let lines = statement
        .query_map(rusqlite::params_from_iter(nulls), |row| row.get(3))
        .unwrap();
    lines.map(Result::unwrap).collect()
}

#[tokio::test]
async fn every_look_up_goes_by_an_index() {
    for statistics in STATISTICS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        SessionStore::open(&path)
            .await
            .unwrap()
            .close()
            .await
            .unwrap();
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "INSERT INTO sessions(id, source, started_at, title, parent_session_id)
                     WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 500)
                     SELECT 's' || n, 'cli', n, 'title #' || n, iif(n > 1, 's' || (n / 2), NULL)
                     FROM n",
            )
            .unwrap();
        connection.execute_batch(statistics).unwrap();
        drop(connection);
        // Statistics are read when the schema is.
        let connection = Connection::open(&path).unwrap();
        for (sql, indexes) in [
            (FIND_BY_TITLE, &["idx_sessions_title_unique"][..]),
            (TITLE_AND_NUMBERED, &["idx_sessions_title_unique"]),
            (LINEAGE, &["idx_sessions_title_unique"]),
            (OWNER, &["idx_sessions_title_unique"]),
            (BY_PREFIX, &["sqlite_autoindex_sessions_1"]),
            (TIP, &["sqlite_autoindex_sessions_1", "idx_sessions_parent"]),
        ] {
            let plan = plan(&connection, sql);
            let all = plan.join("\n");
            let mut searches = 0;
            for line in &plan {
                assert!(!line.contains("TEMP B-TREE"), "{statistics}: {sql}\n{all}");
                if line.starts_with("SEARCH") {
                    searches += 1;
                    let by_index = indexes.iter().any(|index| line.contains(index));
                    assert!(by_index, "{statistics}: {sql}\n{all}");
                } else if line.starts_with("SCAN") {
                    // The rows that the recursion has found so far.
                    assert_eq!(line, "SCAN chain", "{statistics}: {sql}\n{all}");
                }
            }
            assert!(searches > 0, "{sql}\n{all}");
        }
    }
}
