-- The chain of continuations that begins with a session, one row each, in order.
-- ?1: the session.
-- UNION, not UNION ALL: a chain that comes back to a session ends before it.
-- INDEXED BY: statistics of another program must not turn a step into a scan of all sessions, and
-- max() must not walk the primary key backwards in search of a child.
WITH RECURSIVE chain(id, next_start) AS (
    SELECT
        session.id,
        (
            SELECT max(child.started_at)
            FROM sessions AS child INDEXED BY idx_sessions_parent
            WHERE child.parent_session_id = session.id
                AND session.end_reason = 'compression'
                AND child.started_at >= session.ended_at
        )
    FROM sessions AS session
    WHERE session.id = ?1
    UNION
    SELECT
        session.id,
        (
            SELECT max(child.started_at)
            FROM sessions AS child INDEXED BY idx_sessions_parent
            WHERE child.parent_session_id = session.id
                AND session.end_reason = 'compression'
                AND child.started_at >= session.ended_at
        )
    FROM chain
    CROSS JOIN sessions AS session
    WHERE session.id = (
        SELECT max(child.id)
        FROM sessions AS child INDEXED BY idx_sessions_parent
        WHERE child.parent_session_id = chain.id AND child.started_at = chain.next_start
    )
    -- The session itself and 1,000 steps.
    LIMIT 1001
)
SELECT id FROM chain
