-- What people did about alerts, newest first, at most $count. Grain: one thing done. Inputs: alert_audit.
SELECT time, author, action, subject, words FROM alert_audit ORDER BY number DESC LIMIT $count
