//! Session store.

mod db;
mod environment;
mod error;
mod id;
mod json;
mod options;
pub mod retry;
mod store;
mod time;
mod title;

pub use environment::{Environment, FileSystem, JournalMode, Warning};
pub use error::{BoxError, Error, Result};
pub use id::{MessageId, SessionId};
pub use json::Json;
pub use options::{Access, Durability, Journal, StoreOptions};
pub use retry::RetryPolicy;
pub use store::SessionStore;
pub use time::Timestamp;
