-- What engine and trainer say about the weights of a sequence's tokens, side by side. Arguments: the engine's spans (`alignment` null: they
-- are not known to be about these tokens, and are left out) and the trainer's. Value: list of pieces [start, end), ascending, in tokens of
-- the engine's record, or without one in tokens under the mask; `engine`, `stated`: the version, null: unknown.
list_transform(
    list_filter(
        [
            {
                'start': edge,
                'end': list_min(list_filter(version_edges(CASE WHEN alignment IS NOT NULL THEN spans END, stated, alignment), lambda x: x > edge))
            }
            FOR edge IN version_edges(CASE WHEN alignment IS NOT NULL THEN spans END, stated, alignment)
        ],
        lambda p: p."end" IS NOT NULL
    ),
    lambda p: {
        'start': p."start",
        'end': p."end",
        'engine': list_filter(
            CASE WHEN alignment IS NOT NULL THEN spans END, lambda s: s."start" <= p."start" AND p."start" < s."end"
        )[1]."version",
        'stated': list_filter(stated, lambda s: CASE
            WHEN alignment = 'all' THEN s."start" <= p."start" AND p."start" < s."end"
            ELSE s.sampled_start <= p."start" AND p."start" < s.sampled_end
        END)[1]."version"
    }
)
