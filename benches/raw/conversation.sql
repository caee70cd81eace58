-- The inner query sorts ids alone, out of the index: sorting whole rows is slower.
SELECT m.role, m.content, m.tool_call_id, m.tool_name, m.tool_calls,
       m.reasoning, m.reasoning_details, m.codex_reasoning_items, m.finish_reason
FROM (SELECT id FROM messages WHERE session_id = ?1 ORDER BY id) AS chosen
CROSS JOIN messages AS m ON m.id = chosen.id
