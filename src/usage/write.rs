//! Storing what was used.

use futures_util::future::BoxFuture;
use sqlx::{Row as _, SqliteConnection};

use super::{COSTS, COUNTERS, Usage};
use crate::db::queue::{Fault, Operation};
use crate::error::{Error, Result};
use crate::id::SessionId;

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

impl Usage {
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
                    // NULL counts as 0, here and below.
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
pub(super) struct RecordUsage {
    pub(super) session: SessionId,
    pub(super) usage: Usage,
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
pub(super) struct SetUsage {
    pub(super) session: SessionId,
    pub(super) usage: Usage,
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
