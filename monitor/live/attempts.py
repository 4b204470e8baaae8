"""Find records of a step that a later attempt of the same rank has replaced.

Only the trainer's own events identify a new attempt (`Recorder.begins`). Ranks, micro-batches and sessions that work
concurrently are one attempt. A record is replaced under three conditions:

- A trainer of its rank began after the record, at that step or an earlier one.
- That trainer has recorded the step since.
- The record's writer is that trainer, or has recorded no training after that beginning.

Dimensions: ``_S`` training records of a step.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from logprobe.monitor.live.rows import NONE

EVENTS: Final = ("started", "training_begins")


@dataclass(frozen=True, slots=True)
class Sign:
    """One event of a trainer, of `EVENTS`. `time`: microseconds, or `NONE`. `again`: its session has trained before."""

    writer: str
    event: str
    time: int
    step: int | None
    rank: int | None
    again: bool = False

    @classmethod
    def of(cls, row: Mapping[str, Any], time: int) -> Sign:
        """Return the event of a health record."""
        try:
            said = json.loads(row["details"] or "null")
            rank = said["rank"]
            known = None if rank is None or isinstance(rank, bool) else int(rank)
            return cls(row["writer"], row["event"], time, row["step"], known, said.get("again") is True)
        except (ValueError, TypeError, KeyError, OverflowError):
            return cls(row["writer"], row["event"], time, row["step"], None)


@dataclass(frozen=True, slots=True)
class Older:
    """Replaced records of a step: `rows_S`, and by rank the start of the newest attempt.

    `by`: row → writer and start of the replacing attempt.
    """

    rows_S: NDArray[np.bool_]
    began: Mapping[int, int]  # rank, or `NONE`, → time
    by: Mapping[int, tuple[str, int]]

    def scalars(self, rank: int, time: int) -> bool:
        """Return whether a step record belongs to an attempt whose training records were replaced."""
        return rank in self.began and time != NONE and time < self.began[rank]


def beginnings(signs: Iterable[Sign]) -> Sequence[Sign]:
    """Return the events that begin training, or nothing if no rank can have trained a step twice."""
    by_rank: dict[int | None, list[Sign]] = {}
    for sign in signs:
        if sign.time != NONE:
            by_rank.setdefault(sign.rank, []).append(sign)
    again = any(_began_again(of_rank) for of_rank in by_rank.values())
    begun = [sign for of_rank in by_rank.values() for sign in of_rank if _is_beginning(sign)]
    return begun if again else []


def _is_beginning(sign: Sign) -> bool:
    return sign.event == "training_begins" and sign.step is not None


def _began_again(signs: Sequence[Sign]) -> bool:
    return any(sign.again and _is_beginning(sign) for sign in signs) or any(
        later.event == "training_begins"
        and earlier.time < later.time
        and (earlier.writer != later.writer or earlier.event == later.event)
        for later in signs
        for earlier in signs
    )


def older(
    step: int, trained: Mapping[str, NDArray[Any]] | Any, begun: Sequence[Sign], last: Mapping[str, int]
) -> Older | None:
    """Return the replaced records of a step, or None if there are none.

    `trained`: columns ``rank``, ``time``, ``writer``. `last`: writer → time of its newest training record of any step.
    """
    by: dict[int, tuple[str, int]] = {}
    for begin in sorted(begun, key=lambda sign: (sign.time, sign.writer)):
        if begin.step is not None and begin.step <= step:
            rows = np.flatnonzero(_left_behind(begin, trained, last)).tolist()
            by |= dict.fromkeys(rows, (begin.writer, begin.time))
    if not by:
        return None
    rows_S = np.zeros(len(trained["time"]), np.bool_)
    rows_S[list(by)] = True
    began: dict[int, int] = {}
    for row, (_, time) in by.items():
        rank = int(trained["rank"][row])
        began[rank] = max(time, began.get(rank, NONE))
    return Older(rows_S, began, by)


def _left_behind(begin: Sign, trained: Any, last: Mapping[str, int]) -> NDArray[np.bool_]:
    of_rank_S = trained["rank"] == (NONE if begin.rank is None else begin.rank)
    own_S = trained["writer"] == begin.writer
    if not (of_rank_S & own_S & (trained["time"] >= begin.time)).any():
        return np.zeros(len(of_rank_S), np.bool_)
    ended = [writer for writer in set(trained["writer"].tolist()) if NONE < last.get(writer, NONE) < begin.time]
    gone_S = own_S | np.isin(trained["writer"], ended) if ended else own_S
    before_S = (trained["time"] != NONE) & (trained["time"] < begin.time)
    return np.asarray(of_rank_S & gone_S & before_S)
