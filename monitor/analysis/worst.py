"""Worst sequences and tokens of each step, for the inspection of a mismatch."""

from __future__ import annotations

import pyarrow as pa

from logprobe.collectors.kernel.pairs import Pair
from logprobe.monitor import queries
from logprobe.monitor.analysis.slices import Steps
from logprobe.monitor.queries import Source


def sequences(
    source: Source,
    run: str,
    *,
    steps: Steps = (None, None),
    count: int = 10,
    pair: Pair = "backend",
    sample: str | None = None,
) -> pa.Table:
    """Return the `count` worst sequences of each step, and those of `sample`, from statistics, which every step has.

    Sequences with broken tokens come first, then those with the largest ``share`` of the step's K3. Further columns
    (replica, weight spans, cached prefix, …) are null without a joined rollout record; see
    ``sql/slice_worst_sequences.sql``.

    Raises:
        QueryError: the store refused (see `Reader.read`).
    """
    return queries.slice_worst_sequences(
        source, run=run, first=steps[0], last=steps[1], count=count, pair=pair, sample=sample
    )


def tokens(source: Source, run: str, *, steps: Steps, count: int = 10) -> pa.Table:
    """Return the `count` worst tokens of each step by |t − r|, broken ones first, for steps with raw tokens.

    Raises:
        QueryError: the store refused, see `Reader.read`.
    """
    return queries.slice_worst_tokens(source, run=run, first=steps[0], last=steps[1], count=count)
