-- What the tokens are made of that `diagnosis_tokens` gives of $run: of each of $steps that has any a fingerprint of its sequences, of the rollout records they were joined
-- with, of what is known of these, and of where the raw records of both lie. As long as it stays, so do the tokens: raw records never change. Grain: step.
-- Inputs: training_sequences, rollout_sequences, segments, the files that tokens would be read from. Parameters: $run, $steps, $parts.
WITH places AS (
    SELECT s.segment_id, p.place
    FROM segments AS s
    JOIN (SELECT unnest(list_concat($training_files::VARCHAR[], $rollout_files::VARCHAR[])) AS place) AS p
        ON split_part(p.place, '/', -1) = split_part(s.raw_file, '/', -1)
    WHERE s.run = $run
), chosen AS (
    SELECT t.step, t.segment_id, t.row, hash({
        'row': t.row, 'segment': t.segment_id, 'source': t.rollout_source, 'alignment': t.alignment, 'rollout_segment': t.rollout_segment, 'rollout_row': t.rollout_row,
        'logprobs': r.logprobs, 'spans': r.spans, 'replica': r.replica, 'cached': r.cached_prefix_tokens, 'prompt': r.prompt_hash,
        'place': p.place, 'rollout_place': o.place
    }) AS record
    FROM training_sequences AS t
    LEFT JOIN rollout_sequences AS r ON r.run = $run AND r.segment_id = t.rollout_segment AND r.row = t.rollout_row
    LEFT JOIN places AS p ON p.segment_id = t.segment_id
    LEFT JOIN places AS o ON o.segment_id = t.rollout_segment
    WHERE t.run = $run AND t.step IN (SELECT unnest($steps)) AND hash(coalesce(t.group_id, r.prompt_hash, t.sample_id)) % $parts = 0 AND t.raw_kept
        AND (t.rollout_source <> 'missing' OR t.rollout_segment IS NOT NULL)
)
SELECT step, hash(list(record ORDER BY segment_id, row)) AS fingerprint
FROM chosen
GROUP BY step
ORDER BY step
