"""Sequences that came twice: the same sample of the same call (its time, to the microsecond), with the same tokens, in
another segment. Samples that are trained on again, in a later step or call, are none.

They count all the same; what is said here is that a writer's records were brought twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from logprobe.monitor.live.memory import Run, Step
from logprobe.monitor.live.rows import NONE, Rows

_TRAINED: Final = ("sample", "time", "n_total", "n_expected", "token_hash", "rank")
_SAMPLED: Final = ("sample", "time", "n_tokens", "token_hash", "replica")


@dataclass(frozen=True, slots=True)
class Doubled:
    """Sequences of a segment that another one, `first_in`, has brought as well; `example`: one of their names."""

    segment: str
    first_in: str
    sequences: int
    tokens: int
    example: str


def of_step(step: Step) -> list[Doubled]:
    """Return the doubled training records of a step, by segment; of several segments the first in order is no double.

    A record that a later attempt has replaced is none.
    """
    return list(_doubled(step.trained, _TRAINED, "n_total", step.counted_S.nonzero()[0].tolist()))


def of_rollouts(run: Run) -> list[Doubled]:
    """Return the doubled rollout records of a run, by segment."""
    return list(_doubled(run.sampled, _SAMPLED, "n_tokens", range(len(run.sampled))))


def _doubled(rows: Rows, names: Sequence[str], tokens: str, some: Iterable[int]) -> Iterator[Doubled]:
    if not len(rows):
        return
    columns = [rows[name].tolist() for name in names]
    segments, sizes = rows["segment"].tolist(), rows[tokens].tolist()
    same: dict[tuple[Any, ...], list[int]] = {}
    for row in some:
        if columns[1][row] != NONE:
            same.setdefault(tuple(column[row] for column in columns), []).append(row)
    by_segment: dict[str, list[tuple[int, str]]] = {}
    for group in same.values():
        first = min(segments[row] for row in group)
        for row in group:
            if segments[row] != first:
                by_segment.setdefault(segments[row], []).append((row, first))
    for segment, found in sorted(by_segment.items()):
        example = min(columns[0][row] for row, _ in found)
        yield Doubled(
            segment, min(first for _, first in found), len(found), sum(sizes[row] for row, _ in found), example
        )
