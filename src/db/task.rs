//! Tasks that end with their caller.

use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// A task whose result one caller waits for. It is stopped when the value is dropped.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T> Task<T> {
    pub(crate) fn new(task: JoinHandle<T>) -> Self {
        Self(task)
    }

    /// Waits for the result.
    pub(crate) async fn join(&mut self) -> Result<T> {
        (&mut self.0).await.map_err(|error| {
            if error.is_cancelled() {
                Error::RuntimeEnded
            } else {
                // A panic below us, which the task kept from the caller.
                Error::Database {
                    source: error.into(),
                }
            }
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
