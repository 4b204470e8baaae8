-- incident_adopt: Puts the messages of $episodes of $run that belong to no incident into the incident $id. Grain: message. Inputs: notifications.
UPDATE notifications SET incident = $id
WHERE run = $run AND incident IS NULL AND list_contains($episodes::VARCHAR[], episode)

-- incident_close: Closes the incident $id, unless it is closed. Inputs: incidents.
UPDATE incidents SET closed_at = $now, closed_step = $step::BIGINT WHERE id = $id AND closed_at IS NULL

-- incident_critical: Critical alerts with messages in the incident $incident, the first one first, and what those say to do. Grain: rule. Inputs:
-- notifications.
SELECT rule, arg_max(concat_ws(' ', document ->> '$.fix', document ->> '$.more'), number) AS words
FROM notifications
WHERE incident = $incident AND severity = 'critical' AND state NOT IN ('resolved', 'closed')
GROUP BY rule
ORDER BY min(number)

-- incident_diagnosed: Keeps what the newest diagnosis says of the trouble in open incidents of $runs (a list). Inputs: incidents, diagnoses.
UPDATE incidents
SET document = d.document, diagnosed_at = d.diagnosed_at, cause = d.cause, since_step = coalesce(d.since_step, incidents.since_step)
FROM diagnoses AS d
WHERE d.run = incidents.run AND list_contains($runs::VARCHAR[], d.run) AND incidents.closed_at IS NULL
    AND d.diagnosed_at IS DISTINCT FROM incidents.diagnosed_at
    AND (incidents.document IS NULL OR d.verdict IN ('growing', 'critical') OR d.cause IS NOT NULL)

-- incident_keep: Keeps how open incidents stand. Grain: incident. Inputs: incoming.
UPDATE incidents SET healthy = i.healthy, seen = i.seen
FROM incoming AS i
WHERE i.id = incidents.id AND incidents.closed_at IS NULL

-- incident_list: Incidents of $runs (a list; null: of all runs), the open ones first, then the newest. Grain: incident. Inputs: incidents.
SELECT id, run, number, opened_at, opened_step, since_step, cause, closed_at, closed_step, healthy, seen
FROM incidents
WHERE $runs IS NULL OR list_contains($runs::VARCHAR[], run)
ORDER BY closed_at IS NOT NULL, opened_at DESC, id

-- incident_of: To which incident the first message of $episode of $run belongs. Grain: at most one row. Inputs: notifications.
SELECT incident FROM notifications WHERE run = $run AND episode = $episode ORDER BY number LIMIT 1

-- incident_open: Opens an incident; one that is there stays as it is. Inputs: incidents.
INSERT INTO incidents (id, run, number, opened_at, opened_step, since_step, healthy)
VALUES ($id, $run, $number, $now, $step::BIGINT, $since::BIGINT, 0)
ON CONFLICT DO NOTHING

-- incident_show: The incident $incident. `told`: whether there is a message of it. Grain: at most one row. Inputs: incidents, notifications.
SELECT id, run, number, opened_at, opened_step, since_step, cause, closed_at, closed_step, diagnosed_at, document,
       EXISTS (FROM notifications WHERE incident = incidents.id) AS told
FROM incidents WHERE id = $incident

-- incident_checkpoints: Checkpoints that the trainer of $run saved: how many in all, the last one before step $before that was not deleted since, and its
-- folder; `deleted`: the last one before it that was. Grain: one row. Inputs: config_records.
WITH saved AS (
    SELECT TRY_CAST(document ->> 'step' AS BIGINT) AS step, max_by(coalesce(document ->> 'checkpoint', ''), time) AS folder,
           max_by(coalesce(document ->> 'deleted' = 'true', false), time) AS deleted
    FROM config_records
    WHERE run = $run AND kind = 'checkpoint'
    GROUP BY ALL
    HAVING step IS NOT NULL
)
SELECT count(*) AS checkpoints, max(step) FILTER (step < $before AND NOT deleted) AS step,
       nullif(max_by(folder, step) FILTER (step < $before AND NOT deleted), '') AS folder, max(step) FILTER (step < $before AND deleted) AS deleted
FROM saved

-- incident_configs: Configuration documents of $run as they came up, each with the one before it of its kind and replica. Grain: document that is not the
-- first of its kind and replica. Inputs: config_records.
WITH documents AS (
    SELECT kind, replica, fingerprint, any_value(document) AS document, min(time) AS happened_at
    FROM config_records WHERE run = $run AND kind NOT IN ('weight_layout', 'checkpoint') GROUP BY ALL
)
SELECT * FROM (
    SELECT kind, replica, happened_at, document, lag(document) OVER (PARTITION BY kind, replica ORDER BY happened_at) AS before FROM documents
)
WHERE before IS NOT NULL
ORDER BY happened_at

-- incident_parts: Replicas and tags of the sequences that steps $first to $last of $run were trained on: where each comes up first and last, of tags with at
-- most 64 values. Grain: replica or tag. Inputs: training_sequences, rollout_sequences.
WITH tagged AS (
    SELECT step, unnest(map_entries(tags)) AS tag FROM training_sequences WHERE run = $run AND step BETWEEN $first AND $last
), seen AS (
    SELECT 'replica' AS what, r.replica AS value, t.step
    FROM training_sequences AS t
    JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    WHERE t.run = $run AND t.step BETWEEN $first AND $last AND r.replica IS NOT NULL
    UNION ALL SELECT tag.key, tag.value, step FROM tagged
)
SELECT what, value, min(step) AS first, max(step) AS last
FROM seen GROUP BY what, value
QUALIFY count(*) OVER (PARTITION BY what) <= 64
ORDER BY what, value
