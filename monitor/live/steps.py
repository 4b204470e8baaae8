"""Compute the sums by step that the metric catalog is evaluated on, for many steps of many runs at once.

Dimensions: ``_S`` training records, ``_G`` steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMN_SPECS
from logprobe.monitor.live.attempts import older
from logprobe.monitor.live.memory import Run, Step, Told
from logprobe.monitor.live.records import ALIGNMENTS, BY_PARTS, HAS, SCALARS, UNBOUNDED
from logprobe.monitor.live.rows import NONE, nothing
from logprobe.monitor.live.sequence_rows import ROUTE_COLUMNS
from logprobe.monitor.live.sequences import CLOCK
from logprobe.monitor.live.versions import Piece, Spans, by_version, counts, known_spans, pieces
from logprobe.monitor.metrics.lag import Versions, is_number
from logprobe.monitor.metrics.publications import publication_rows
from logprobe.monitor.metrics.sums import Floats, Groups, Lag, Publications, StepSums

_NUMBERS: Final = (
    "n_expected",
    "reward",
    "advantage_abs_sum",
    "entropy_sum",
    "entropy_n",
    "token_match",
    "length_match",
    *ROUTE_COLUMNS,
)
_PREFIX: Final = ALIGNMENTS.index("prefix")
_Kind = tuple[str | None, tuple[str | None, ...]]  # the trainer's version, and those of a sequence's tokens


def settle(steps: Iterable[Step]) -> None:
    """Find the records that an earlier attempt has left in some steps."""
    for step in steps:
        again = step.run.begun and len(step.trained)
        step.older = older(step.number, step.trained, step.run.begun, step.run.last) if again else None


def step_sums(steps: Sequence[Step]) -> StepSums:
    """Return the sums of linked steps (see `sequences`) in their order [G]."""
    counted = [np.flatnonzero(step.counted_S) for step in steps]
    groups = Groups(np.repeat(np.arange(len(steps)), [len(rows) for rows in counted]), len(steps))
    versions = [_Versions(step, rows) for step, rows in zip(steps, counted, strict=True)]
    columns: dict[str, Any] = {name: _column(steps, counted, name) for name in _NUMBERS}
    result = StepSums(
        groups=groups,
        lag=_lag(steps, versions),
        scalars=_scalars(steps),
        routes={name: columns.pop(name) for name in ROUTE_COLUMNS},
        versions={
            "versions_compared": np.concatenate([_EMPTY, *(v.compared_S for v in versions)]),
            "versions_differing": np.concatenate([_EMPTY, *(v.differing_S for v in versions)]),
        },
        publications=_publications(steps),
        **columns,
    )
    for pair in PAIRS:
        has_S = _column(steps, counted, HAS + pair).astype(np.bool_)
        if has_S.any():
            values = _column(steps, counted, pair)[has_S]
            statistics = {c.name: values[:, place].astype(c.dtype) for place, c in enumerate(COLUMN_SPECS)}
            result.add_pair(pair, statistics, groups.where(has_S))
    return result


_EMPTY: Final = np.empty(0)


def newest_counted(step: Step) -> int:
    """Return the time of the newest record of a step without those of earlier attempts, or `NONE`."""
    trained = step.trained["time"][step.counted_S] if len(step.trained) else np.empty(0, np.int64)
    return max((int(trained.max()) if len(trained) else NONE, *(told.time for told in step.counted_told())))


def _column(steps: Sequence[Step], counted: Sequence[NDArray[np.intp]], name: str) -> NDArray[Any]:
    parts = [step.trained[name][rows] for step, rows in zip(steps, counted, strict=True) if len(rows)]
    column: NDArray[Any] = np.concatenate(parts) if parts else _EMPTY
    return column.astype(np.float64) if column.dtype.kind == "i" else column


class _Versions:
    """Versions that sampled the tokens of a step's records [S], and groups of sequences with equal versions."""

    def __init__(self, step: Step, rows: NDArray[np.intp]) -> None:
        self.compared_S = np.full(len(rows), np.nan)
        self.differing_S = np.full(len(rows), np.nan)
        self.kinds: dict[_Kind, tuple[dict[str | None, int], int]] = {}
        if len(rows):
            self._add_all(step, rows)
        step.labels = frozenset(label for ours, theirs in self.kinds for label in (ours, *theirs) if label is not None)

    def _add_all(self, step: Step, rows: NDArray[np.intp]) -> None:
        """Add sequences whose version is known from the engine alone, which is the most frequent case."""
        trained, sampled = step.trained, step.run.sampled
        links = trained["link"][rows]
        n, covered = trained["n_expected"][rows], np.full(len(rows), UNBOUNDED)
        versions = nothing(len(rows))
        if (linked := links >= 0).any():
            theirs = links[linked]
            prefix = trained["alignment"][rows][linked] == _PREFIX
            n[linked] = np.where(prefix, n[linked], sampled["n_tokens"][theirs])
            covered[linked], versions[linked] = sampled["covered"][theirs], sampled["version"][theirs]
            covered[ahead(step, rows, links)] = -1
        ours, stated = trained["trainer_version"][rows].tolist(), trained["stated"][rows].tolist()
        silent = np.array([said is None for said in stated], np.bool_)
        simple = silent & (covered >= n) & (trained["how"][rows] != BY_PARTS)
        self._add_alike([*zip(ours, versions.tolist(), strict=True)], np.where(simple, n, 0))
        for place in np.flatnonzero(~simple).tolist():
            if stated[place] is None:
                self._add(ours[place], by_version(*_sampled(step, rows[place])))
            else:
                spans, count, (self.compared_S[place], self.differing_S[place]) = _with_stated(step, rows[place])
                self._add(ours[place], by_version(spans, count))

    def _add_alike(self, versions: Sequence[tuple[str | None, str | None]], n_S: NDArray[np.int64]) -> None:
        """Add sequences with tokens by the trainer's version and their only token version."""
        codes = {pair: code for code, pair in enumerate(dict.fromkeys(versions))}
        code_S = np.array([codes[pair] for pair in versions], np.intp)
        tokens, alike = (np.bincount(code_S, weights).astype(int).tolist() for weights in (n_S, n_S > 0))
        for (ours, version), n, count in zip(codes, tokens, alike, strict=True):
            if count:
                self._add(ours, {version: n}, count)

    def _add(self, trainer_version: str | None, tokens: Mapping[str | None, int], alike: int = 1) -> None:
        """Add all tokens of sequences with equal versions."""
        if not tokens:
            return
        versions = tuple(tokens) if len(tokens) == 1 else tuple(sorted(tokens, key=lambda v: (v is None, v or "")))
        kind = (trainer_version, versions)
        before, count = self.kinds.get(kind, ({}, 0))
        self.kinds[kind] = ({version: n + before.get(version, 0) for version, n in tokens.items()}, count + alike)


def engine_spans(step: Step, row: int) -> tuple[Spans | None, int | None]:
    """Return the versions of a record according to the engine, and the number of sampled tokens."""
    if step.trained["how"][row] == BY_PARTS:
        parts = step.parts[row]
        return (None if ahead(step, row, [*parts.numbers]).any() else parts.spans(step.run)), parts.n_tokens
    number = int(step.trained["link"][row])
    if number < 0:
        return None, None
    return (None if ahead(step, row, number) else step.run.spans[number]), int(step.run.sampled["n_tokens"][number])


def ahead(step: Step, rows: Any, links: Any) -> Any:
    """Return a mask of rollout records with a step that began, by the engine's clock, after the training record's time.

    For these, no clock shows which of the trainer's marks preceded that step.
    """
    ended, trained_at = step.run.sampled["ended"][links], step.trained["time"][rows]
    return (np.asarray(links) >= 0) & (trained_at != NONE) & (ended > trained_at + CLOCK)


def _sampled(step: Step, row: int) -> tuple[Spans | None, int]:
    """Return the engine's versions and the number of tokens to count.

    Tokens sampled beyond the trained ones, or appended by the trainer, must not change the lag.
    """
    spans, n = engine_spans(step, row)
    prefix = step.trained["alignment"][row] == _PREFIX
    return spans, int(step.trained["n_expected"][row]) if prefix or n is None else n


def version_pieces(step: Step, row: int) -> list[Piece]:
    """Return the versions of a record according to engine and trainer, if the trainer states any."""
    alignment = ALIGNMENTS[step.trained["alignment"][row]]
    return pieces(engine_spans(step, row)[0], step.trained["stated"][row], alignment)


def _with_stated(step: Step, row: int) -> tuple[Spans, int, tuple[int, int]]:
    code, n = int(step.trained["alignment"][row]), engine_spans(step, row)[1]
    found = version_pieces(step, row)
    if n is None or code in {-1, _PREFIX}:
        n = int(step.trained["n_expected"][row])
    return known_spans(found), n, counts(found)


def _lag(steps: Sequence[Step], versions: Sequence[_Versions]) -> Lag:
    of_runs = orders(steps)
    rows: list[tuple[int, int, int, bool, int, float, float, float]] = []
    sequence = 0
    for place, (step, found) in enumerate(zip(steps, versions, strict=True)):
        for (ours, _), (tokens, alike) in found.kinds.items():
            for version, count in tokens.items():
                lag = of_runs[step.run].lag(ours, version)
                rows.append((place, sequence, count, version is not None, alike, *lag))
            sequence += 1
    columns = [np.array(column) for column in zip(*rows, strict=True)] if rows else [_EMPTY] * 8
    place_K, sequence_K, tokens_K, known_K, alike_K, versions_K, steps_K, seconds_K = columns
    return Lag(
        groups=Groups(place_K.astype(np.intp), len(steps)),
        sequence=sequence_K.astype(np.intp),
        tokens=tokens_K.astype(np.float64),
        known=known_K.astype(np.bool_),
        versions=versions_K,
        steps=steps_K,
        seconds=seconds_K,
        alike=alike_K.astype(np.float64),
    )


def orders(steps: Sequence[Step]) -> Mapping[Run, Versions]:
    """Return the known order of version labels in some steps, by run.

    If labels are ordered by appearance, all labels of the run are included.
    """
    labels: dict[Run, set[str]] = {}
    for step in steps:
        labels.setdefault(step.run, set()).update(step.labels)
    return {
        run: Versions.of(
            [record for label in some for record in run.of_version.get(label, ())]
            if all(map(is_number, some))
            else run.weights
        )
        for run, some in labels.items()
    }


def _publications(steps: Sequence[Step]) -> Publications:
    places = {(step.run.name, step.number): place for place, step in enumerate(steps)}
    named = {(step.run, version) for step in steps for version in step.run.results.get(step.number, ())}
    rows = publication_rows(places, [record for run, version in named for record in run.of_version[version]])
    durations = np.array([row[2:] for row in rows], np.float64).reshape(-1, 3)
    return Publications(Groups(np.array([row[0] for row in rows], np.intp), len(steps)), *durations.T)


def _scalars(steps: Sequence[Step]) -> Mapping[str, Floats]:
    """Return the scalars that trainers reported for whole steps, as a mean over ranks [G].

    Each rank contributes its newest value, or the largest of several equally new ones.
    """
    result = {name: np.full(len(steps), np.nan) for name in (*SCALARS, "is_weight_mean", "clipped_frac")}
    for place, step in enumerate(steps):
        told = step.counted_told()
        for name in SCALARS:
            if any(name in each.values for each in told):
                result[name][place] = _mean(_newest(told, name))
        if any(each.correction is not None for each in told):
            weights, clipped = _corrections(told)
            result["is_weight_mean"][place], result["clipped_frac"][place] = weights, clipped
    return result


def _newest(told: Sequence[Told], name: str) -> list[float]:
    by_rank: dict[int, tuple[int, bool, float]] = {}
    for each in told:
        if (value := each.values.get(name)) is not None:
            candidate = (each.time, math.isnan(value), value)
            by_rank[each.rank] = max(by_rank.get(each.rank, candidate), candidate)
    return [value for *_, value in by_rank.values()]


def _mean(values: Sequence[float]) -> float:
    return _added(values) / len(values) if values else math.nan


def _added(values: Iterable[float]) -> float:
    """Add numbers in ascending order and round the sums, so that the order of arrival does not matter."""
    total = 0.0
    for value in sorted(values):
        total += value
    return total


def _corrections(told: Sequence[Told]) -> tuple[float, float]:
    """Return the means over all tokens of the ranks and micro-batches that state a correction. Skip invalid
    documents."""
    reports = [report for each in told if (report := _report(each.correction)) is not None]
    reports = [report for report in reports if (report["tokens"] or 0) > 0]
    means = []
    for name in ("is_weight_mean", "clipped_frac"):
        known = [(report[name], report["tokens"]) for report in reports]
        products = [value * tokens for value, tokens in known if value is not None and tokens is not None]
        total = _added(tokens for _, tokens in known if tokens is not None)
        means.append(_added(products) / total if products else math.nan)
    return means[0], means[1]


def _report(correction: str | None) -> dict[str, float | None] | None:
    try:
        document = json.loads(correction or "null", parse_constant=_refuse)
        report = document.get("report") if isinstance(document, dict) else None
    except ValueError:
        return None
    if not isinstance(report, dict):
        return None
    return {name: _number(report.get(name)) for name in ("tokens", "is_weight_mean", "clipped_frac")}


def _refuse(constant: str) -> float:
    raise ValueError(f"JSON does not allow {constant}; use null")


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
