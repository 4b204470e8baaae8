-- What is kept of the steps $first to $last of $run (both included; null: no bound). Grain: one row. Inputs: folded_steps,
-- sampled_sequences. `folded`: steps of which only sums over all sequences are kept, from `first_folded` to `last_folded`; `sampled`:
-- sequences of these that are kept one by one, from step `sampled_from` on.
SELECT count(*) AS folded, min(step) AS first_folded, max(step) AS last_folded,
       (SELECT count(*) FROM sampled_sequences
        WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)) AS sampled,
       (SELECT min(step) FROM sampled_sequences
        WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)) AS sampled_from
FROM folded_steps
WHERE run = $run AND step >= coalesce($first::BIGINT, step) AND step <= coalesce($last::BIGINT, step)
