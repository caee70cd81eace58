//! Random operations, ours and another program's, on a file and on a plain model of it that shares
//! no code with the crate: every answer, every read and at the end every cell must agree.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::future_not_send,
    reason = "a test crate, whose other program's connection stays on its thread"
)]

mod support;

use std::collections::BTreeMap;

use futures_util::TryStreamExt as _;
use futures_util::future::join_all;
use hermes_state::{
    Appended, Content, EndReason, Error, Message, MessageId, MessageRange, NewMessage, NewSession,
    Resolved, Role, Scope, SessionId, SessionStore, Timestamp, TitleClash, Turn, Usage,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rusqlite::{Connection, params};
use support::{File, assert_index_is_right, id, json, rows};

const SESSIONS: [&str; 5] = ["s", "S", "7", "a'\"b", "会话"];
const KEYS: [&str; 3] = ["k", "K", "键\0"];
const ROLES: [&str; 5] = ["system", "user", "assistant", "tool", "other"];
const TEXTS: [&str; 8] = [
    "",
    "a",
    "7",
    "null",
    "a\0b",
    "\"[1]\\",
    "数据🦀",
    "line\nline",
];
const TIMES: [f64; 5] = [
    0.0,
    1.5,
    1_700_000_000.123_456_7,
    1_700_000_000.1,
    99_999_999_999.9,
];

/// Titles as given, and as stored.
const TITLES: [(&str, &str); 7] = [
    ("a", "a"),
    (" a\t#2\n", "a #2"),
    ("a #9", "a #9"),
    ("a #x", "a #x"),
    ("\u{200b} ", ""),
    ("数%_ ", "数%_"),
    ("数%_ #18446744073709551616", "数%_ #18446744073709551616"),
];

/// Tool calls, how many they are, and the name of the first.
const CALLS: [(&str, i64, Option<&str>); 6] = [
    ("[]", 0, None),
    ("null", 0, None),
    (
        r#"[{"function":{"name":"ls","arguments":"{}"}}]"#,
        1,
        Some("ls"),
    ),
    (r#"[ {"name":"a"}, {"name":"b"}, 7 ]"#, 3, Some("a")),
    (r#"{"name":"alone"}"#, 1, Some("alone")),
    (r#""[{\"name\":\"twice\"}]""#, 1, None),
];

/// Parts, and the text that stands for them.
const PARTS: [(&str, &str); 4] = [
    ("[]", ""),
    (r#"[{"type":"text","text":"a"}]"#, "a"),
    (
        r#"[{"type":"text","text":"数"},{"type":"image","data":"eA=="}]"#,
        "数\n[image]",
    ),
    (r#"["x", {"type":"text","text":"\ud83e\udd80"}]"#, "x\n🦀"),
];

#[derive(Clone, Debug)]
enum Says {
    Nothing,
    Text(&'static str),
    Parts(usize),
}

/// A message to be stored.
#[derive(Clone, Debug)]
struct New {
    role: &'static str,
    says: Says,
    calls: Option<usize>,
    name: Option<&'static str>,
    time: f64,
    tokens: Option<u32>,
    extra: Option<usize>,
}

#[derive(Clone, Debug)]
enum Expect {
    Anything,
    Empty,
    Last,
    First,
}

/// Where a transcript has to end: anywhere, or behind this message, or before the first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Anywhere,
    At(Option<i64>),
}

#[derive(Clone, Debug)]
struct Append {
    session: &'static str,
    messages: Vec<New>,
    key: Option<&'static str>,
    expect: Expect,
    usage: Option<u32>,
}

#[derive(Clone, Debug)]
struct Create {
    session: &'static str,
    source: &'static str,
    user: Option<&'static str>,
    model: Option<&'static str>,
    prompt: Option<&'static str>,
    parent: Option<&'static str>,
}

#[derive(Clone, Debug)]
enum Step {
    Create(Create),
    Ensure(&'static str),
    End(&'static str, &'static str),
    Reopen(&'static str),
    SetModel(&'static str, &'static str),
    SetPrompt(&'static str, &'static str),
    SetTitle(&'static str, usize, TitleClash),
    /// Only while it has this title.
    SetTitleIf(&'static str, Option<usize>, usize, TitleClash),
    RecordUsage(&'static str, u32),
    SetUsage(&'static str, u32),
    FindTitle(usize),
    FindId(&'static str, usize),
    Append(Append),
    /// At the same time, so that the store writes them together.
    Together(Vec<Append>),
    Clear(&'static str),
    Replace(&'static str, Vec<New>),
    OpenAgain,
    Read(&'static str, usize, Option<Index>, Option<Index>),
    StockCreate(&'static str),
    StockAppend(&'static str, &'static str),
    StockChange(Index, &'static str),
    StockDelete(Index),
    StockDeleteSession(&'static str),
    StockForgetCounters(&'static str),
}

fn any_message() -> impl Strategy<Value = New> {
    let says = prop_oneof![
        1 => Just(Says::Nothing),
        3 => select(&TEXTS[..]).prop_map(Says::Text),
        1 => (0..PARTS.len()).prop_map(Says::Parts),
    ];
    let name = proptest::option::weighted(0.2, select(&TEXTS[1..4]));
    (
        select(&ROLES[..]),
        says,
        proptest::option::weighted(0.3, 0..CALLS.len()),
        name,
        select(&TIMES[..]),
        proptest::option::of(any::<u32>()),
        proptest::option::weighted(0.2, 0..PARTS.len()),
    )
        .prop_map(|(role, says, calls, name, time, tokens, extra)| New {
            role,
            says,
            calls,
            name,
            time,
            tokens,
            extra,
        })
}

fn any_append() -> impl Strategy<Value = Append> {
    let expect = prop_oneof![
        4 => Just(Expect::Anything),
        1 => Just(Expect::Empty),
        2 => Just(Expect::Last),
        1 => Just(Expect::First),
    ];
    (
        select(&SESSIONS[..]),
        proptest::collection::vec(any_message(), 0..5),
        proptest::option::weighted(0.3, select(&KEYS[..])),
        expect,
        proptest::option::weighted(0.2, any::<u32>()),
    )
        .prop_map(|(session, messages, key, expect, usage)| Append {
            session,
            messages,
            key,
            expect,
            usage,
        })
}

fn any_step() -> impl Strategy<Value = Step> {
    let session = || select(&SESSIONS[..]);
    let text = || select(&TEXTS[..]);
    let title = || 0..TITLES.len();
    let clash = || select(&[TitleClash::Refuse, TitleClash::NextNumber][..]);
    let some_text = || proptest::option::of(select(&TEXTS[..]));
    let create = (
        session(),
        select(&["cli", "telegram", "unknown"][..]),
        some_text(),
        some_text(),
        some_text(),
        proptest::option::of(session()),
    )
        .prop_map(|(session, source, user, model, prompt, parent)| {
            Step::Create(Create {
                session,
                source,
                user,
                model,
                prompt,
                parent,
            })
        });
    let index = || proptest::option::of(any::<Index>());
    let set_title_if = (session(), proptest::option::of(title()), title(), clash())
        .prop_map(|(s, expected, title, clash)| Step::SetTitleIf(s, expected, title, clash));
    let titles_and_usage = prop_oneof![
        3 => (session(), title(), clash()).prop_map(|(s, n, clash)| Step::SetTitle(s, n, clash)),
        2 => set_title_if,
        1 => (session(), any::<u32>()).prop_map(|(s, n)| Step::RecordUsage(s, n)),
        1 => (session(), any::<u32>()).prop_map(|(s, n)| Step::SetUsage(s, n)),
        1 => title().prop_map(Step::FindTitle),
        1 => (session(), 0..3_usize).prop_map(|(s, n)| Step::FindId(s, n)),
    ];
    prop_oneof![
        9 => titles_and_usage,
        6 => create,
        2 => session().prop_map(Step::Ensure),
        2 => (session(), text()).prop_map(|(s, text)| Step::End(s, text)),
        1 => session().prop_map(Step::Reopen),
        1 => (session(), text()).prop_map(|(s, text)| Step::SetModel(s, text)),
        1 => (session(), text()).prop_map(|(s, text)| Step::SetPrompt(s, text)),
        8 => any_append().prop_map(Step::Append),
        5 => proptest::collection::vec(any_append(), 2..6).prop_map(Step::Together),
        1 => session().prop_map(Step::Clear),
        1 => (session(), proptest::collection::vec(any_message(), 0..4))
            .prop_map(|(s, messages)| Step::Replace(s, messages)),
        1 => Just(Step::OpenAgain),
        6 => (session(), 0..6_usize, index(), index())
            .prop_map(|(s, limit, after, before)| Step::Read(s, limit, after, before)),
        1 => session().prop_map(Step::StockCreate),
        3 => (session(), text()).prop_map(|(s, text)| Step::StockAppend(s, text)),
        2 => (any::<Index>(), text()).prop_map(|(index, text)| Step::StockChange(index, text)),
        2 => any::<Index>().prop_map(Step::StockDelete),
        1 => session().prop_map(Step::StockDeleteSession),
        1 => session().prop_map(Step::StockForgetCounters),
    ]
}

/// A stored message.
#[derive(Clone, Debug)]
struct Row {
    id: i64,
    session: &'static str,
    role: &'static str,
    text: Option<String>,
    parts: Option<(&'static str, &'static str)>,
    calls: Option<&'static str>,
    name: Option<String>,
    time: f64,
    tokens: Option<u32>,
    extra: Option<&'static str>,
}

#[derive(Clone, Debug, Default)]
struct Session {
    source: &'static str,
    user: Option<&'static str>,
    model: Option<&'static str>,
    prompt: Option<&'static str>,
    parent: Option<&'static str>,
    ended: Option<&'static str>,
    counters: Option<(i64, i64)>,
    title: Option<String>,
    input: u64,
    keys: BTreeMap<&'static str, Vec<i64>>,
}

#[derive(Debug, Default)]
struct Model {
    sessions: BTreeMap<&'static str, Session>,
    messages: Vec<Row>,
    /// The last id that was given out.
    last: i64,
}

/// What a write answers.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    Done,
    Changed(bool),
    Count(u64),
    Ids(Vec<i64>),
    Appended(Vec<i64>, bool),
    NoSession(String),
    NoParent(String),
    Cycle,
    Conflict(Option<i64>),
    Title(Option<String>),
    TitleTaken(String),
    TitleChanged,
}

/// What is before the number of a title, and the number.
fn numbered(title: &str) -> (&str, Option<u64>) {
    let parts = title.rsplit_once(" #");
    match parts.map(|(base, digits)| (base, digits.parse())) {
        Some((base, Ok(number))) => (base, Some(number)),
        _ => (title, None),
    }
}

impl Model {
    fn transcript(&self, session: &str) -> Vec<&Row> {
        self.messages
            .iter()
            .filter(|row| row.session == session)
            .collect()
    }

    fn with(&mut self, session: &str, change: impl FnOnce(&mut Session) -> Answer) -> Answer {
        match self.sessions.get_mut(session) {
            Some(session) => change(session),
            None => Answer::NoSession(session.to_owned()),
        }
    }

    fn set_title(&mut self, session: &'static str, title: usize, clash: TitleClash) -> Answer {
        if !self.sessions.contains_key(session) {
            return Answer::NoSession(session.to_owned());
        }
        let mut title = Some(TITLES[title].1.to_owned()).filter(|title| !title.is_empty());
        let others = || self.sessions.iter().filter(|(name, _)| **name != session);
        let owner = others().find(|(_, other)| title.is_some() && other.title == title);
        match (owner, &title) {
            (Some((owner, _)), _) if clash == TitleClash::Refuse => {
                return Answer::TitleTaken((*owner).to_owned());
            }
            (Some(_), Some(taken)) => {
                let (base, _) = numbered(taken);
                let numbers = others()
                    .filter_map(|(_, other)| other.title.as_deref().map(numbered))
                    .filter(|(other, _)| *other == base)
                    .map(|(_, number)| number.unwrap_or(1));
                title = Some(format!("{base} #{}", numbers.max().unwrap() + 1));
            }
            _ => {}
        }
        self.sessions
            .get_mut(session)
            .unwrap()
            .title
            .clone_from(&title);
        Answer::Title(title)
    }

    fn create(&mut self, new: &Create) -> Answer {
        if let Some(parent) = new.parent {
            let mut ancestors = Vec::new();
            let mut next = Some(parent);
            while let Some(ancestor) = next {
                ancestors.push(ancestor);
                next = self
                    .sessions
                    .get(ancestor)
                    .and_then(|session| session.parent);
            }
            let settled = self
                .sessions
                .get(new.session)
                .is_some_and(|session| session.parent.is_some());
            if parent == new.session || (ancestors.contains(&new.session) && !settled) {
                return Answer::Cycle;
            }
            if !self.sessions.contains_key(parent) {
                return Answer::NoParent(parent.to_owned());
            }
        }
        let session = self.sessions.entry(new.session).or_insert_with(|| Session {
            source: new.source,
            counters: Some((0, 0)),
            ..Session::default()
        });
        if session.source == "unknown" {
            session.source = new.source;
        }
        session.user = session.user.or(new.user);
        session.model = session.model.or(new.model);
        session.prompt = session.prompt.or(new.prompt);
        session.parent = session.parent.or(new.parent);
        Answer::Done
    }

    /// Puts rows at the end; returns their ids and how many tools they call.
    fn push(&mut self, session: &'static str, messages: &[New]) -> (Vec<i64>, i64) {
        let mut tools = 0;
        let mut ids = Vec::new();
        for message in messages {
            self.last += 1;
            ids.push(self.last);
            let calls = message
                .calls
                .map(|n| CALLS[n])
                .filter(|(_, count, _)| *count > 0);
            tools += calls.map_or(0, |(_, count, _)| count);
            let parts = match message.says {
                Says::Parts(n) => Some(PARTS[n]),
                _ => None,
            };
            let text = match message.says {
                Says::Text(text) => Some(text),
                _ => parts.map(|(_, text)| text),
            };
            self.messages.push(Row {
                id: self.last,
                session,
                role: message.role,
                text: text.map(str::to_owned),
                parts,
                calls: calls.map(|(json, _, _)| json),
                name: message
                    .name
                    .or(calls.and_then(|(_, _, name)| name))
                    .map(str::to_owned),
                time: message.time,
                tokens: message.tokens,
                extra: message.extra.map(|n| PARTS[n].0),
            });
        }
        (ids, tools)
    }

    fn append(&mut self, append: &Append, expected: End) -> Answer {
        let name = append.session;
        let Some(session) = self.sessions.get(name) else {
            return Answer::NoSession(name.to_owned());
        };
        if let Some(before) = append.key.and_then(|key| session.keys.get(key)) {
            return Answer::Appended(before.clone(), true);
        }
        let last = self.transcript(name).iter().map(|row| row.id).max();
        if expected != End::Anywhere && expected != End::At(last) {
            return Answer::Conflict(last);
        }
        let (ids, tools) = self.push(name, &append.messages);
        let session = self.sessions.get_mut(name).unwrap();
        let (messages, calls) = session.counters.unwrap_or((0, 0));
        session.counters = Some((messages + i64::try_from(ids.len()).unwrap(), calls + tools));
        session.input += u64::from(append.usage.unwrap_or(0));
        if let Some(key) = append.key {
            session.keys.insert(key, ids.clone());
        }
        Answer::Appended(ids, false)
    }

    fn replace(&mut self, session: &'static str, messages: &[New]) -> Answer {
        if !self.sessions.contains_key(session) {
            return Answer::NoSession(session.to_owned());
        }
        self.messages.retain(|row| row.session != session);
        let (ids, tools) = self.push(session, messages);
        let counters = Some((i64::try_from(ids.len()).unwrap(), tools));
        self.sessions.get_mut(session).unwrap().counters = counters;
        Answer::Ids(ids)
    }
}

fn new_message(new: &New) -> NewMessage {
    let mut message = NewMessage::new(Role::from(new.role))
        .timestamp(Timestamp::from_unix_seconds(new.time).unwrap());
    match new.says {
        Says::Nothing => {}
        Says::Text(text) => message = message.content(text),
        Says::Parts(n) => message = message.content(json(PARTS[n].0)),
    }
    if let Some(n) = new.calls {
        message = message.tool_calls(json(CALLS[n].0));
    }
    if let Some(name) = new.name {
        message = message.tool_name(name);
    }
    if let Some(tokens) = new.tokens {
        message = message.token_count(u64::from(tokens));
    }
    if let Some(n) = new.extra {
        message = message.extra(json(PARTS[n].0));
    }
    message
}

fn refusal(error: Error) -> Answer {
    match error {
        Error::SessionNotFound { id } => Answer::NoSession(id.into()),
        Error::ParentNotFound { parent } => Answer::NoParent(parent.into()),
        Error::LineageCycle { .. } => Answer::Cycle,
        Error::Conflict { actual } => Answer::Conflict(actual.map(MessageId::get)),
        Error::TitleTaken { by } => Answer::TitleTaken(by.into()),
        Error::TitleChanged => Answer::TitleChanged,
        other => panic!("{other:?}"),
    }
}

fn answer<T>(result: Result<T, Error>, answer: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(refusal, answer)
}

fn appended(appended: Appended) -> Answer {
    Answer::Appended(numbers(appended.ids), appended.repeated)
}

fn numbers(ids: Vec<MessageId>) -> Vec<i64> {
    ids.into_iter().map(MessageId::get).collect()
}

/// The file, and what it should hold.
struct Both {
    file: File,
    store: SessionStore,
    stock: Connection,
    model: Model,
}

impl Both {
    async fn new() -> Self {
        let file = File::new();
        let store = file.open().await;
        let stock = file.stock();
        Self {
            file,
            store,
            stock,
            model: Model::default(),
        }
    }

    /// The turn, and where the model expects the transcript to end.
    fn turn(&self, append: &Append) -> (Turn, End) {
        let mut turn = Turn::new(append.messages.iter().map(new_message));
        if let Some(key) = append.key {
            turn = turn.key(key);
        }
        if let Some(tokens) = append.usage {
            turn = turn.usage(Usage::new().input_tokens(tokens.into()));
        }
        let transcript = self.model.transcript(append.session);
        let end = match append.expect {
            Expect::Anything => return (turn, End::Anywhere),
            Expect::Empty => None,
            Expect::Last => transcript.iter().map(|row| row.id).max(),
            Expect::First => transcript.iter().map(|row| row.id).min(),
        };
        let turn = match end {
            Some(id) => turn.expect_last(MessageId::new(id)),
            None => turn.expect_empty(),
        };
        (turn, End::At(end))
    }

    /// Takes a step on both sides.
    async fn take(&mut self, step: &Step) {
        let store = self.store.clone();
        let done = |()| Answer::Done;
        let (found, expected) = match step {
            Step::Create(new) => {
                let mut session = NewSession::new(new.source).id(id(new.session));
                session = new.user.into_iter().fold(session, NewSession::user_id);
                session = new.model.into_iter().fold(session, NewSession::model);
                session = new
                    .prompt
                    .into_iter()
                    .fold(session, NewSession::system_prompt);
                session = new
                    .parent
                    .into_iter()
                    .map(id)
                    .fold(session, NewSession::parent);
                let created = store.create_session(session).await;
                (answer(created, |_| Answer::Done), self.model.create(new))
            }
            Step::Ensure(name) => {
                let new = Session {
                    source: "unknown",
                    counters: Some((0, 0)),
                    ..Session::default()
                };
                self.model.sessions.entry(name).or_insert(new);
                (
                    answer(store.ensure_session(&id(name)).await, done),
                    Answer::Done,
                )
            }
            Step::End(name, reason) => (
                answer(store.end_session(&id(name), *reason).await, Answer::Changed),
                self.model.with(name, |session| {
                    let open = session.ended.is_none();
                    session.ended = session.ended.or(Some(reason));
                    Answer::Changed(open)
                }),
            ),
            Step::Reopen(name) => (
                answer(store.reopen_session(&id(name)).await, done),
                self.model.with(name, |session| {
                    session.ended = None;
                    Answer::Done
                }),
            ),
            Step::SetModel(..)
            | Step::SetPrompt(..)
            | Step::SetTitle(..)
            | Step::SetTitleIf(..)
            | Step::RecordUsage(..)
            | Step::SetUsage(..) => self.set_a_field(step).await,
            Step::FindTitle(title) => return self.find_title(TITLES[*title].1).await,
            Step::FindId(name, chars) => return self.find_id(name, *chars).await,
            Step::Append(append) => {
                let (turn, end) = self.turn(append);
                let result = store.append_turn(&id(append.session), turn).await;
                (answer(result, appended), self.model.append(append, end))
            }
            Step::Together(appends) => return self.append_together(appends).await,
            Step::Clear(name) => {
                let count = self.model.transcript(name).len();
                let cleared = self.model.replace(name, &[]);
                let expected = match cleared {
                    Answer::Ids(_) => Answer::Count(u64::try_from(count).unwrap()),
                    refused => refused,
                };
                (
                    answer(store.clear_messages(&id(name)).await, Answer::Count),
                    expected,
                )
            }
            Step::Replace(name, messages) => {
                let new = messages.iter().map(new_message);
                let replaced = store.replace_transcript(&id(name), new).await;
                let found = answer(replaced, |ids| Answer::Ids(numbers(ids)));
                (found, self.model.replace(name, messages))
            }
            Step::OpenAgain => {
                self.store.close().await.unwrap();
                self.store = self.file.open().await;
                return;
            }
            Step::Read(name, limit, after, before) => {
                return self.read(name, *limit, *after, *before).await;
            }
            stock => return self.take_as_another_program(stock),
        };
        assert_eq!(found, expected, "{step:?}");
    }

    /// Takes a step that sets a field of a session; returns both answers.
    async fn set_a_field(&mut self, step: &Step) -> (Answer, Answer) {
        let store = self.store.clone();
        let done = |()| Answer::Done;
        match step {
            Step::SetModel(name, text) => (
                answer(store.set_model(&id(name), *text).await, done),
                self.model.with(name, |session| {
                    session.model = Some(text);
                    Answer::Done
                }),
            ),
            Step::SetPrompt(name, text) => (
                answer(store.update_system_prompt(&id(name), *text).await, done),
                self.model.with(name, |session| {
                    session.prompt = Some(text);
                    Answer::Done
                }),
            ),
            Step::SetTitle(name, title, clash) => (
                answer(
                    store
                        .set_session_title(&id(name), TITLES[*title].0, *clash)
                        .await,
                    Answer::Title,
                ),
                self.model.set_title(name, *title, *clash),
            ),
            Step::SetTitleIf(name, expected, title, clash) => {
                let expected = expected.map(|n| TITLES[n].1);
                let set = store
                    .set_session_title_if(&id(name), expected, TITLES[*title].0, *clash)
                    .await;
                let now = self.model.sessions.get(name);
                let answer_of_model = match now.map(|session| session.title.as_deref()) {
                    Some(title) if title != expected => Answer::TitleChanged,
                    _ => self.model.set_title(name, *title, *clash),
                };
                (answer(set, Answer::Title), answer_of_model)
            }
            Step::RecordUsage(name, tokens) => {
                let usage = Usage::new().input_tokens((*tokens).into());
                (
                    answer(store.record_usage(&id(name), usage).await, done),
                    self.model.with(name, |session| {
                        session.input += u64::from(*tokens);
                        Answer::Done
                    }),
                )
            }
            Step::SetUsage(name, tokens) => {
                let usage = Usage::new().input_tokens((*tokens).into());
                (
                    answer(store.set_usage(&id(name), usage).await, done),
                    self.model.with(name, |session| {
                        session.input = (*tokens).into();
                        Answer::Done
                    }),
                )
            }
            other => panic!("{other:?}"),
        }
    }

    async fn find_title(&self, title: &str) {
        let named = |(name, session): (&&'static str, &Session)| {
            session.title.clone().map(|title| (title, id(name)))
        };
        let titles: BTreeMap<String, SessionId> =
            self.model.sessions.iter().filter_map(named).collect();
        let exact = self.store.session_by_title(title).await.unwrap();
        let exact = exact.map(|session| session.id);
        assert_eq!(exact.as_ref(), titles.get(title));
        let variants = titles.iter().filter_map(|(other, id)| {
            let (base, number) = numbered(other);
            (base == title).then_some((number?, id))
        });
        let expected = variants.max().map(|(_, id)| id).or(exact.as_ref());
        let found = self.store.resolve_session_by_title(title).await.unwrap();
        assert_eq!(found.as_ref(), expected, "{title} in {titles:?}");
    }

    async fn find_id(&self, name: &str, chars: usize) {
        let prefix: String = name.chars().take(chars).collect();
        let names = self.model.sessions.keys();
        let mut found: Vec<SessionId> = names
            .filter(|name| !prefix.is_empty() && name.starts_with(&prefix))
            .map(|name| id(name))
            .collect();
        let expected = match found.len() {
            0 => Resolved::None,
            1 => Resolved::One(found.remove(0)),
            _ => Resolved::Several(found),
        };
        let resolved = self.store.resolve_session_id(&prefix).await.unwrap();
        assert_eq!(resolved, expected, "{prefix:?}");
    }

    async fn append_together(&mut self, appends: &[Append]) {
        let turns: Vec<_> = appends.iter().map(|append| self.turn(append)).collect();
        let sessions: Vec<SessionId> = appends.iter().map(|append| id(append.session)).collect();
        let calls = turns.iter().zip(&sessions);
        let calls = calls.map(|((turn, _), id)| self.store.append_turn(id, turn.clone()));
        let found: Vec<Answer> = join_all(calls)
            .await
            .into_iter()
            .map(|result| answer(result, appended))
            .collect();
        let expected: Vec<Answer> = appends
            .iter()
            .zip(&turns)
            .map(|(append, (_, end))| self.model.append(append, *end))
            .collect();
        assert_eq!(found, expected, "{appends:?}");
    }

    fn take_as_another_program(&mut self, step: &Step) {
        let (stock, model) = (&self.stock, &mut self.model);
        let picked = |index: &Index, model: &Model| {
            (!model.messages.is_empty()).then(|| index.index(model.messages.len()))
        };
        match step {
            Step::StockCreate(name) => {
                stock
                    .execute(
                        "INSERT OR IGNORE INTO sessions(id, source, started_at)
                         VALUES (?1, 'stock', 1.0)",
                        [name],
                    )
                    .unwrap();
                let new = Session {
                    source: "stock",
                    counters: Some((0, 0)),
                    ..Session::default()
                };
                model.sessions.entry(name).or_insert(new);
            }
            Step::StockAppend(name, text) if model.sessions.contains_key(name) => {
                stock
                    .execute(
                        "INSERT INTO messages(session_id, role, content, timestamp)
                         VALUES (?1, 'user', ?2, 2.0)",
                        params![name, text],
                    )
                    .unwrap();
                stock
                    .execute(
                        "UPDATE sessions SET message_count = message_count + 1 WHERE id = ?1",
                        [name],
                    )
                    .unwrap();
                let new = New {
                    role: "user",
                    says: Says::Text(text),
                    calls: None,
                    name: None,
                    time: 2.0,
                    tokens: None,
                    extra: None,
                };
                model.push(name, &[new]);
                // NULL plus one is NULL.
                let session = model.sessions.get_mut(name).unwrap();
                session.counters = session
                    .counters
                    .map(|(messages, tools)| (messages + 1, tools));
            }
            Step::StockChange(index, text) => {
                if let Some(n) = picked(index, model) {
                    let row = &mut model.messages[n];
                    let change = "UPDATE messages SET content = ?2 WHERE id = ?1";
                    stock.execute(change, params![row.id, text]).unwrap();
                    row.text = Some((*text).to_owned());
                }
            }
            Step::StockDelete(index) => {
                if let Some(n) = picked(index, model) {
                    let row = model.messages.remove(n);
                    stock
                        .execute("DELETE FROM messages WHERE id = ?1", [row.id])
                        .unwrap();
                }
            }
            Step::StockDeleteSession(name) => {
                for delete in [
                    "UPDATE sessions SET parent_session_id = NULL WHERE parent_session_id = ?1",
                    "DELETE FROM messages WHERE session_id = ?1",
                    "DELETE FROM sessions WHERE id = ?1",
                ] {
                    stock.execute(delete, [name]).unwrap();
                }
                model.sessions.remove(name);
                model.messages.retain(|row| row.session != *name);
                let children = model.sessions.values_mut();
                for child in children.filter(|child| child.parent == Some(name)) {
                    child.parent = None;
                }
            }
            Step::StockForgetCounters(name) => {
                stock
                    .execute(
                        "UPDATE sessions SET message_count = NULL, tool_call_count = NULL
                         WHERE id = ?1",
                        [name],
                    )
                    .unwrap();
                if let Some(session) = model.sessions.get_mut(name) {
                    session.counters = None;
                }
            }
            _ => {}
        }
    }

    async fn read(&self, name: &str, limit: usize, after: Option<Index>, before: Option<Index>) {
        let transcript = self.model.transcript(name);
        let pick = |index: Option<Index>| {
            index
                .filter(|_| !transcript.is_empty())
                .map(|i| transcript[i.index(transcript.len())].id)
        };
        let (after, before) = (pick(after), pick(before));
        let inside: Vec<&Row> = transcript
            .iter()
            .copied()
            .filter(|row| after.is_none_or(|id| row.id > id) && before.is_none_or(|id| row.id < id))
            .collect();
        let end = inside.len().saturating_sub(limit);
        for (range, expected) in [
            (MessageRange::all(), &inside[..]),
            (
                MessageRange::first(limit),
                &inside[..limit.min(inside.len())],
            ),
            (MessageRange::last(limit), &inside[end..]),
        ] {
            let range = after
                .map(MessageId::new)
                .into_iter()
                .fold(range, MessageRange::after);
            let range = before
                .map(MessageId::new)
                .into_iter()
                .fold(range, MessageRange::before);
            let read = self.store.messages(&id(name), range).await.unwrap();
            assert_messages(&read, expected);
        }
    }

    /// Compares everything that can be read, and every cell.
    async fn compare(&self) {
        let count = |len: usize| u64::try_from(len).unwrap();
        let Model {
            sessions, messages, ..
        } = &self.model;
        let store = &self.store;
        assert_eq!(
            store.session_count(Scope::All).await.unwrap(),
            count(sessions.len())
        );
        assert_eq!(
            store.message_count(Scope::All).await.unwrap(),
            count(messages.len())
        );
        for source in ["cli", "telegram", "unknown", "stock"] {
            let of_source = sessions
                .iter()
                .filter(|(_, session)| session.source == source);
            let names: Vec<_> = of_source.map(|(name, _)| *name).collect();
            let theirs = messages
                .iter()
                .filter(|row| names.contains(&row.session))
                .count();
            let scope = Scope::Source(source);
            assert_eq!(
                store.session_count(scope).await.unwrap(),
                count(names.len())
            );
            assert_eq!(store.message_count(scope).await.unwrap(), count(theirs));
        }
        for name in SESSIONS {
            let (read, expected) = (store.session(&id(name)).await.unwrap(), sessions.get(name));
            assert_eq!(read.is_some(), expected.is_some(), "{name}");
            if let (Some(read), Some(expected)) = (read, expected) {
                assert_eq!(read.source, expected.source);
                assert_eq!(read.user_id.as_deref(), expected.user);
                assert_eq!(read.model.as_deref(), expected.model);
                assert_eq!(read.system_prompt.as_deref(), expected.prompt);
                assert_eq!(read.parent_session_id, expected.parent.map(id));
                assert_eq!(read.ended_at.is_some(), expected.ended.is_some());
                assert_eq!(
                    read.end_reason.as_ref().map(EndReason::as_str),
                    expected.ended
                );
                let counters = expected.counters.unwrap_or((0, 0));
                assert_eq!((read.message_count, read.tool_call_count), counters);
                assert_eq!(read.title, expected.title);
                assert_eq!(u64::try_from(read.input_tokens).unwrap(), expected.input);
            }
            let transcript = self.model.transcript(name);
            let scope = id(name);
            let counted = store.message_count(Scope::Session(&scope)).await.unwrap();
            assert_eq!(counted, count(transcript.len()));
            let streamed: Vec<Message> = store.message_stream(&scope).try_collect().await.unwrap();
            assert_messages(&streamed, &transcript);
            let conversation = store.conversation(&scope).await.unwrap();
            let read = conversation.messages.iter().map(|message| &message.content);
            assert_eq!(
                read.collect::<Vec<_>>(),
                streamed
                    .iter()
                    .map(|message| &message.content)
                    .collect::<Vec<_>>()
            );
            let others = transcript.iter().filter(|row| row.role == "other").count();
            assert_eq!(conversation.chat().left_out, others);
        }
        self.compare_cells();
    }

    fn compare_cells(&self) {
        fn cell(text: Option<&str>) -> String {
            text.map_or("NULL".to_owned(), |text| format!("{text:?}"))
        }
        let Model {
            sessions, messages, ..
        } = &self.model;
        let expected: Vec<Vec<String>> = sessions
            .iter()
            .map(|(name, session)| {
                let texts = [
                    Some(*name),
                    Some(session.source),
                    session.user,
                    session.model,
                    session.prompt,
                    session.parent,
                    session.ended,
                    session.title.as_deref(),
                ];
                let mut row: Vec<String> = texts.map(cell).into();
                row.extend(match session.counters {
                    Some((messages, tools)) => [messages.to_string(), tools.to_string()],
                    None => [cell(None), cell(None)],
                });
                row.push(session.input.to_string());
                row
            })
            .collect();
        let found = rows(
            &self.stock,
            "SELECT id, source, user_id, model, system_prompt, parent_session_id, end_reason,
                 title, message_count, tool_call_count, input_tokens FROM sessions ORDER BY id",
        );
        assert_eq!(found, expected);

        let expected: Vec<Vec<String>> = messages
            .iter()
            .map(|row| {
                vec![
                    row.id.to_string(),
                    cell(Some(row.session)),
                    cell(Some(row.role)),
                    cell(row.text.as_deref()),
                    cell(row.parts.map(|(json, _)| json)),
                    cell(row.calls),
                    cell(row.name.as_deref()),
                    format!("{:?}", row.time),
                    row.tokens.map_or(cell(None), |tokens| tokens.to_string()),
                    cell(row.extra),
                ]
            })
            .collect();
        let found = rows(
            &self.stock,
            "SELECT id, session_id, role, content, content_parts, tool_calls, tool_name,
                 timestamp, token_count, extra_json FROM messages ORDER BY id",
        );
        assert_eq!(found, expected);

        let keys: usize = sessions.values().map(|session| session.keys.len()).sum();
        let found = rows(&self.stock, "SELECT COUNT(*) FROM append_keys");
        assert_eq!(found, [[keys.to_string()]]);
        assert_index_is_right(&self.stock);
        let found = rows(&self.stock, "SELECT COUNT(*) FROM messages_fts_docsize");
        assert_eq!(found, [[messages.len().to_string()]]);
        assert_eq!(rows(&self.stock, "PRAGMA integrity_check"), [["\"ok\""]]);
        assert_eq!(
            rows(&self.stock, "PRAGMA foreign_key_check"),
            Vec::<Vec<String>>::new()
        );
    }
}

fn assert_messages(read: &[Message], expected: &[&Row]) {
    let ids: Vec<i64> = read.iter().map(|message| message.id.get()).collect();
    assert_eq!(ids, expected.iter().map(|row| row.id).collect::<Vec<_>>());
    for (message, row) in read.iter().zip(expected) {
        let content = match row.parts {
            Some((parts, text)) if row.text.as_deref() == Some(text) => {
                Some(Content::Parts(json(parts)))
            }
            _ => row.text.clone().map(Content::Text),
        };
        assert_eq!(message.session_id.as_str(), row.session);
        assert_eq!(message.role.as_str(), row.role);
        assert_eq!(message.content, content);
        assert_eq!(message.tool_calls, row.calls.map(json));
        assert_eq!(message.tool_name, row.name);
        assert_eq!(
            message.timestamp.as_unix_seconds().to_bits(),
            row.time.to_bits()
        );
        assert_eq!(message.token_count, row.tokens.map(i64::from));
        assert_eq!(message.extra, row.extra.map(json));
    }
}

#[test]
fn any_operations_leave_what_the_model_says() {
    let config = ProptestConfig {
        cases: 64,
        failure_persistence: None,
        max_shrink_iters: 2000,
        ..ProptestConfig::default()
    };
    // The same cases at every run.
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, random)
        .run(&proptest::collection::vec(any_step(), 20..60), |steps| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(async {
                let mut both = Both::new().await;
                for step in &steps {
                    both.take(step).await;
                }
                both.compare().await;
                both.store.close().await.unwrap();
            });
            Ok(())
        })
        .unwrap();
}
