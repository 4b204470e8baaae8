-- Notes what somebody did; what is asked again because a connection broke is noted once. Grain: one row. Inputs: its parts.
INSERT INTO alert_audit (time, author, action, subject, words)
SELECT $time, $author, $action, $subject, $words
WHERE NOT EXISTS (
    SELECT 1 FROM alert_audit
    WHERE author = $author AND action = $action AND subject = $subject AND words = $words
      AND time > $time::TIMESTAMPTZ - INTERVAL 10 SECONDS
)
