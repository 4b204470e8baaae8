-- How each of $runs (a list) stands. Grain: run. Input: judgements.
FROM judgements WHERE list_contains($runs::VARCHAR[], run)
