-- macro_deciding: What decides how an engine computes log-probs, of its configuration document, as JSON: engines that differ in nothing else are one setup.
-- Null: not a document of that form. Left out: seeds, and logprobe's own version.
CASE WHEN json_valid(document) AND document ->> '$.summary' IS NOT NULL THEN json_object(
    'summary', json_merge_patch(document -> '$.summary', '{"seed": null}'),
    'effective', document -> '$.effective',
    'versions', json_merge_patch(coalesce(document -> '$.versions', '{}'), '{"logprobe": null}'),
    'environment', document -> '$.environment',
    'logprobe', document -> '$.logprobe',
    'hf_overrides', document -> '$.arguments.hf_overrides'
) END
