"""Join the rollout records of a trained sequence that several engine requests sampled.

If the trainer named the parts of a sequence, all of them must have arrived. If the engine named the sequence
(`trajectory`), the available parts are used in the order of their prompts. Each prompt contains the preceding tokens.

Dimensions: ``_K`` tokens under the trainer's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.recorder.arrays import offsets_of
from logprobe.monitor import ragged
from logprobe.monitor.live.memory import Memory, Run, Step
from logprobe.monitor.live.placing import Part, Trajectory, rollout_record, trajectory
from logprobe.monitor.live.rows import NONE
from logprobe.monitor.live.versions import Spans


@dataclass(frozen=True, slots=True)
class Parts:
    """The rollout records `numbers` joined to one record of the sequence.

    `stored`: token versions of a record that was read back, whose parts were placed before.
    """

    numbers: tuple[int, ...]
    sequence: Trajectory | None
    n_tokens: int  # under the mask
    stored: Spans = ()

    @property
    def complete(self) -> bool:
        """Return whether every token under the mask was sampled by one of the parts."""
        return self._sequence.complete

    @property
    def record(self) -> dict[str, Any]:
        """Token lists of the joined record."""
        sequence = self._sequence
        if sequence.placed:
            return {"token_ids": sequence.token_ids_K, "logprobs": sequence.logprobs_K(), "routes": None}
        ids = np.concatenate([part.token_ids for part in sequence.parts])
        return {"token_ids": ids, "logprobs": np.full(len(ids), np.nan, np.float32), "routes": None}

    @property
    def _sequence(self) -> Trajectory:
        if self.sequence is None:
            raise ValueError("the parts of the record have no places yet; call place_parts() first")
        return self.sequence

    def spans(self, run: Run) -> Spans:
        """Return the versions of the tokens under the mask, as determined by the run's current marks."""
        if self.sequence is None:
            return self.stored
        spans: list[Any] = self.now(run).spans()
        return tuple((span["start"], span["end"], span["version"]) for span in spans)

    def now(self, run: Run, facts: Sequence[Mapping[str, Any]] = ()) -> Trajectory:
        """Return the sequence with the versions of the run's current marks, and other facts about its parts."""
        sequence = self._sequence
        rows = facts or [part.row for part in sequence.parts]
        parts = [
            replace(part, row={**row, "spans": as_dicts(run.spans[number])})
            for number, part, row in zip(self.numbers, sequence.parts, rows, strict=True)
        ]
        if sequence.placed is None:
            return replace(sequence, parts=parts)
        by_part = {id(old): new for old, new in zip(sequence.parts, parts, strict=True)}
        placed = [replace(place, part=by_part[id(place.part)]) for place in sequence.placed]
        return replace(sequence, parts=parts, placed=placed)


def made_of_parts(step: Step, row: int, facts: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the joined record of a sequence from the store. `facts`: rows of ``sql/live_parts`` for its parts."""
    rows = [
        {**fact, "part_id": fact["sample_id"], "rollout_segment": fact["segment_id"], "rollout_row": fact["row"]}
        for fact in facts
    ]
    trained = step.trained
    ours = {
        "run": step.run.name,
        "sample_id": trained["sample"][row],
        "segment_id": trained["segment"][row],
        "row": int(trained["row"][row]),
        "rollout_source": "received" if trained["received"][row] else None,
    }
    return rollout_record(ours, step.parts[row].now(step.run, rows))


def choose_parts(step: Step, row: int) -> list[int] | None:
    """Return the rollout record of each part of a sequence in order, or None if one is missing."""
    run, names = step.run, step.trained["part_ids"][row]
    if names is not None:
        places = [run.by_name.get(name, []) for name in names]
        return [min(some, key=_nearest(step, row)) for some in places] if all(places) and places else None
    groups = _by_prompts(run, run.by_trajectory.get(step.trained["sample"][row], ()))
    return [min(some, key=_newest(run)) for some in groups] or None


def ambiguous_parts(step: Step, row: int, chosen: Sequence[int], clock: int) -> bool:
    """Return whether a part has several earlier records with equal tokens but other log-probs or versions."""
    run, names = step.run, step.trained["part_ids"][row]
    rows = run.sampled
    for place, number in enumerate(chosen):
        if names is not None:
            some: Iterable[int] = run.by_name[names[place]]
        else:
            same_prompt = run.by_trajectory[step.trained["sample"][row]]
            some = [n for n in same_prompt if rows["prompt_length"][n] == rows["prompt_length"][number]]
        alike = [n for n in some if _alike(run, n, number)]
        there = [n for n in alike if _there(step, row, n, clock)]
        if len({_said(run, n) for n in there or alike}) > 1:  # all of them later: a clock is off, and tells nothing
            return True
    return False


def _nearest(step: Step, row: int) -> Callable[[int], tuple[Any, ...]]:
    """Return a sort key that puts records before the training first, and the nearest of them at the top."""
    rows, trained_at = step.run.sampled, int(step.trained["time"][row])

    def key(number: int) -> tuple[Any, ...]:
        at = int(rows["time"][number])
        known = NONE not in {at, trained_at}
        apart = abs(at - trained_at) if known else 0
        return not (known and at <= trained_at), not known, apart, rows["segment"][number], int(rows["row"][number])

    return key


def _newest(run: Run) -> Callable[[int], tuple[Any, ...]]:
    rows = run.sampled

    def key(number: int) -> tuple[Any, ...]:
        at = int(rows["time"][number])
        return at == NONE, -at, rows["segment"][number], int(rows["row"][number])

    return key


def _by_prompts(run: Run, numbers: Sequence[int]) -> list[list[int]]:
    """Return the rollout records of one trajectory by request, in the order of their prompts."""
    rows = run.sampled
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number in numbers:
        length = int(rows["prompt_length"][number])
        key = (length == NONE, length, int(rows["token_hash"][number]), int(rows["n_tokens"][number]))
        groups.setdefault(key, []).append(number)
    return [groups[key] for key in sorted(groups)]


def _alike(run: Run, one: int, other: int) -> bool:
    return all(run.sampled[name][one] == run.sampled[name][other] for name in ("token_hash", "n_tokens"))


def _there(step: Step, row: int, number: int, clock: int) -> bool:
    at, trained_at = int(step.run.sampled["time"][number]), int(step.trained["time"][row])
    return NONE in {at, trained_at} or at <= trained_at + clock


def _said(run: Run, number: int) -> tuple[float | None, Spans | None]:
    total = float(run.sampled["logprob_sum"][number])
    return None if np.isnan(total) else total, run.spans[number]


def place_parts(memory: Memory, step: Step, row: int, numbers: tuple[int, ...]) -> Parts:
    """Find the tokens of a sequence that each of its requests sampled."""
    run = step.run
    ours = memory.training_lists.take(step.trained["lists"][row : row + 1])
    lengths = ragged.lengths(ours["token_ids"])
    theirs = memory.rollout_lists.take(run.sampled["lists"][list(numbers)])
    sizes = ragged.lengths(theirs["token_ids"])
    ids_M, logprobs_M = ragged.flat_ids(theirs["token_ids"]), ragged.flat_floats(theirs["logprobs"], sizes)
    if logprobs_M is None:
        logprobs_M = np.full(len(ids_M), np.nan, np.float32)
    ends = offsets_of(sizes)
    parts = [
        _part(run, number, ids_M[start:end], logprobs_M[start:end])
        for number, start, end in zip(numbers, ends[:-1], ends[1:], strict=True)
    ]
    placed = trajectory(ragged.flat_ids(ours["token_ids"]), ragged.flat_mask(ours["mask"], lengths), parts)
    return Parts(numbers, placed, len(placed.token_ids_K))


def _part(run: Run, number: int, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Part:
    length = int(run.sampled["prompt_length"][number])
    row = {"prompt_length": None if length == NONE else length, "spans": as_dicts(run.spans[number])}
    return Part(row, ids, logprobs)


def as_dicts(spans: Spans | None) -> list[dict[str, Any]]:
    """Return spans in their stored form."""
    return [{"start": start, "end": end, "version": version} for start, end, version in spans or ()]
