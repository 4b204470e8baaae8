"""Exclude late records of frozen steps, whose sequences were removed, unless a later attempt has begun.

Dimensions: ``_S`` training records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from logprobe.monitor.live.attempts import Sign
from logprobe.monitor.live.memory import Memory, Run, StepKey, signs_of
from logprobe.monitor.live.past import PastStep
from logprobe.monitor.live.records import Arrived
from logprobe.monitor.live.rows import NONE, whole_numbers

_KINDS: Final = ("training", "statistics")


def without_frozen(
    memory: Memory, arrived: Mapping[str, Arrived]
) -> tuple[Mapping[str, Arrived], dict[StepKey, int], list[StepKey]]:
    """Return the arrived rows without late records of frozen steps, the number of late records by step, and the steps
    to thaw.

    Known runs were loaded before (see `recall.meet`).
    """
    kept, late, thawed = dict(arrived), Counter[StepKey](), set[StepKey]()
    for kind in _KINDS:
        if kind not in arrived:
            continue
        table = arrived[kind].stored
        if not any(name in memory.runs and memory.runs[name].frozen for name in table["run"].unique().to_pylist()):
            continue
        keeps = np.ones(table.num_rows, np.bool_)
        of_frozen = [(row, *key) for row, key in enumerate(_keys(table)) if _is_frozen(memory, *key)]
        if not of_frozen:
            continue
        coming = signs_of(arrived["health"].stored) if "health" in arrived else []
        times, ranks = whole_numbers(table["time"]), whole_numbers(table["rank"])
        for row, name, number in of_frozen:
            run = memory.runs[name]
            signs = [*run.signs, *(sign for of_run, sign in coming if of_run == name)]
            if _is_again(run, number, int(times[row]), int(ranks[row]), signs):
                thawed.add((name, number))
            else:
                keeps[row] = False
                late[name, number] += 1
        mask = pa.array(keeps)
        kept[kind] = Arrived(arrived[kind].raw.filter(mask).combine_chunks(), table.filter(mask).combine_chunks())
    for name, number in thawed:
        run = memory.runs[name]
        time = run.frozen.pop(number)
        if run.past is not None:  # its step records are in the store
            run.past.steps[number] = PastStep(time, time, met=False, by_tokens=False)
    return kept, dict(late), sorted(thawed)


def _keys(table: pa.Table) -> Iterable[StepKey]:
    return zip(table["run"].to_pylist(), table["step"].to_pylist(), strict=True)


def _is_frozen(memory: Memory, name: str, number: int) -> bool:
    return (run := memory.runs.get(name)) is not None and number in run.frozen


def _is_again(run: Run, number: int, time: int, rank: int, signs: Iterable[Sign]) -> bool:
    """Return whether a later attempt, which began at the step or an earlier one, made the record."""
    return any(
        sign.event == "training_begins"
        and sign.step is not None
        and sign.step <= number
        and (NONE if sign.rank is None else sign.rank) == rank
        and run.frozen[number] < sign.time <= time
        for sign in signs
    )
