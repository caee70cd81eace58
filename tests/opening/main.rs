//! Opening a file: whatever lies at the path, it ends current or untouched, with a typed error.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test crate"
)]

mod adoption;
mod at_once;
#[cfg(unix)]
mod child;
mod compat;
mod damaged;
mod files;
mod original;
mod read_only;
mod support;
