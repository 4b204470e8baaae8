"""What weight updates do to requests in flight: the gap by distance to the switch, and by what was reused from before it.

Two faults look alike in a step's mean and apart here. Keys and values computed under old weights and kept across an update leave
a step at the switch (distance 0) that stays; a prefix cache that outlives an update makes requests with cached prompt tokens
worse than those without, switch or not.
"""

from __future__ import annotations

import pyarrow as pa

from logprobe.monitor.slices import Source, Steps


def around_updates(source: Source, run: str, *, steps: Steps = (None, None), reach: int = 16) -> pa.Table:
    """The gap by distance of a token, in sampled tokens, to a switch of the weight version inside its sequence.

    Args:
        source: a `Reader` or a `Store`.
        run: which run.
        steps: first and last, both included; None: no bound. Only steps whose raw tokens are kept have any rows.
        reach: largest distance, before and after.

    Returns:
        ``distance`` (0: first token of the new weights, −1: last of the old; null: sequences without a switch, to compare with),
        ``sequences``, ``tokens`` (valid ones), ``broken``, ``logprob_abs_diff_mean`` and its standard error ``logprob_abs_diff_error``
        (tokens taken as independent), ``log_ratio_mean``, ``k3_kl``. Tokens before a switch come from older weights than those
        after it, so staleness alone makes them worse: compare distance 0 with null where the trainer has the new weights.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    return source.read("event_study_switch", run=run, first=steps[0], last=steps[1], reach=reach)


def by_cached_prefix(source: Source, run: str, *, steps: Steps = (None, None)) -> pa.Table:
    """The gap of requests with and without prompt tokens from the prefix cache, and with and without an update while they ran.

    Returns:
        ``cached`` and ``in_flight`` (true, false, null where the engine did not say), ``sequences``, ``tokens``, ``broken``,
        ``logprob_abs_diff_mean`` and its standard error ``logprob_abs_diff_error`` (clustered by sequence; null for a single
        one), ``log_ratio_mean``, ``k3_kl``. From statistics: raw tokens are not needed.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    return source.read("event_study_cached", run=run, first=steps[0], last=steps[1])
