"""Trained sequences that were sampled in several engine requests: their rollout records become one.

A sequence whose parts its trainer named waits until all have arrived. One that was named at the engine (`trajectory`)
takes those that are there, in the order of their prompts, each of which holds what came before.

Dimensions: ``_K`` tokens under the trainer's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.recorder.arrays import offsets_of
from logprobe.monitor import ragged
from logprobe.monitor.ingest.trajectories import Part, Trajectory, trajectory
from logprobe.monitor.live.memory import Memory, Run, Step
from logprobe.monitor.live.rows import NONE
from logprobe.monitor.live.versions import Spans


@dataclass(frozen=True, slots=True)
class Parts:
    """The rollout records `numbers` as one record of the sequence."""

    numbers: tuple[int, ...]
    sequence: Trajectory

    @property
    def complete(self) -> bool:
        """Whether every token under the mask was sampled by one of the parts."""
        return self.sequence.complete

    @property
    def record(self) -> dict[str, Any]:
        """Its token lists."""
        if self.sequence.placed:
            return {"token_ids": self.sequence.token_ids_K, "logprobs": self.sequence.logprobs_K(), "routes": None}
        ids = np.concatenate([part.token_ids for part in self.sequence.parts])
        return {"token_ids": ids, "logprobs": np.full(len(ids), np.nan, np.float32), "routes": None}

    @property
    def n_tokens(self) -> int:
        """Tokens under the mask."""
        return len(self.sequence.token_ids_K)

    def spans(self, run: Run) -> Spans:
        """Return the versions of the tokens under the mask, as the run's marks decide them now."""
        parts = {
            id(part): replace(part, row={**part.row, "spans": _as_dicts(run.spans[number])})
            for number, part in zip(self.numbers, self.sequence.parts, strict=True)
        }
        placed = [replace(place, part=parts[id(place.part)]) for place in self.sequence.placed or ()]
        spans: list[Any] = replace(self.sequence, placed=placed).spans()
        return tuple((span["start"], span["end"], span["version"]) for span in spans)


def choose_parts(step: Step, row: int) -> list[int] | None:
    """Return the rollout record of each part of a sequence, in order; None if one is missing."""
    run, names = step.run, step.trained["part_ids"][row]
    if names is not None:
        places = [run.by_name.get(name, []) for name in names]
        return [min(some, key=_nearest(step, row)) for some in places] if all(places) and places else None
    groups = _by_prompts(run, run.by_trajectory.get(step.trained["sample"][row], ()))
    return [min(some, key=_newest(run)) for some in groups] or None


def ambiguous_parts(step: Step, row: int, chosen: Sequence[int], clock: int) -> bool:
    """Return whether a part has records with the same tokens that were there before, and say different things."""
    run, names = step.run, step.trained["part_ids"][row]
    rows = run.sampled
    for place, number in enumerate(chosen):
        if names is not None:
            some: Iterable[int] = run.by_name[names[place]]
        else:
            same_prompt = run.by_trajectory[step.trained["sample"][row]]
            some = [n for n in same_prompt if rows["prompt_length"][n] == rows["prompt_length"][number]]
        if len({_said(run, n) for n in some if _alike(run, n, number) and _there(step, row, n, clock)}) > 1:
            return True
    return False


def _nearest(step: Step, row: int) -> Callable[[int], tuple[Any, ...]]:
    """A key: what was there before the training first, then by how far it is away."""
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
    """Rollout records of one trajectory, those of each request together, in the order of their prompts."""
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
    """Find which tokens of a sequence each of its requests sampled."""
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
    return Parts(
        numbers, trajectory(ragged.flat_ids(ours["token_ids"]), ragged.flat_mask(ours["mask"], lengths), parts)
    )


def _part(run: Run, number: int, ids: NDArray[np.int32], logprobs: NDArray[np.float32]) -> Part:
    length = int(run.sampled["prompt_length"][number])
    row = {"prompt_length": None if length == NONE else length, "spans": _as_dicts(run.spans[number])}
    return Part(row, ids, logprobs)


def _as_dicts(spans: Spans | None) -> list[dict[str, Any]]:
    return [{"start": start, "end": end, "version": version} for start, end, version in spans or ()]
