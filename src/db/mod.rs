//! The file and its connections. Nothing here knows what a session is.

pub(crate) mod code;
pub(crate) mod connect;
pub(crate) mod open;
