//! Pruning: deleting what ended long ago.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row as _, Sqlite, SqliteConnection, query::Query};

use super::delete::delete;
use crate::db::cell;
use crate::db::leftovers::Budget;
use crate::db::queue::{Fault, Operation};
use crate::db::readers::{Length, ReadGuard};
use crate::error::{Error, Result};
use crate::store::SessionStore;
use crate::time::Timestamp;

const DAY: Duration = Duration::from_hours(24);

/// A hundred years: whoever asks for more means something else.
const MOST_DAYS: u32 = 36_500;

/// How many sessions are looked at in one read, and deleted at most in one transaction.
const PAGE: usize = 100;

/// From when a session's age counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PruneAge {
    /// The time of its latest message, or when it started if it has none.
    #[default]
    LastActivity,
    /// When it started, however lively it was since.
    Started,
}

/// Whether pruning deletes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum PruneMode {
    /// It deletes.
    #[default]
    Delete,
    /// It only counts what it would delete, and changes nothing.
    DryRun,
}

/// Which sessions [`SessionStore::prune_sessions`] deletes.
///
/// ```
/// use hermes_state::{PruneMode, PruneOptions};
///
/// let options = PruneOptions::new()
///     .older_than_days(30)?
///     .source("telegram")
///     .mode(PruneMode::DryRun);
/// # Ok::<(), hermes_state::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct PruneOptions {
    days: u32,
    age: PruneAge,
    source: Option<String>,
    mode: PruneMode,
}

impl Default for PruneOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl PruneOptions {
    /// Sessions of any source whose last activity is over 90 days ago.
    pub const fn new() -> Self {
        Self {
            days: 90,
            age: PruneAge::LastActivity,
            source: None,
            mode: PruneMode::Delete,
        }
    }

    /// Least age in days of 24 hours. Default: 90.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] for 0 and for more than 36,500 (a hundred years).
    #[doc(alias = "older_than")]
    pub fn older_than_days(mut self, days: u32) -> Result<Self> {
        if !(1..=MOST_DAYS).contains(&days) {
            return Err(Error::invalid(
                "age",
                format!("must be 1 to {MOST_DAYS} days, not {days}"),
            ));
        }
        self.days = days;
        Ok(self)
    }

    /// From when the age counts. Default: from the last activity.
    pub const fn age(mut self, age: PruneAge) -> Self {
        self.age = age;
        self
    }

    /// Only sessions from this source. Default: from any.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether to delete, or only to count. Default: to delete.
    #[doc(alias = "dry_run")]
    pub const fn mode(mut self, mode: PruneMode) -> Self {
        self.mode = mode;
        self
    }
}

/// What pruning deleted, or would delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct PruneReport {
    /// Sessions deleted.
    pub sessions: u64,
    /// Messages deleted with them. Those of long sessions are gone for every reader, but their space
    /// is freed in the background.
    pub messages: u64,
    /// Sessions that were kept and have no parent any more.
    pub orphaned: u64,
}

impl SessionStore {
    /// Deletes sessions that have ended and were not used for long, and returns how many. Nothing is
    /// ever pruned unless this is called.
    ///
    /// - A session that has not ended stays, however old it is.
    /// - A conversation that was compressed goes on in a child session. Such a chain is kept or
    ///   deleted as a whole: it stays as long as one of its sessions does not qualify.
    /// - Other children of a deleted session stay unless they qualify themselves, without a parent.
    /// - Many short transactions, so that other writes pass between. Whether a session qualifies is
    ///   looked at again in the one that deletes it: one that was reopened or used meanwhile stays.
    ///   Sessions that come to qualify while it runs may be left for the next call.
    ///
    /// Interrupted, it has deleted some sessions whole; call it again.
    ///
    /// # Errors
    ///
    /// [`Error::ReadTimeout`], and those of every write. Each step has the store's deadline, not the
    /// whole; what was deleted before stays deleted.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops pruning between two transactions.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn prune_sessions(&self, options: PruneOptions) -> Result<PruneReport> {
        if options.mode == PruneMode::Delete {
            self.ensure_writable()?;
        }
        let age = DAY.as_secs_f64() * f64::from(options.days);
        let rule = Rule {
            before: Timestamp::now().as_unix_seconds() - age,
            age: options.age,
            source: options.source,
        };
        let mut tally = Tally::default();
        let mut after = Some(Vec::new());
        while let Some(last) = after {
            let page;
            (page, after) = self.prune_page(&rule, &last).await?;
            match options.mode {
                PruneMode::Delete => self.prune_now(&rule, &page, &mut tally).await?,
                PruneMode::DryRun => self.prune_dry(&rule, &page, &mut tally).await?,
            }
        }
        Ok(tally.report())
    }

    /// What qualifies after an id, and the id after which to go on, if there may be more.
    async fn prune_page(
        &self,
        rule: &Rule,
        after: &[u8],
    ) -> Result<(Vec<Candidate>, Option<Vec<u8>>)> {
        let read = self.read(Length::Long)?;
        read.run(async { candidates(&mut read.statements(), rule, after).await })
            .await
    }

    async fn prune_now(&self, rule: &Rule, page: &[Candidate], tally: &mut Tally) -> Result<()> {
        let mut ids = page.iter().map(|candidate| candidate.id.clone());
        loop {
            let prune = Prune {
                rule: rule.clone(),
                ids: ids.clone().collect(),
            };
            if prune.ids.is_empty() {
                return Ok(());
            }
            let pruned = self.write(prune).await?;
            for chain in pruned.chains {
                tally.add(chain);
            }
            for _ in 0..pruned.seen {
                ids.next();
            }
        }
    }

    async fn prune_dry(&self, rule: &Rule, page: &[Candidate], tally: &mut Tally) -> Result<()> {
        let read = self.read(Length::Long)?;
        read.run(async {
            let mut reader = read.statements();
            for candidate in page {
                if tally.taken.contains(candidate.id.as_bytes()) {
                    continue;
                }
                let mut members = Vec::new();
                if candidate.is_linked {
                    let query = || rule.bind(sqlx::query(CHAIN).bind(&candidate.id));
                    reader
                        .each(query, |row| members.push(Member::from_row(row)))
                        .await?;
                } else {
                    members.push(Member {
                        id: candidate.id.clone(),
                        qualifies: true,
                    });
                }
                let Some(ids) = whole(members) else { continue };
                let mut chain = Chain::default();
                for id in ids {
                    let query = || sqlx::query(COUNT).bind(&id);
                    reader
                        .each(query, |row| chain.messages += cell::count(row))
                        .await?;
                    let query = || sqlx::query(CHILDREN).bind(&id);
                    reader
                        .each(query, |row| chain.children.push(bytes(row).to_vec()))
                        .await?;
                    chain.ids.push(id);
                }
                tally.add(chain);
            }
            Ok(())
        })
        .await
    }
}

/// Which sessions qualify.
#[derive(Clone)]
struct Rule {
    /// Unix seconds.
    before: f64,
    age: PruneAge,
    source: Option<String>,
}

impl Rule {
    fn bind(
        &self,
        query: Query<'static, Sqlite, SqliteArguments>,
    ) -> Query<'static, Sqlite, SqliteArguments> {
        query
            .bind(&self.source)
            .bind(self.before)
            .bind(self.age == PruneAge::Started)
    }
}

/// SQL for the time of a session's last activity.
macro_rules! last_activity {
    () => {
        "COALESCE((SELECT MAX(timestamp) FROM messages WHERE session_id = sessions.id), \
         sessions.started_at)"
    };
}

/// Whether a session qualifies. ?2: source or NULL; ?3: time; ?4: whether that of its start counts.
macro_rules! qualifies {
    () => {
        concat!(
            "(sessions.ended_at IS NOT NULL AND (?2 IS NULL OR sessions.source = ?2)
              AND CASE WHEN ?4 THEN sessions.started_at ELSE ",
            last_activity!(),
            " END < ?3)"
        )
    };
}

/// Whether `child` continues `parent`, as far as the file tells.
macro_rules! continues {
    ($child:literal, $parent:literal) => {
        concat!(
            "(",
            $parent,
            ".id = ",
            $child,
            ".parent_session_id AND ",
            $parent,
            ".end_reason = 'compression' AND ",
            $child,
            ".started_at >= ",
            $parent,
            ".ended_at)"
        )
    };
}

/// Sessions that qualify by themselves, and whether they are part of a chain. ?1: id before the
/// first, as a blob: those of other programs need not be UTF-8.
const CANDIDATES: &str = concat!(
    "SELECT id, EXISTS (SELECT 1 FROM sessions AS parent WHERE ",
    continues!("sessions", "parent"),
    ") OR EXISTS (SELECT 1 FROM sessions AS child WHERE ",
    continues!("child", "sessions"),
    ") FROM sessions WHERE id > CAST(?1 AS TEXT) AND typeof(id) = 'text' AND ",
    qualifies!(),
    " ORDER BY id LIMIT ?5"
);

/// All sessions of the chain that ?1 is part of, and whether they qualify. UNION: a cycle ends.
const CHAIN: &str = concat!(
    "WITH RECURSIVE chain(id) AS (
         SELECT id FROM sessions WHERE id = ?1
         UNION
         SELECT parent.id FROM chain CROSS JOIN sessions AS child ON child.id = chain.id
         CROSS JOIN sessions AS parent ON ",
    continues!("child", "parent"),
    "    UNION
         SELECT child.id FROM chain CROSS JOIN sessions AS parent ON parent.id = chain.id
         CROSS JOIN sessions AS child ON ",
    continues!("child", "parent"),
    ")
     SELECT sessions.id, ",
    qualifies!(),
    " FROM chain CROSS JOIN sessions ON sessions.id = chain.id"
);

const COUNT: &str = "SELECT COUNT(*) FROM messages WHERE session_id = ?1";
const CHILDREN: &str = "SELECT id FROM sessions WHERE parent_session_id = ?1";

/// A session that qualifies by itself.
struct Candidate {
    id: String,
    is_linked: bool,
}

async fn candidates(
    reader: &mut ReadGuard,
    rule: &Rule,
    after: &[u8],
) -> Result<(Vec<Candidate>, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut last = None;
    let limit = i64::try_from(PAGE).unwrap_or(i64::MAX);
    let query = || rule.bind(sqlx::query(CANDIDATES).bind(after)).bind(limit);
    reader
        .each(query, |row| {
            last = Some(bytes(row).to_vec());
            found.extend(id(row).map(|id| Candidate {
                id,
                // A flag that our statement computed.
                is_linked: row.try_get(1).unwrap_or_default(),
            }));
        })
        .await?;
    Ok((found, last))
}

/// A session of a chain.
struct Member {
    id: String,
    qualifies: bool,
}

impl Member {
    fn from_row(row: &SqliteRow) -> Self {
        let id = id(row);
        Self {
            // What can't be named or judged does not qualify, and so keeps its chain.
            qualifies: id.is_some() && row.try_get(1).unwrap_or_default(),
            id: id.unwrap_or_default(),
        }
    }
}

/// The sessions of a chain that goes; `None` if it stays.
fn whole(members: Vec<Member>) -> Option<Vec<String>> {
    let goes = !members.is_empty() && members.iter().all(|member| member.qualifies);
    goes.then(|| members.into_iter().map(|member| member.id).collect())
}

/// The bytes of an id; none for NULL, which another program may have stored.
fn bytes(row: &SqliteRow) -> &[u8] {
    row.try_get_unchecked(0).unwrap_or_default()
}

/// The id, unless it is one that no call can name.
fn id(row: &SqliteRow) -> Option<String> {
    String::from_utf8(bytes(row).to_vec()).ok()
}

/// A chain, or a session by itself, that was deleted or would be.
#[derive(Default)]
pub(super) struct Chain {
    ids: Vec<String>,
    messages: u64,
    /// Sessions whose parent was one of them.
    children: Vec<Vec<u8>>,
}

/// What was counted so far.
#[derive(Default)]
struct Tally {
    taken: HashSet<Vec<u8>>,
    children: HashSet<Vec<u8>>,
    messages: u64,
}

impl Tally {
    fn add(&mut self, chain: Chain) {
        self.messages += chain.messages;
        self.taken
            .extend(chain.ids.into_iter().map(String::into_bytes));
        self.children.extend(chain.children);
    }

    fn report(&self) -> PruneReport {
        let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
        PruneReport {
            sessions: number(self.taken.len()),
            messages: self.messages,
            orphaned: number(self.children.difference(&self.taken).count()),
        }
    }
}

/// Deletes those of some sessions that still qualify, with their chains, as many as one transaction
/// may.
struct Prune {
    rule: Rule,
    ids: Vec<String>,
}

struct Pruned {
    /// How many of the ids were looked at; at least one.
    seen: usize,
    chains: Vec<Chain>,
}

impl Operation for Prune {
    type Output = Pruned;

    const LEAVES_ORPHANS: bool = true;

    fn bytes(&self) -> usize {
        self.ids.iter().map(String::len).sum()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<Pruned, Fault>> {
        Box::pin(async move {
            let mut budget = Budget::new();
            let mut pruned = Pruned {
                seen: 0,
                chains: Vec::new(),
            };
            for id in &self.ids {
                if budget.is_used_up() {
                    break;
                }
                pruned.seen += 1;
                let members = self.rule.bind(sqlx::query(CHAIN).bind(id));
                let members = members.fetch_all(&mut *connection).await?;
                let Some(ids) = whole(members.iter().map(Member::from_row).collect()) else {
                    continue;
                };
                let mut chain = Chain::default();
                for id in ids {
                    let messages = sqlx::query(COUNT).bind(&id);
                    chain.messages += cell::count(&messages.fetch_one(&mut *connection).await?);
                    let children = sqlx::query(CHILDREN).bind(&id);
                    let children = children.fetch_all(&mut *connection).await?;
                    let ids = children.iter().map(|row| bytes(row).to_vec());
                    chain.children.extend(ids);
                    if delete(connection, &id, &mut budget).await? {
                        chain.ids.push(id);
                    }
                }
                pruned.chains.push(chain);
            }
            Ok(pruned)
        })
    }
}
