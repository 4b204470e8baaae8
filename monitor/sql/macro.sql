-- macro_at_its_pace: Whether steps that were made within the interval `made` came at that pace when `came` passed from the first to the last of them. An import
-- comes all at once; what came late, or was computed again, may come slower.
made > INTERVAL 0 SECONDS AND epoch(came) BETWEEN 0.5 * epoch(made) AND 2 * epoch(made) + 60

-- macro_dated_ahead: By how many seconds the clock that dated a step `made` is ahead of the one here, on which it was computed at `came`; 0: it need not be.
-- What comes before it is made was dated by another clock, and so was what comes long after it, although its run came at its pace (`kept`).
CASE WHEN epoch(made - came) > 60 OR (kept AND epoch(came - made) > 900) THEN epoch(made - came) ELSE 0 END

-- macro_engine_spans: Spans of a rollout record beside a training record; null where the engine's clock says that its last step (`decisions`, `clock_offset`)
-- came more than 10 s after it was trained on (`trained_at`): no clock can then tell which marks came before. As `logprobe.monitor.live.steps` has it.
CASE WHEN decisions[-1]."last"::HUGEINT + clock_offset > epoch_us(trained_at) + 10000000 THEN NULL ELSE spans END

-- macro_known_versions: Spans [{start, end, version}] of the weights that sampled a sequence: the engine's where the trainer said nothing; else of every token
-- the version of whoever knows it, and null where the two differ. `spans`: engine_spans; `pieces`: of all_sequences.
CASE WHEN pieces IS NULL THEN spans ELSE list_transform(
    pieces,
    lambda p: {
        'start': p."start",
        'end': p."end",
        'version': CASE WHEN p.engine = p.stated OR p.engine IS NULL OR p.stated IS NULL THEN coalesce(p.engine, p.stated) END
    }
) END

-- macro_live_runs: Runs with computed steps at time `looked_at`: the newest step, the newest revision, when a step was last computed, and whether the run
-- is `live`: no more than ten seconds, and five times as long as its last steps took, have passed since then, and it is not `past`: dated more than a day
-- before it came, all at once, as an import is. Steps that come at the pace at which they are made are of now, whatever clock dated them: `dated_ahead` is by
-- how many seconds theirs is ahead of ours, 0 where it need not be. A run whose records wait in the spool is as live as they are new.
-- `live_until`: the last moment at which it is live, should nothing else come (null: it is `past`).
-- Grain: run. Inputs: step_summaries, abandoned_steps, spooled.
WITH newest AS (
    SELECT run, max(step) AS step, max(revision) AS revision, max(computed_at) AS computed_at, max(time) AS time
    FROM step_summaries ANTI JOIN abandoned_steps USING (run, step) GROUP BY run
), paced AS (
    SELECT n.run, n.step, n.revision, n.computed_at, n.time,
           coalesce(epoch(max(s.time) - min(s.time)) / nullif(count(s.time) - 1, 0), 0) AS seconds,
           coalesce(at_its_pace(max(s.time) - min(s.time), max(s.computed_at) - min(s.computed_at)), false) AS kept
    FROM newest AS n JOIN step_summaries AS s ON s.run = n.run AND s.step > greatest(n.step, -9000000000000000000) - 10
    GROUP BY n.run, n.step, n.revision, n.computed_at, n.time
)
SELECT n.run, n.step, n.revision, n.computed_at, n.time, coalesce(epoch(n.computed_at - n.time) > 86400, false) AND NOT kept AS past,
       dated_ahead(n.time, n.computed_at, kept) AS dated_ahead,
       CASE WHEN NOT past THEN greatest(n.computed_at, w.newest_at) + to_microseconds((1e6 * least(greatest(10, 5 * n.seconds), 1e9))::BIGINT) END AS live_until,
       coalesce(looked_at::TIMESTAMPTZ <= live_until, false) AS live
FROM paced AS n LEFT JOIN spooled AS w ON w.run = n.run

-- macro_raw_in: Raw records of one kind in given files. Grain: one row per sequence, token-level data as lists. Inputs: `files`, as the index names
-- them, bad_rows.
SELECT TRY(url_decode(split_part(filename, '/', -3))) AS run, * EXCLUDE (filename)
FROM read_parquet(files, union_by_name = true, filename = true, hive_partitioning = false) ANTI JOIN bad_rows USING (segment_id, row)

-- macro_steps_of: Steps of `of_run`, from `first` to `last` (both included; null: no bound), with all that was measured of each: `metrics` and `scalars` by name,
-- of scalars the mean over ranks, as in the view scalars; null: the step has none. Grain: step. Inputs: the views steps, metrics, scalars.
WITH measured AS (
    SELECT step, map(list(metric ORDER BY metric), list(value ORDER BY metric)) AS metrics FROM step_metrics
    WHERE run = of_run AND step BETWEEN coalesce(first, -9223372036854775808) AND coalesce(last, 9223372036854775807) GROUP BY step
),
means AS (
    SELECT step, map(list(name ORDER BY name), list(value ORDER BY name)) AS scalars FROM scalars
    WHERE run = of_run AND step BETWEEN coalesce(first, -9223372036854775808) AND coalesce(last, 9223372036854775807) GROUP BY step
)
SELECT s.*, m.metrics, c.scalars
FROM steps AS s LEFT JOIN measured AS m USING (step) LEFT JOIN means AS c USING (step)
WHERE s.run = of_run AND s.step BETWEEN coalesce(first, -9223372036854775808) AND coalesce(last, 9223372036854775807)

-- macro_version_counts: Of how many tokens both engine and trainer say the version, and of how many of these they say different ones; null where the trainer said
-- nothing. `pieces`: of all_sequences.
CASE WHEN pieces IS NOT NULL THEN {
    'compared': coalesce(list_sum(list_transform(
        list_filter(pieces, lambda p: p.engine IS NOT NULL AND p.stated IS NOT NULL), lambda p: p."end" - p."start"
    )), 0)::BIGINT,
    'differing': coalesce(list_sum(list_transform(list_filter(pieces, lambda p: p.engine <> p.stated), lambda p: p."end" - p."start")), 0)::BIGINT
} END

-- macro_version_source: Where a sequence's versions come from: "engine", "trainer", "both" (they agree wherever both know), "conflict" (they differ somewhere, and
-- there the version is unknown); null: nobody knows any. `pieces`: of all_sequences.
CASE
    WHEN pieces IS NULL THEN
        CASE WHEN len(list_filter(spans, lambda s: s."version" IS NOT NULL)) > 0 THEN 'engine' END
    WHEN version_counts(pieces).differing > 0 THEN 'conflict'
    WHEN alignment IS NULL OR coalesce(len(list_filter(spans, lambda s: s."version" IS NOT NULL)), 0) = 0 THEN 'trainer'
    ELSE 'both'
END
