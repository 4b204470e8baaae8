"""Effect of weight updates on requests in flight: mismatch by distance to the switch and by reused prefix cache.

Two faults look alike in a step's mean but differ here. Keys and values kept from old weights leave a lasting increase
at the switch (distance 0). A prefix cache that outlives an update makes requests with cached prompt tokens worse than
the others, with or without a switch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from logprobe.monitor import queries
from logprobe.monitor.analysis.slices import Steps
from logprobe.monitor.queries import Source

Question = Literal["after_switch", "before_switch", "cached", "in_flight"]
Row = Mapping[str, Any]

_SURE: Final = 3.0  # standard errors
_RELEVANT: Final = 0.1  # of what is compared with: smaller differences are real and mean nothing


def around_updates(source: Source, run: str, *, steps: Steps = (None, None), reach: int = 16) -> pa.Table:
    """Return the mismatch by distance, in sampled tokens, to a switch of the weight version inside the sequence.

    Args:
        source: a `Reader` or a `Store`.
        run: name of the run.
        steps: first and last step, both included, or None for no bound. Only steps with raw tokens have rows.
        reach: largest distance, before and after.

    Returns:
        ``distance`` (0 for the first token of the new weights, −1 for the last of the old, null for the control group
        of sequences without a switch), ``sequences``, ``tokens`` (valid ones), ``broken``, ``logprob_abs_diff_mean``
        and its standard error ``logprob_abs_diff_error`` (tokens taken as independent), ``log_ratio_mean``, ``k3_kl``.
        Tokens before a switch come from older weights, so staleness alone makes them worse. Compare distance 0 with
        null where the trainer has the new weights.

    Raises:
        QueryError: the store refused (see `Reader.read`).
    """
    return queries.event_study_switch(source, run=run, first=steps[0], last=steps[1], reach=reach)


def by_cached_prefix(source: Source, run: str, *, steps: Steps = (None, None)) -> pa.Table:
    """Return the mismatch of requests by use of the prefix cache and by weight updates during the request.

    Returns:
        ``cached`` and ``in_flight`` (true, false, null if the engine did not report it), ``sequences``, ``tokens``,
        ``broken``, ``logprob_abs_diff_mean`` and its standard error ``logprob_abs_diff_error`` (clustered by sequence,
        null for a single one), ``log_ratio_mean``, ``k3_kl``. Statistics suffice, without raw tokens.

    Raises:
        QueryError: the store refused (see `Reader.read`).
    """
    return queries.event_study_cached(source, run=run, first=steps[0], last=steps[1])


@dataclass(frozen=True)
class Contrast:
    """Comparison of two groups of tokens by ``logprob_abs_diff_mean``, which is None for a group with too few tokens.

    `question`: name of the comparison. "after_switch" compares tokens of the new weights with sequences without a
    switch. "before_switch" compares the last tokens of the old weights with those of the new. "cached" compares
    requests with and without cached prompt tokens, without an update in flight. "in_flight" compares requests with and
    without an update.
    """

    question: Question
    gap: float | None
    other: float | None
    error: float | None  # standard error of the difference

    @property
    def verdict(self) -> Literal["worse", "better", "same", "unknown"]:
        """Compare the two mismatches. "worse" and "better" require a significant difference above a tenth of the other
        value.
        """
        if self.gap is None or self.other is None or self.error is None:
            return "unknown"
        difference = self.gap - self.other
        if abs(difference) <= max(_SURE * self.error, _RELEVANT * self.other):
            return "same"
        return "worse" if difference > 0 else "better"


def contrasts(switches: Sequence[Row], cached: Sequence[Row]) -> tuple[Contrast, ...]:
    """Return a contrast for each question from the rows of `around_updates` and of `by_cached_prefix`.

    Means are pooled by tokens, and groups are treated as independent. A token between two switches has two distances,
    so the true errors around switches are somewhat larger.
    """
    after = [row for row in switches if row["distance"] is not None and row["distance"] >= 0]
    before = [row for row in switches if row["distance"] is not None and row["distance"] < 0]
    without = [row for row in switches if row["distance"] is None]
    still = [row for row in cached if row["in_flight"] is False]
    return (
        _contrast("after_switch", after, without),
        _contrast("before_switch", before, after),
        _contrast("cached", _where(still, "cached", is_=True), _where(still, "cached", is_=False)),
        _contrast("in_flight", _where(cached, "in_flight", is_=True), still),
    )


def _where(rows: Iterable[Row], name: str, *, is_: bool) -> list[Row]:
    return [row for row in rows if row[name] is is_]


def _contrast(question: Question, group: Sequence[Row], others: Sequence[Row]) -> Contrast:
    (gap, error), (other, other_error) = _pooled(group), _pooled(others)
    measured = error is not None and other_error is not None
    return Contrast(question, gap, other, math.hypot(error or 0.0, other_error or 0.0) if measured else None)


def _pooled(rows: Sequence[Row]) -> tuple[float | None, float | None]:
    """Return the mean over all tokens and its standard error. The error is None if a part has none."""
    parts = [row for row in rows if row["tokens"] and row["logprob_abs_diff_mean"] is not None]
    tokens = sum(row["tokens"] for row in parts)
    if not tokens:
        return None, None
    mean = sum(row["tokens"] * row["logprob_abs_diff_mean"] for row in parts) / tokens
    errors = [row["logprob_abs_diff_error"] for row in parts]
    if any(error is None for error in errors):
        return mean, None
    squares = sum((row["tokens"] * error) ** 2 for row, error in zip(parts, errors, strict=True))
    return mean, math.sqrt(squares) / tokens
