//! The file and its connections. Nothing here knows what a session means.

pub(crate) mod cell;
pub(crate) mod code;
pub(crate) mod connect;
pub(crate) mod counts;
pub(crate) mod group;
pub(crate) mod leftovers;
pub(crate) mod open;
pub(crate) mod presence;
pub(crate) mod queue;
pub(crate) mod readers;
pub(crate) mod status;
pub(crate) mod task;
pub(crate) mod ticket;
pub(crate) mod wal;
pub(crate) mod writer;
