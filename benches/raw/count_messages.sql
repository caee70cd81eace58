UPDATE sessions
SET message_count = message_count + ?2, tool_call_count = tool_call_count + ?3
WHERE id = ?1
