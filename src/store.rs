//! The door.

use std::path::Path;

use crate::error::Result;
use crate::options::StoreOptions;

/// One store of sessions: one database file.
#[derive(Clone, Debug)]
pub struct SessionStore {}

impl SessionStore {
    pub(crate) async fn open_with(_path: &Path, _options: StoreOptions) -> Result<Self> {
        Ok(Self {})
    }

    pub(crate) async fn open_temporary_with(_options: StoreOptions) -> Result<Self> {
        Ok(Self {})
    }
}
