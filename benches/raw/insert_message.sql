INSERT INTO messages (
    session_id, role, content, tool_call_id, tool_calls, tool_name, timestamp,
    token_count, finish_reason, reasoning, reasoning_details, codex_reasoning_items
) VALUES
