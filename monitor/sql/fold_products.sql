-- Sums over sequences of products of their sums, what was folded earlier included: steps $steps of $run. Grain: step and pair.
-- Inputs: statistics, folded_pairs.
SELECT step, pair, sum(c_nn) AS c_nn, sum(c_dd) AS c_dd, sum(c_dn) AS c_dn, sum(c_aa) AS c_aa, sum(c_an) AS c_an,
       sum(c_qq) AS c_qq, sum(c_qn) AS c_qn
FROM (
    SELECT step, pair, n::DOUBLE * n AS c_nn, sum_d * sum_d AS c_dd, sum_d * n AS c_dn, sum_abs_d * sum_abs_d AS c_aa,
           sum_abs_d * n AS c_an, sum_ratio_m1 * sum_ratio_m1 AS c_qq, sum_ratio_m1 * n AS c_qn
    FROM statistics
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
    UNION ALL
    SELECT step, pair, c_nn, c_dd, c_dn, c_aa, c_an, c_qq, c_qn
    FROM folded_pairs
    WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
)
GROUP BY step, pair
