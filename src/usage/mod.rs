//! What a session has used: tokens and cost.

mod write;

use std::fmt;

use crate::db::queue::Operation as _;
use crate::error::{Error, Result};
use crate::id::SessionId;
use crate::store::SessionStore;
use write::{RecordUsage, SetUsage};

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
