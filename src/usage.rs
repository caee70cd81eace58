//! What a session has used: tokens and cost.

use std::fmt;

use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection};

use crate::db::queue::{Fault, Operation};
use crate::error::{Error, Result};
use crate::id::SessionId;
use crate::store::SessionStore;

const COUNTERS: [&str; 5] = [
    "input tokens",
    "output tokens",
    "cache read tokens",
    "cache write tokens",
    "reasoning tokens",
];
const COSTS: [&str; 2] = ["estimated cost", "actual cost"];

/// Tokens and cost: of one exchange for [`record_usage`](SessionStore::record_usage) and
/// [`Turn::usage`](crate::Turn::usage), which add; of the whole session for
/// [`set_usage`](SessionStore::set_usage). What is not given stays as it is.
///
/// Each counter is stored as it is given and nothing is derived: whether output tokens include
/// those of reasoning, or input tokens the cached ones, is the caller's convention.
///
/// ```
/// use hermes_state::Usage;
///
/// let usage = Usage::new()
///     .input_tokens(1_200)
///     .output_tokens(340)
///     .estimated_cost_usd(0.0123)
///     .cost_status("estimated")
///     .billing_provider("openrouter");
/// ```
///
/// `Debug` shows numbers only.
#[derive(Clone, Default, PartialEq)]
#[must_use]
pub struct Usage {
    counters: [Option<u64>; 5],
    costs: [Option<f64>; 2],
    texts: [Option<String>; 6],
    model: Option<String>,
}

impl Usage {
    /// Nothing given.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tokens sent.
    pub fn input_tokens(mut self, tokens: u64) -> Self {
        self.counters[0] = Some(tokens);
        self
    }

    /// Tokens received.
    pub fn output_tokens(mut self, tokens: u64) -> Self {
        self.counters[1] = Some(tokens);
        self
    }

    /// Tokens read from the provider's cache.
    pub fn cache_read_tokens(mut self, tokens: u64) -> Self {
        self.counters[2] = Some(tokens);
        self
    }

    /// Tokens written to the provider's cache.
    pub fn cache_write_tokens(mut self, tokens: u64) -> Self {
        self.counters[3] = Some(tokens);
        self
    }

    /// Tokens of reasoning.
    pub fn reasoning_tokens(mut self, tokens: u64) -> Self {
        self.counters[4] = Some(tokens);
        self
    }

    /// Estimated cost in US dollars: finite, not negative. A session for which none was ever given
    /// has none, which is not the same as 0.
    pub fn estimated_cost_usd(mut self, dollars: f64) -> Self {
        self.costs[0] = Some(dollars);
        self
    }

    /// Cost in US dollars as the provider says: finite, not negative.
    pub fn actual_cost_usd(mut self, dollars: f64) -> Self {
        self.costs[1] = Some(dollars);
        self
    }

    /// Whether the cost is final, such as `estimated` or `final`.
    pub fn cost_status(mut self, status: impl Into<String>) -> Self {
        self.texts[0] = Some(status.into());
        self
    }

    /// Where the cost comes from.
    pub fn cost_source(mut self, source: impl Into<String>) -> Self {
        self.texts[1] = Some(source.into());
        self
    }

    /// Version of the price list.
    pub fn pricing_version(mut self, version: impl Into<String>) -> Self {
        self.texts[2] = Some(version.into());
        self
    }

    /// Who bills, such as `openrouter`.
    pub fn billing_provider(mut self, provider: impl Into<String>) -> Self {
        self.texts[3] = Some(provider.into());
        self
    }

    /// Where requests go.
    pub fn billing_base_url(mut self, url: impl Into<String>) -> Self {
        self.texts[4] = Some(url.into());
        self
    }

    /// How it is billed.
    pub fn billing_mode(mut self, mode: impl Into<String>) -> Self {
        self.texts[5] = Some(mode.into());
        self
    }

    /// The model's name; stored only while the session has none.
    /// [`set_model`](SessionStore::set_model) replaces it.
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// Bytes of all texts.
    pub(crate) fn bytes(&self) -> usize {
        let texts = self.texts.iter().chain([&self.model]);
        texts.flatten().map(String::len).sum()
    }

    /// Checks what needs no look at the file.
    pub(crate) fn check(&self) -> Result<()> {
        for (counter, what) in self.counters.iter().zip(COUNTERS) {
            if counter.is_some_and(|tokens| i64::try_from(tokens).is_err()) {
                return Err(Error::invalid(what, "must be below 2^63"));
            }
        }
        for (cost, what) in self.costs.iter().zip(COSTS) {
            if cost.is_some_and(|dollars| !dollars.is_finite() || dollars < 0.0) {
                return Err(Error::invalid(what, "must be finite and not negative"));
            }
        }
        Ok(())
    }

    /// What the session will have used when this is added; fails unless it exists.
    pub(crate) async fn added_to(
        &self,
        connection: &mut SqliteConnection,
        session: &SessionId,
    ) -> Result<Totals, Fault> {
        let row = sqlx::query(FIND)
            .bind(session.as_str())
            .fetch_optional(connection)
            .await?;
        let Some(row) = row else {
            return Err(Error::SessionNotFound {
                id: session.clone(),
            }
            .into());
        };
        let mut totals = Totals::from(self);
        for (index, (total, what)) in totals.counters.iter_mut().zip(COUNTERS).enumerate() {
            // Any program may have stored anything here; SQLite reads it as a number.
            let before: Option<i64> = row.try_get_unchecked(index)?;
            if let Some(total) = total {
                *total = total
                    .checked_add(before.unwrap_or_default())
                    .ok_or_else(|| Error::invalid(what, "would add up to more than 2^63 - 1"))?;
            }
        }
        for (index, (total, what)) in totals.costs.iter_mut().zip(COSTS).enumerate() {
            let before: Option<f64> = row.try_get_unchecked(COUNTERS.len() + index)?;
            if let Some(total) = total {
                *total += before.unwrap_or_default();
                if !total.is_finite() {
                    return Err(Error::invalid(what, "would add up to infinity").into());
                }
            }
        }
        Ok(totals)
    }
}

impl fmt::Debug for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = f.debug_struct("Usage");
        for (counter, what) in self.counters.iter().zip(COUNTERS) {
            numbers.field(what, counter);
        }
        for (cost, what) in self.costs.iter().zip(COSTS) {
            numbers.field(what, cost);
        }
        numbers.finish_non_exhaustive()
    }
}

const FIND: &str = "SELECT input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, \
     reasoning_tokens, estimated_cost_usd, actual_cost_usd FROM sessions WHERE id = ?1";

/// NULL keeps what is there.
const STORE: &str = "UPDATE sessions SET \
         input_tokens = COALESCE(?2, input_tokens), \
         output_tokens = COALESCE(?3, output_tokens), \
         cache_read_tokens = COALESCE(?4, cache_read_tokens), \
         cache_write_tokens = COALESCE(?5, cache_write_tokens), \
         reasoning_tokens = COALESCE(?6, reasoning_tokens), \
         estimated_cost_usd = COALESCE(?7, estimated_cost_usd), \
         actual_cost_usd = COALESCE(?8, actual_cost_usd), \
         cost_status = COALESCE(?9, cost_status), \
         cost_source = COALESCE(?10, cost_source), \
         pricing_version = COALESCE(?11, pricing_version), \
         billing_provider = COALESCE(?12, billing_provider), \
         billing_base_url = COALESCE(?13, billing_base_url), \
         billing_mode = COALESCE(?14, billing_mode), \
         model = COALESCE(NULLIF(model, ''), ?15, model) \
     WHERE id = ?1";

/// What a session will have used; `None` keeps a value.
pub(crate) struct Totals {
    counters: [Option<i64>; 5],
    costs: [Option<f64>; 2],
    texts: [Option<String>; 6],
    model: Option<String>,
}

impl From<&Usage> for Totals {
    fn from(usage: &Usage) -> Self {
        Self {
            // Checked before.
            counters: usage
                .counters
                .map(|tokens| tokens.map(|tokens| i64::try_from(tokens).unwrap_or(i64::MAX))),
            costs: usage.costs,
            texts: usage.texts.clone(),
            model: usage.model.clone(),
        }
    }
}

impl Totals {
    /// Stores them; fails unless the session exists.
    pub(crate) async fn store(
        &self,
        connection: &mut SqliteConnection,
        session: &SessionId,
    ) -> Result<(), Fault> {
        let mut update = sqlx::query(STORE).bind(session.as_str());
        for counter in self.counters {
            update = update.bind(counter);
        }
        for cost in self.costs {
            update = update.bind(cost);
        }
        for text in self.texts.iter().chain([&self.model]) {
            update = update.bind(text.as_deref());
        }
        if update.execute(connection).await?.rows_affected() == 0 {
            return Err(Error::SessionNotFound {
                id: session.clone(),
            }
            .into());
        }
        Ok(())
    }
}

/// Adds usage to what a session has used.
struct RecordUsage {
    session: SessionId,
    usage: Usage,
}

impl Operation for RecordUsage {
    type Output = ();

    fn bytes(&self) -> usize {
        self.session.as_str().len() + self.usage.bytes()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let totals = self.usage.added_to(connection, &self.session).await?;
            totals.store(connection, &self.session).await
        })
    }
}

/// Sets what a session has used.
struct SetUsage {
    session: SessionId,
    usage: Usage,
}

impl Operation for SetUsage {
    type Output = ();

    fn bytes(&self) -> usize {
        self.session.as_str().len() + self.usage.bytes()
    }

    fn apply<'a>(
        &'a self,
        connection: &'a mut SqliteConnection,
    ) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let totals = Totals::from(&self.usage);
            totals.store(connection, &self.session).await
        })
    }
}

impl SessionStore {
    /// Adds what one exchange used to what the session has used.
    /// [`Turn::usage`](crate::Turn::usage) does so together with the exchange's messages, and not
    /// twice when the turn is appended again.
    ///
    /// Tokens and costs are added; a cost of which there was none yet becomes the one given. Texts
    /// replace what is there, the model fills in only what is empty. What is not given stays.
    ///
    /// ```
    /// # use hermes_state::{NewSession, StoreOptions, Usage};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = StoreOptions::new().open_temporary().await?;
    /// # let id = store.create_session(NewSession::new("cli")).await?;
    /// store.record_usage(&id, Usage::new().input_tokens(100).actual_cost_usd(0.5)).await?;
    /// store.record_usage(&id, Usage::new().input_tokens(20)).await?;
    /// let session = store.session(&id).await?.ok_or("missing")?;
    /// assert_eq!(session.input_tokens, 120);
    /// assert_eq!(session.actual_cost_usd, Some(0.5));
    /// assert_eq!(session.estimated_cost_usd, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::SessionNotFound`].
    /// - [`Error::InvalidInput`]: a number is not allowed, or a sum would be beyond `i64` or `f64`.
    /// - [`Error::MessageTooLarge`]: its texts are over the limit for messages.
    /// - Those of every write. After [`Error::OutcomeUnknown`] only the session's numbers tell
    ///   whether it was added.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the usage either wholly added or not.
    #[doc(alias = "update_token_counts")]
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn record_usage(&self, id: &SessionId, usage: Usage) -> Result<()> {
        usage.check()?;
        let record = RecordUsage {
            session: id.clone(),
            usage,
        };
        self.fits(record.bytes())?;
        self.write(record).await
    }

    /// Sets what the session has used in all, for callers that count themselves. What is not given
    /// stays; the model fills in only what is empty.
    ///
    /// # Errors
    ///
    /// Those of [`record_usage`](Self::record_usage).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves either the old values or the new ones.
    #[doc(alias = "update_token_counts")]
    #[tracing::instrument(level = "debug", skip_all, fields(session = %id))]
    pub async fn set_usage(&self, id: &SessionId, usage: Usage) -> Result<()> {
        usage.check()?;
        let set = SetUsage {
            session: id.clone(),
            usage,
        };
        self.fits(set.bytes())?;
        self.write(set).await
    }
}
