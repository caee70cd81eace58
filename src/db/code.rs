//! What a failure of SQLite means, by its result code, never by its text.

use crate::error::{BoxError, Error};

/// What a failure of the database means for the writes that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Somebody else holds a lock; it passes.
    Busy,
    /// A constraint or trigger said no; the transaction is still open.
    Constraint,
    /// No space.
    Full,
    /// A progress handler or `sqlite3_interrupt` stopped the statement.
    Interrupted,
    /// The system failed to read or write.
    Io,
    /// The file is damaged.
    Corrupt,
    /// The file is no database.
    NotADatabase,
    /// The file was moved away under the connection.
    Moved,
    /// Our own commit hook turned the commit down. The transaction is rolled back.
    TurnedDown,
    /// Not allowed to write, or a hot journal that a reader may not roll back.
    ReadOnly,
    /// The file can't be opened.
    CantOpen,
    /// A value above SQLite's limit of 10⁹ bytes.
    TooBig,
    /// Anything else.
    Other,
}

const SQLITE_READONLY_DBMOVED: i32 = 1032;
const SQLITE_CONSTRAINT_COMMITHOOK: i32 = 531;

const SQLITE_CONSTRAINT_TRIGGER: i32 = 1811;

/// What a trigger of another program may do to rows, without an error.
#[derive(Debug, thiserror::Error)]
#[error("a trigger left rows out")]
struct RowsLeftOut;

/// The failure of a statement that inserted fewer rows than it was given.
pub(crate) fn rows_left_out() -> sqlx::Error {
    sqlx::Error::Encode(RowsLeftOut.into())
}

/// What stands for the words of a trigger.
#[derive(Debug, thiserror::Error)]
#[error("a trigger refused the write (code {SQLITE_CONSTRAINT_TRIGGER})")]
struct TriggerRefused;

/// The cause, as it may be told. A trigger that refuses a row may quote it: its words are dropped.
pub(crate) fn cause(error: sqlx::Error) -> BoxError {
    if extended(&error) == Some(SQLITE_CONSTRAINT_TRIGGER) {
        TriggerRefused.into()
    } else {
        error.into()
    }
}

/// The extended result code, if the failure came from SQLite.
pub(crate) fn extended(error: &sqlx::Error) -> Option<i32> {
    match error {
        sqlx::Error::Database(database) => database.code()?.parse().ok(),
        _ => None,
    }
}

/// Result codes: <https://www.sqlite.org/rescode.html>.
pub(crate) fn classify(error: &sqlx::Error) -> Failure {
    if let sqlx::Error::Encode(error) = error
        && error.is::<RowsLeftOut>()
    {
        return Failure::Constraint;
    }
    let Some(code) = extended(error) else {
        return Failure::Other;
    };
    match (code, code & 0xff) {
        (SQLITE_READONLY_DBMOVED, _) => Failure::Moved,
        (SQLITE_CONSTRAINT_COMMITHOOK, _) => Failure::TurnedDown,
        (_, 5 | 6) => Failure::Busy,
        (_, 8) => Failure::ReadOnly,
        (_, 9) => Failure::Interrupted,
        (_, 10) => Failure::Io,
        (_, 11) => Failure::Corrupt,
        (_, 13) => Failure::Full,
        (_, 14) => Failure::CantOpen,
        (_, 18) => Failure::TooBig,
        (_, 19) => Failure::Constraint,
        (_, 26) => Failure::NotADatabase,
        _ => Failure::Other,
    }
}

/// Whether a statement did not fit the schema.
pub(crate) fn is_sql_error(error: &Error) -> bool {
    let Error::Database { source } = error else {
        return false;
    };
    source.downcast_ref().and_then(extended) == Some(1)
}

/// Whether a value was above SQLite's limit.
pub(crate) fn is_too_big(error: &Error) -> bool {
    let Error::Database { source } = error else {
        return false;
    };
    source
        .downcast_ref()
        .is_some_and(|error| classify(error) == Failure::TooBig)
}

/// The error for a statement that failed before its transaction's commit.
pub(crate) fn to_error(error: sqlx::Error) -> Error {
    to_error_from(classify(&error), cause(error))
}

/// [`to_error`] for a cause that several callers share.
pub(crate) fn to_error_from(failure: Failure, source: BoxError) -> Error {
    match failure {
        Failure::Busy => Error::Busy {
            attempts: 1,
            source,
        },
        Failure::Constraint => Error::Constraint { source },
        Failure::Full => Error::DiskFull { source },
        Failure::Corrupt | Failure::NotADatabase => Error::Corrupt { source },
        _ => Error::Database { source },
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fmt;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// A failure with any result code.
    #[derive(Debug)]
    struct Code(i32);

    impl fmt::Display for Code {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("database is locked")
        }
    }

    impl std::error::Error for Code {}

    impl DatabaseError for Code {
        fn message(&self) -> &'static str {
            "database is locked"
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.to_string().into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> BoxError {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn failures_are_told_apart_by_their_extended_code_not_their_text() {
        for (code, failure) in [
            (5, Failure::Busy),          // SQLITE_BUSY
            (261, Failure::Busy),        // SQLITE_BUSY_RECOVERY
            (517, Failure::Busy),        // SQLITE_BUSY_SNAPSHOT
            (773, Failure::Busy),        // SQLITE_BUSY_TIMEOUT
            (6, Failure::Busy),          // SQLITE_LOCKED
            (262, Failure::Busy),        // SQLITE_LOCKED_SHAREDCACHE
            (8, Failure::ReadOnly),      // SQLITE_READONLY
            (776, Failure::ReadOnly),    // SQLITE_READONLY_ROLLBACK
            (1032, Failure::Moved),      // SQLITE_READONLY_DBMOVED
            (9, Failure::Interrupted),   // SQLITE_INTERRUPT
            (10, Failure::Io),           // SQLITE_IOERR
            (778, Failure::Io),          // SQLITE_IOERR_WRITE
            (1034, Failure::Io),         // SQLITE_IOERR_FSYNC
            (11, Failure::Corrupt),      // SQLITE_CORRUPT
            (267, Failure::Corrupt),     // SQLITE_CORRUPT_VTAB
            (13, Failure::Full),         // SQLITE_FULL
            (14, Failure::CantOpen),     // SQLITE_CANTOPEN
            (19, Failure::Constraint),   // SQLITE_CONSTRAINT
            (787, Failure::Constraint),  // SQLITE_CONSTRAINT_FOREIGNKEY
            (1811, Failure::Constraint), // SQLITE_CONSTRAINT_TRIGGER
            (531, Failure::TurnedDown),  // SQLITE_CONSTRAINT_COMMITHOOK
            (26, Failure::NotADatabase), // SQLITE_NOTADB
            (7, Failure::Other),         // SQLITE_NOMEM
            (18, Failure::TooBig),       // SQLITE_TOOBIG
        ] {
            let error = sqlx::Error::Database(Box::new(Code(code)));
            assert_eq!(classify(&error), failure, "{code}");
        }
        assert_eq!(classify(&sqlx::Error::WorkerCrashed), Failure::Other);
    }
}
