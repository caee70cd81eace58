//! The messages that every contestant stores: the same texts, the same sizes, every time.

use fastrand::Rng;
use serde::Serialize;
use serde_json::json;

/// Messages of a turn: a question, a tool call, two results, an answer.
pub(crate) const TURN: usize = 5;
const TURNS: usize = 100;
const VOCABULARY: usize = 4_000;

/// One message; JSON columns are texts.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Message {
    pub(crate) role: &'static str,
    pub(crate) content: Option<String>,
    pub(crate) tool_call_id: Option<String>,
    pub(crate) tool_calls: Option<String>,
    pub(crate) tool_name: Option<&'static str>,
    pub(crate) token_count: u32,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) reasoning: Option<String>,
    pub(crate) reasoning_details: Option<String>,
}

impl Message {
    /// What goes into the session's `tool_call_count`.
    pub(crate) fn calls(&self) -> i64 {
        if self.tool_calls.is_some() { 2 } else { 0 }
    }
}

/// The messages, repeated without end.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    messages: Vec<Message>,
}

impl Workload {
    pub(crate) fn new() -> Self {
        let mut text = Text::new();
        Self {
            messages: (0..TURNS).flat_map(|turn| text.turn(turn)).collect(),
        }
    }

    /// `count` messages, from number `first` on.
    pub(crate) fn from(&self, first: usize, count: usize) -> impl Iterator<Item = &Message> {
        let start = first % self.messages.len();
        self.messages.iter().cycle().skip(start).take(count)
    }

    /// One JSON object a line, for the contestant in another process.
    pub(crate) fn to_jsonl(&self) -> serde_json::Result<String> {
        let mut lines = String::new();
        for message in &self.messages {
            lines.push_str(&serde_json::to_string(message)?);
            lines.push('\n');
        }
        Ok(lines)
    }
}

/// Prose with a few common words and many rare ones.
struct Text {
    rng: Rng,
    words: Vec<String>,
}

impl Text {
    fn new() -> Self {
        let mut rng = Rng::with_seed(42);
        let syllables = [
            "ka", "ro", "min", "tel", "su", "vor", "en", "di", "pra", "lo", "ges", "ut",
        ];
        let words = (0..VOCABULARY)
            .map(|_| {
                let count = rng.usize(1..=4);
                (0..count)
                    .filter_map(|_| rng.choice(syllables))
                    .collect::<String>()
            })
            .collect();
        Self { rng, words }
    }

    fn prose(&mut self, words: usize) -> String {
        let mut prose = String::new();
        for number in 0..words {
            if number > 0 {
                prose.push_str(if number % 12 == 0 { ". " } else { " " });
            }
            // The square prefers the front of the list, as languages do.
            let draw = self.rng.usize(0..VOCABULARY);
            if let Some(word) = self.words.get(draw * draw / VOCABULARY) {
                prose.push_str(word);
            }
        }
        prose
    }

    fn turn(&mut self, turn: usize) -> [Message; TURN] {
        let question = match turn % 10 {
            0 => format!("上周我们讨论过数据库迁移吗？{}", self.prose(8)),
            _ => self.prose(25),
        };
        let calls = [format!("call_{turn}_a"), format!("call_{turn}_b")];
        let arguments = json!({ "path": "src/main.rs", "pattern": self.prose(4) }).to_string();
        let call = |id: &String, name: &str| {
            json!({
                "id": id, "type": "function",
                "function": { "name": name, "arguments": arguments }
            })
        };
        let [first, second] = &calls;
        let tool_calls = json!([call(first, "read_file"), call(second, "search_files")]);
        let details = json!([{ "type": "reasoning.summary", "summary": self.prose(15) }]);
        // Three answers in five hold typography, which is what models write.
        let answer = match turn % 5 {
            0 => format!("✅ {} → {}", self.prose(40), self.prose(40)),
            1 | 2 => format!("{} — it’s {}", self.prose(40), self.prose(40)),
            _ => self.prose(80),
        };
        let result = |id: &String, name, content| Message {
            role: "tool",
            content: Some(content),
            tool_call_id: Some(id.clone()),
            tool_name: Some(name),
            token_count: 160,
            ..Message::default()
        };
        [
            Message {
                role: "user",
                content: Some(question),
                token_count: 30,
                ..Message::default()
            },
            Message {
                role: "assistant",
                content: Some(self.prose(10)),
                tool_calls: Some(tool_calls.to_string()),
                tool_name: Some("read_file"),
                token_count: 90,
                finish_reason: Some("tool_calls"),
                reasoning: Some(self.prose(40)),
                reasoning_details: Some(details.to_string()),
                ..Message::default()
            },
            result(first, "read_file", self.prose(120)),
            result(second, "search_files", self.prose(60)),
            Message {
                role: "assistant",
                content: Some(answer),
                token_count: 100,
                finish_reason: Some("stop"),
                reasoning: Some(self.prose(20)),
                ..Message::default()
            },
        ]
    }
}
