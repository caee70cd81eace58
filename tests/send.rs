//! Every future of the store may be spawned on a runtime of many threads.

use std::time::Duration;

use hermes_state::{
    Environment, Error, MessageRange, MessageStream, NewMessage, NewSession, PruneOptions, Scope,
    SessionId, SessionStore, StoreOptions, TitleClash, TrajectoryFile, TrajectoryOutcome, Turn,
    Usage, save_trajectory,
};

fn is_send(_: &impl Send) {}

fn is_send_and_sync<T: Send + Sync + 'static>() {}

#[test]
fn the_store_and_what_it_returns_may_be_shared() {
    is_send_and_sync::<SessionStore>();
    is_send_and_sync::<StoreOptions>();
    is_send_and_sync::<Environment>();
    is_send_and_sync::<Error>();
}

/// Compiling it is the test: a future that is not `Send` has no `Send` method to begin with.
#[expect(dead_code, reason = "never called")]
fn every_future_may_be_spawned(store: &SessionStore, id: &SessionId, stream: &MessageStream) {
    is_send(stream);
    is_send(&SessionStore::open(""));
    is_send(&StoreOptions::new().open(""));
    is_send(&StoreOptions::new().open_temporary());
    is_send(&store.close());
    is_send(&store.shutdown(Duration::ZERO));

    is_send(&store.create_session(NewSession::new("")));
    is_send(&store.ensure_session(id));
    is_send(&store.ensure_session_from(id, ""));
    is_send(&store.session(id));
    is_send(&store.end_session(id, ""));
    is_send(&store.reopen_session(id));
    is_send(&store.update_system_prompt(id, ""));
    is_send(&store.set_model(id, ""));
    is_send(&store.delete_session(id));
    is_send(&store.prune_sessions(PruneOptions::new()));
    is_send(&store.session_count(Scope::All));
    is_send(&store.message_count(Scope::All));

    is_send(&store.set_session_title(id, "", TitleClash::Refuse));
    is_send(&store.set_session_title_if(id, None, "", TitleClash::Refuse));
    is_send(&store.session_by_title(""));
    is_send(&store.resolve_session_by_title(""));
    is_send(&store.next_title_in_lineage(""));
    is_send(&store.resolve_session_id(""));
    is_send(&store.compression_tip(id));
    is_send(&store.record_usage(id, Usage::new()));
    is_send(&store.set_usage(id, Usage::new()));

    is_send(&store.append_message(id, NewMessage::user("")));
    is_send(&store.append_turn(id, Turn::new([])));
    is_send(&store.clear_messages(id));
    is_send(&store.replace_transcript(id, []));
    is_send(&store.messages(id, MessageRange::all()));
    is_send(&store.conversation(id));

    let file = TrajectoryFile::File("".into());
    is_send(&save_trajectory(file, "", "", TrajectoryOutcome::Failed));
}
