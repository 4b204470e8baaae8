-- Spans [{start, end, version}] of the weights that sampled a sequence: the engine's where the trainer said nothing; else of every token
-- the version of whoever knows it, and null where the two differ. Arguments and places as of `version_pieces`.
CASE WHEN stated IS NULL THEN spans ELSE list_transform(
    version_pieces(spans, stated, alignment),
    lambda p: {
        'start': p."start",
        'end': p."end",
        'version': CASE WHEN p.engine = p.stated OR p.engine IS NULL OR p.stated IS NULL THEN coalesce(p.engine, p.stated) END
    }
) END
