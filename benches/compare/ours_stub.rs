//! Stands in for the store until it can append and load.

use std::path::Path;

use crate::rows::{Row, Work};
use crate::workload::Workload;
use crate::{Contestant, Result};

pub(crate) struct Ours;

impl Ours {
    #[allow(clippy::unnecessary_wraps, reason = "the real one makes a runtime")]
    pub(crate) fn new(_workload: &Workload) -> Result<Self> {
        Ok(Self)
    }
}

impl Contestant for Ours {
    fn open(&mut self, _row: &Row, _folder: &Path) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, _work: Work, _count: u32) -> Result<f64> {
        Ok(f64::NAN)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
