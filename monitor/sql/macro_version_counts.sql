-- Of how many tokens both engine and trainer say the version, and of how many of these they say different ones; null where the trainer said
-- nothing. Arguments as of `version_pieces`.
CASE WHEN stated IS NOT NULL THEN {
    'compared': coalesce(list_sum(list_transform(
        list_filter(version_pieces(spans, stated, alignment), lambda p: p.engine IS NOT NULL AND p.stated IS NOT NULL),
        lambda p: p."end" - p."start"
    )), 0)::BIGINT,
    'differing': coalesce(list_sum(list_transform(
        list_filter(version_pieces(spans, stated, alignment), lambda p: p.engine <> p.stated), lambda p: p."end" - p."start"
    )), 0)::BIGINT
} END
