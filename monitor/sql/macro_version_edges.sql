-- Where a version may change: ascending, in the places of `version_pieces`.
list_sort(list_distinct(list_concat(
    flatten(list_transform(coalesce(spans, []), lambda s: [s."start", s."end"])),
    flatten(list_transform(coalesce(stated, []), lambda s: CASE
        WHEN alignment = 'all' THEN [s."start", s."end"] ELSE [s.sampled_start, s.sampled_end]
    END))
)))
