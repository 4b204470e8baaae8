-- example_events: What happened. Grain: event. Input: events.
SELECT time, kind, event, severity, source, message
FROM events
WHERE run = $run
ORDER BY time DESC
LIMIT 100

-- example_metrics: Metrics of the newest step. Grain: metric. Input: metrics.
SELECT step, metric, value
FROM metrics
WHERE run = $run AND step = (SELECT max(step) FROM metrics WHERE run = $run)
ORDER BY metric

-- example_runs: All runs. Grain: run. Input: runs.
SELECT *
FROM runs
ORDER BY last_time DESC

-- example_sequences: Worst sequences. Grain: sequence. Input: sequences.
SELECT step, sample_id, replica, n AS tokens, sum_k3 / n AS k3, max_d, reward
FROM sequences
WHERE run = $run AND n > 0
ORDER BY k3 DESC
LIMIT 50

-- example_steps: Newest steps with their K3 and loss. Grain: step. Inputs: steps, metrics, scalars.
SELECT s.step, s.time, s.tokens, m.value AS k3, c.value AS loss
FROM steps AS s
LEFT JOIN metrics AS m ON m.run = s.run AND m.step = s.step AND m.metric = 'backend.k3_kl'
LEFT JOIN scalars AS c ON c.run = s.run AND c.step = s.step AND c.name = 'loss'
WHERE s.run = $run
ORDER BY s.step DESC
LIMIT 20

-- example_versions: Mean |d| by weight version. Grain: version. Input: tokens.
SELECT weight_version, count(*) AS tokens, avg(abs(log_ratio)) AS logprob_abs_diff_mean
FROM tokens
WHERE run = $run AND mask AND broken IS NULL
GROUP BY weight_version
ORDER BY try_cast(weight_version AS BIGINT), weight_version
