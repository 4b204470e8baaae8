-- Mean |d| by weight version. Grain: version. Input: tokens.
SELECT weight_version, count(*) AS tokens, avg(abs(log_ratio)) AS logprob_abs_diff_mean
FROM tokens
WHERE run = $run AND mask AND broken IS NULL
GROUP BY weight_version
ORDER BY try_cast(weight_version AS BIGINT), weight_version
