//! The door.

use std::path::Path;

use crate::db::open::{Opened, open};
use crate::environment::Environment;
use crate::error::Result;
use crate::options::StoreOptions;

/// One store of sessions: one database file.
#[derive(Clone, Debug)]
pub struct SessionStore {
    opened: std::sync::Arc<Opened>,
}

impl SessionStore {
    pub(crate) async fn open_with(path: &Path, options: StoreOptions) -> Result<Self> {
        let opened = open(path, &options).await?;
        Ok(Self {
            opened: opened.into(),
        })
    }

    pub(crate) async fn open_temporary_with(options: StoreOptions) -> Result<Self> {
        Self::open_with(&std::env::temp_dir().join("x"), options).await
    }

    /// What the store found.
    pub fn environment(&self) -> Environment {
        self.opened.environment.clone()
    }

    /// Closes it.
    ///
    /// # Errors
    ///
    /// None.
    pub async fn close(&self) -> Result<()> {
        Ok(())
    }
}
