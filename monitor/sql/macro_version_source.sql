-- Where a sequence's versions come from: "engine", "trainer", "both" (they agree wherever both know), "conflict" (they differ somewhere, and
-- there the version is unknown); null: nobody knows any. Arguments as of `version_pieces`.
CASE
    WHEN stated IS NULL THEN
        CASE WHEN len(list_filter(spans, lambda s: s."version" IS NOT NULL)) > 0 THEN 'engine' END
    WHEN version_counts(spans, stated, alignment).differing > 0 THEN 'conflict'
    WHEN alignment IS NULL OR coalesce(len(list_filter(spans, lambda s: s."version" IS NOT NULL)), 0) = 0 THEN 'trainer'
    ELSE 'both'
END
