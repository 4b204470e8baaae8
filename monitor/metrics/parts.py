"""Merging of statistics from ranks and micro-batches in different processes, and the metrics of the whole.

Dimensions: ``_S`` sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import InputError
from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMNS, Statistics, empty
from logprobe.monitor.metrics.catalog import evaluate
from logprobe.monitor.metrics.sums import Groups, StepSums


def merge(*parts: Mapping[str, Statistics]) -> dict[str, Statistics]:
    """Return the statistics of a whole batch from its parts, with concatenated sequences.

    Args:
        parts: results of `logprobe.monitor.metrics.statistics`. Sequences of a part without a pair have no valid token
            of that pair, which lowers its coverage.

    Raises:
        InputError: another type.
    """
    if any(not isinstance(part, Mapping) or part.keys() - set(PAIRS) for part in parts):
        raise InputError(f"merge: takes what `statistics` returned, a mapping by pair: {', '.join(PAIRS)}")
    present = [part for part in parts if part]
    pairs = [pair for pair in PAIRS if any(pair in part for part in present)]
    return {pair: _concatenated([_of_pair(part, pair) for part in present]) for pair in pairs}


def from_statistics(statistics: Mapping[str, Statistics]) -> dict[str, float | None]:
    """Return every metric that follows from statistics, with the values of `logprobe.monitor.metrics.compute`.

    Args:
        statistics: result of `logprobe.monitor.metrics.statistics` or `merge`.

    Returns:
        ``<pair>.<key>`` or ``<key>`` → value, None for metrics without statistics, such as entropy and reward.
    """
    expected = next((columns["n_expected"] for columns in statistics.values()), np.empty(0))
    unknown = np.full(len(expected), np.nan)
    step = StepSums(
        groups=one_group(len(expected)),
        n_expected=expected.astype(np.float64),
        reward=unknown,
        advantage_abs_sum=unknown,
        entropy_sum=unknown,
        entropy_n=unknown,
        token_match=unknown,
        length_match=unknown,
    )
    return step_values(step, statistics)


def step_values(step: StepSums, statistics: Mapping[str, Statistics]) -> dict[str, float | None]:
    """Return every metric of the single group of these statistics."""
    for pair, columns in statistics.items():
        compared = _compared(columns)
        step.add_pair(pair, {name: columns[name][compared] for name in COLUMNS}, one_group(int(compared.sum())))
    return {key: None if np.isnan(values[0]) else float(values[0]) for key, values in evaluate(step).items()}


def one_group(size: int) -> Groups:
    """Return a single group of all sequences."""
    return Groups(np.zeros(size, np.intp), 1)


def uncompared(expected_S: NDArray[np.int64]) -> Statistics:
    """Return the statistics of incomparable sequences, with tokens under the mask and NaN as the smallest d."""
    size = len(expected_S)
    return {**empty(size), "n_expected": expected_S, "min_d": np.full(size, np.nan)}


def _compared(columns: Statistics) -> NDArray[np.bool_]:
    """Return a flag per sequence that is not `uncompared` [S]."""
    return ~np.isnan(columns["min_d"])


def _of_pair(part: Mapping[str, Statistics], pair: str) -> Statistics:
    return part[pair] if pair in part else uncompared(next(iter(part.values()))["n_expected"])


def _concatenated(parts: Sequence[Statistics]) -> Statistics:
    return {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
