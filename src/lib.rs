#![doc = include_str!("../README.md")]

mod db;
mod environment;
mod error;
mod id;
mod json;
mod lookup;
mod message;
mod options;
pub mod retry;
mod session;
mod store;
mod time;
mod title;
mod trajectory;
mod usage;

pub use environment::{Environment, FileSystem, JournalMode, Warning};
pub use error::{BoxError, Error, Result};
pub use id::{MessageId, SessionId};
pub use json::Json;
pub use lookup::{Resolved, TitleClash};
pub use message::{
    Appended, Chat, ChatMessage, Content, Conversation, ConversationMessage, Message, MessageRange,
    MessageStream, NewMessage, Role, StoredMessage, Turn,
};
pub use options::{Access, Durability, Journal, StoreOptions};
pub use retry::RetryPolicy;
pub use session::{
    EndReason, NewSession, PruneAge, PruneMode, PruneOptions, PruneReport, Scope, Session,
};
pub use store::{SessionStore, ShutdownReport};
pub use time::Timestamp;
pub use title::sanitize_title;
pub use trajectory::{
    TrajectoryFile, TrajectoryOutcome, convert_scratchpad_to_think, has_incomplete_scratchpad,
    save_trajectory,
};
pub use usage::Usage;
