"""What `monitor.live` has found out about training records, by key and name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from logprobe.monitor.live.memory import Run
from logprobe.monitor.live.records import ALIGNMENTS, BY_PARTS, HOW, SOURCES

_ROUTES = ("routes_match", "routes_expected", "routes_compared", "routes_equal")


def live_sequences(run: Run) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for step in run.steps.values():
        rows = step.trained
        for row in np.flatnonzero(step.counted_S).tolist() if len(rows) else ():
            number, code, how = int(rows["link"][row]), int(rows["alignment"][row]), int(rows["how"][row])
            segment, place = (
                (None, None) if number < 0 else (run.sampled["segment"][number], int(run.sampled["row"][number]))
            )
            if how == BY_PARTS:
                segment, place = f"parts/{rows['segment'][row]}", int(rows["row"][row])
            found = {
                "rollout_source": SOURCES[rows["source"][row]],
                "rollout_segment": segment,
                "rollout_row": place,
                "alignment": ALIGNMENTS[code],
                "joined_by": HOW[how],
                "difference": _number(rows["difference"][row]),
                **{name: _boolean(rows[name][row]) for name in ("token_match", "length_match", "routes_match")},
                **{name: _whole(rows[name][row]) for name in _ROUTES[1:]},
            }
            for name, value in found.items():
                yield (rows["segment"][row], int(rows["row"][row]), name), value


def _number(value: Any) -> float | None:
    return None if math.isnan(value) else float(value)


def _boolean(value: Any) -> bool | None:
    return None if math.isnan(value) else bool(value)


def _whole(value: Any) -> int | None:
    return None if math.isnan(value) else int(value)
