//! What is traced, kept to be looked at.
#![allow(dead_code, reason = "each test crate uses its part of it")]

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// What tests say that must not reach a log.
pub(crate) const SECRET: &str = "hunter2";

/// Keeps all that is traced.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Entries>>);

#[derive(Default)]
struct Entries {
    /// The fields of each warning, by name.
    warnings: Vec<BTreeMap<&'static str, String>>,
    /// All fields of all spans and events.
    everything: String,
}

impl Log {
    /// Listens to this thread.
    pub(crate) fn listen() -> (Self, DefaultGuard) {
        let log = Self::default();
        let guard = tracing::subscriber::set_default(log.clone());
        (log, guard)
    }

    pub(crate) fn assert_no_secret(&self) {
        let everything = &self.0.lock().unwrap().everything;
        assert!(!everything.contains(SECRET), "{everything}");
    }

    /// `session message column`, of each warning since the last call.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.assert_no_secret();
        let mut entries = self.0.lock().unwrap();
        let told = |mut fields: BTreeMap<_, _>| {
            let [session, message, column] =
                ["session", "message_id", "column"].map(|name| fields.remove(name));
            format!(
                "{} {} {}",
                session.unwrap(),
                message.unwrap_or("-".to_owned()),
                column.unwrap()
            )
        };
        std::mem::take(&mut entries.warnings)
            .into_iter()
            .map(told)
            .collect()
    }
}

struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(
            field.name(),
            format!("{value:?}").trim_matches('"').to_owned(),
        );
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let mut fields = Fields(BTreeMap::new());
        attributes.record(&mut fields);
        writeln!(self.0.lock().unwrap().everything, "{:?}", fields.0).unwrap();
        span::Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields(BTreeMap::new());
        event.record(&mut fields);
        let mut entries = self.0.lock().unwrap();
        writeln!(entries.everything, "{:?}", fields.0).unwrap();
        let ours = event.metadata().target().starts_with("hermes_state");
        if ours && *event.metadata().level() == Level::WARN {
            entries.warnings.push(fields.0);
        }
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}
