//! Points in time as the file stores them, and the only place that reads the clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// First second that is refused: far in the future as seconds, 1973 as milliseconds.
const END: f64 = 1e11;

/// A point in time: seconds since the Unix epoch.
///
/// A value that a caller gives is finite and 0 ≤ t < 10¹¹, so that milliseconds taken for seconds
/// are refused. A value that comes out of a stored row is whatever another program wrote there.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Timestamp(f64);

impl Timestamp {
    /// The time now, by the system's clock.
    pub fn now() -> Self {
        #[allow(
            clippy::disallowed_methods,
            reason = "the one place that reads the clock"
        )]
        let now = SystemTime::now();
        // A clock before 1970 is a clock that was never set.
        Self(
            now.duration_since(UNIX_EPOCH)
                .unwrap_or(Duration::ZERO)
                .as_secs_f64(),
        )
    }

    /// Seconds since the Unix epoch.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidInput`] unless the value is finite and 0 ≤ `seconds` < 10¹¹.
    pub fn from_unix_seconds(seconds: f64) -> Result<Self> {
        if seconds.is_finite() && (0.0..END).contains(&seconds) {
            // Adding zero turns -0.0, which the range lets through, into 0.0.
            Ok(Self(seconds + 0.0))
        } else {
            Err(Error::invalid(
                "timestamp",
                format!(
                    "must be finite seconds, at least 0 and below {END:e}, not {seconds:e}; milliseconds must be divided by 1000"
                ),
            ))
        }
    }

    pub(crate) const fn from_row(seconds: f64) -> Self {
        Self(seconds)
    }

    /// Seconds since the Unix epoch.
    pub const fn as_unix_seconds(self) -> f64 {
        self.0
    }
}

/// The time now as RFC 3339: local with its offset, or UTC (`Z`) where the system does not tell the
/// zone.
pub(crate) fn local_now() -> String {
    #[allow(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    let now = SystemTime::now();
    // A clock beyond the year 9999 is a clock that was never set.
    let now = jiff::Timestamp::try_from(now).unwrap_or_default();
    match TimeZone::try_system() {
        Ok(zone) => jiff::ZonedDateTime::new(now, zone)
            .strftime("%Y-%m-%dT%H:%M:%S%.6f%:z")
            .to_string(),
        Err(_) => now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
    }
}

impl TryFrom<f64> for Timestamp {
    type Error = Error;

    fn try_from(seconds: f64) -> Result<Self> {
        Self::from_unix_seconds(seconds)
    }
}

impl TryFrom<SystemTime> for Timestamp {
    type Error = Error;

    fn try_from(time: SystemTime) -> Result<Self> {
        match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Self::from_unix_seconds(since.as_secs_f64()),
            Err(_) => Err(Error::invalid("timestamp", "must not be before 1970")),
        }
    }
}

impl From<Timestamp> for f64 {
    fn from(time: Timestamp) -> Self {
        time.0
    }
}
