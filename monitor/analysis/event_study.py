"""Effect of weight updates on requests in flight: the gap by distance to the switch, and by what was reused from before
it.

Two faults look alike in a step's mean and apart here. Keys and values computed under old weights and kept across an
update leave a step at the switch (distance 0) that stays; a prefix cache that outlives an update makes requests with
cached prompt tokens worse than those without, switch or not.
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
    """Return the gap by distance of a token, in sampled tokens, to a switch of the weight version inside its sequence.

    Args:
        source: a `Reader` or a `Store`.
        run: which run.
        steps: first and last, both included; None: no bound. Only steps whose raw tokens are kept have any rows.
        reach: largest distance, before and after.

    Returns:
        ``distance`` (0: first token of the new weights, −1: last of the old; null: sequences without a switch, to
        compare with), ``sequences``, ``tokens`` (valid ones), ``broken``, ``logprob_abs_diff_mean`` and its standard
        error ``logprob_abs_diff_error`` (tokens taken as independent), ``log_ratio_mean``, ``k3_kl``. Tokens before a
        switch come from older weights than those after it, so staleness alone makes them worse: compare distance 0 with
        null where the trainer has the new weights.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    return queries.event_study_switch(source, run=run, first=steps[0], last=steps[1], reach=reach)


def by_cached_prefix(source: Source, run: str, *, steps: Steps = (None, None)) -> pa.Table:
    """Return the gap of requests with and without prompt tokens from the prefix cache, and with and without an update
    while they ran.

    Returns:
        ``cached`` and ``in_flight`` (true, false, null where the engine did not say), ``sequences``, ``tokens``,
        ``broken``, ``logprob_abs_diff_mean`` and its standard error ``logprob_abs_diff_error`` (clustered by sequence;
        null for a single one), ``log_ratio_mean``, ``k3_kl``. From statistics: raw tokens are not needed.

    Raises:
        QueryError: the store refused; see `Reader.read`.
    """
    return queries.event_study_cached(source, run=run, first=steps[0], last=steps[1])


@dataclass(frozen=True)
class Contrast:
    """Two groups of tokens compared by their gap, ``logprob_abs_diff_mean``; None where a group has too few.

    `question`: "after_switch": tokens of the new weights against tokens of sequences without a switch; "before_switch":
    the last tokens of the old weights against those of the new; "cached": requests with cached prompt tokens against
    those without, no update in flight; "in_flight": requests with an update against those without.
    """

    question: Question
    gap: float | None
    other: float | None
    error: float | None  # standard error of the difference

    @property
    def verdict(self) -> Literal["worse", "better", "same", "unknown"]:
        """Compare the two gaps: "worse" or "better" only if they differ beyond doubt and by more than a tenth of the
        other."""
        if self.gap is None or self.other is None or self.error is None:
            return "unknown"
        difference = self.gap - self.other
        if abs(difference) <= max(_SURE * self.error, _RELEVANT * self.other):
            return "same"
        return "worse" if difference > 0 else "better"


def contrasts(switches: Sequence[Row], cached: Sequence[Row]) -> tuple[Contrast, ...]:
    """Return a contrast for each question from the rows of `around_updates` and of `by_cached_prefix`.

    Means are pooled by tokens, and groups taken as independent. A token between two switches is at two distances, so
    errors around switches are somewhat larger than stated.
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
    """Mean over all tokens and its standard error; the error is None when one of the parts has none."""
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
