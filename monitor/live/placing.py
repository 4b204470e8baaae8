"""Place the engine requests of one trained sequence: find the tokens that each request sampled. Pure.

If every request states its prompt length, the lengths give the places, since a later prompt contains all earlier
tokens. Tokens sampled beyond the start of the next request were not trained on, for example after a late abort or a cut
stop string. If the trainer kept only sampled tokens, the requests follow each other without a gap. A placement is valid
only if all ids under the mask agree.

Dimensions: ``_N`` tokens of the trainer's record, ``_K`` those under its mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.spool.schema import SPAN

Ids = NDArray[np.int32]
_STRING, _INT = pa.string(), pa.int32()
_PART: Final = pa.struct(
    [
        *((name, _STRING) for name in ("sample_id", "segment_id", "replica", "finish_reason")),
        *((name, _INT) for name in ("row", "start", "end", "prompt_length", "cached_prefix_tokens")),
    ]
)
_ROLLOUT: Final = pa.schema(
    [
        *((name, _STRING) for name in ("run", "sample_id", "segment_id", "group_id", "replica", "prompt_hash")),
        *((name, _STRING) for name in ("finish_reason", "sampling_id", "engine_config_id", "trajectory", "adapter")),
        *((name, _INT) for name in ("row", "n_tokens", "n_logprobs", "prompt_length", "cached_prefix_tokens")),
        ("adapter_id", pa.int64()),
        ("time", pa.timestamp("us", "UTC")),
        ("logprob_sum", pa.float64()),
        ("token_hash", pa.uint64()),
        ("spans", pa.list_(SPAN)),
        ("logprobs", pa.list_(pa.float32())),
        ("parts", pa.list_(_PART)),
    ]
)


@dataclass(frozen=True, slots=True)
class Part:
    """Engine record of one request: its row of rollout_sequences and its token lists."""

    row: Mapping[str, Any]
    token_ids: Ids
    logprobs: NDArray[np.float32]  # NaN: the engine gave none


@dataclass(frozen=True, slots=True)
class Placed:
    """Place of one part: `theirs_P` (ascending) are its trained tokens, `start` the number of the first one under the
    mask."""

    part: Part
    start: int
    theirs_P: NDArray[np.intp]

    @property
    def end(self) -> int:
        """Number of the first token under the mask after the part."""
        return self.start + len(self.theirs_P)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Parts of one sequence in their places. `placed` is None if ids differ."""

    token_ids_K: Ids
    parts: Sequence[Part]
    placed: Sequence[Placed] | None

    @property
    def complete(self) -> bool:
        """Return whether each token under the mask was sampled by a part."""
        return self.placed is not None and sum(len(place.theirs_P) for place in self.placed) == len(self.token_ids_K)

    def logprobs_K(self) -> NDArray[np.float32]:
        """Return r at the source for each token under the mask [K], NaN where no part sampled the token."""
        found_K = np.full(len(self.token_ids_K), np.nan, np.float32)
        for place in self.placed or ():
            found_K[place.start : place.end] = place.part.logprobs[place.theirs_P]
        return found_K

    def spans(self) -> list[dict[str, object]]:
        """Return the weight versions of the tokens under the mask. Adjacent tokens of one version share a span."""
        spans: list[dict[str, object]] = []
        for span in (part for place in self.placed or () for part in _spans(place)):
            if spans and spans[-1]["end"] == span["start"] and spans[-1]["version"] == span["version"]:
                spans[-1] = spans[-1] | {"end": span["end"]}
            else:
                spans.append(span)
        return spans


def trajectory(token_ids_N: Ids, mask_N: NDArray[np.bool_], parts: Sequence[Part]) -> Trajectory:
    """Find the places of `parts`, which are in the order of sampling.

    >>> first = Part({"prompt_length": 2, "spans": []}, np.array([5, 6, 7]), np.zeros(3, np.float32))  # 7: never sent
    >>> second = Part({"prompt_length": 6, "spans": []}, np.array([8]), np.zeros(1, np.float32))
    >>> tokens, mask = np.array([5, 6, 90, 91, 8]), np.array([True, True, False, False, True])
    >>> [(place.start, place.end) for place in trajectory(tokens, mask, [first, second]).placed]
    [(0, 2), (2, 3)]
    """
    ids_K = token_ids_N[mask_N]
    for places in (_by_prompts(mask_N, parts), _in_a_row(ids_K, parts)):
        if (
            places is not None
            and all(_agrees(place, ids_K) for place in places)
            and any(len(place.theirs_P) for place in places)
        ):
            return Trajectory(ids_K, parts, places)
    return Trajectory(ids_K, parts, None)


def _agrees(place: Placed, ids_K: Ids) -> bool:
    return np.array_equal(ids_K[place.start : place.end], place.part.token_ids[place.theirs_P])


def _by_prompts(mask_N: NDArray[np.bool_], parts: Sequence[Part]) -> list[Placed] | None:
    lengths = [part.row["prompt_length"] for part in parts]
    if None in lengths or not mask_N.any() or any(after < before for before, after in pairwise(lengths)):
        return None
    base = int(np.argmax(mask_N))
    starts = [min(base + length - lengths[0], len(mask_N)) for length in lengths]
    places = []
    for part, start, end in zip(parts, starts, [*starts[1:], len(mask_N)], strict=True):
        theirs_P = np.flatnonzero(mask_N[start : min(end, start + len(part.token_ids))])
        places.append(Placed(part, int(mask_N[:start].sum()), theirs_P))
    return places


def _in_a_row(ids_K: Ids, parts: Sequence[Part]) -> list[Placed] | None:
    """Return the places of parts that follow each other, each up to the first id that differs.

    Returns None if the last part does not agree to its end.
    """
    places, start = [], 0
    for number, part in enumerate(parts, 1):
        theirs = part.token_ids[: len(ids_K) - start]
        differs = theirs != ids_K[start : start + len(theirs)]
        count = int(np.argmax(differs)) if differs.any() else len(theirs)
        if number == len(parts) and count < len(theirs):
            return None
        places.append(Placed(part, start, np.arange(count)))
        start += count
    return places


def _spans(place: Placed) -> Iterator[dict[str, object]]:
    """Yield the spans of a part at the trainer's token positions. Tokens without a span have an unknown version."""
    for span in place.part.row["spans"] or ():
        start, end = (int(np.searchsorted(place.theirs_P, span[name])) for name in ("start", "end"))
        if start < end:
            yield {"start": place.start + start, "end": place.start + end, "version": span["version"]}


def rollout_record(ours: Mapping[str, Any], sequence: Trajectory) -> pa.Table:
    """Return one row of rollout_sequences for the parts of a sequence. `ours`: its key, name and source.

    Columns that may differ between parts have the last part's value, or null where that would mislead.
    """
    rows = [part.row for part in sequence.parts]
    replicas = {row["replica"] for row in rows}
    logprobs = sequence.logprobs_K()
    finite = logprobs[np.isfinite(logprobs)].astype(np.float64)
    cached = [row["cached_prefix_tokens"] for row in rows]
    row = {
        **{name: rows[0][name] for name in ("run", "group_id", "prompt_length", "prompt_hash", "trajectory")},
        **{
            name: rows[-1][name]
            for name in ("time", "finish_reason", "sampling_id", "engine_config_id", "adapter", "adapter_id")
        },
        "sample_id": ours["sample_id"],
        "segment_id": f"parts/{ours['segment_id']}",
        "row": ours["row"],
        "replica": replicas.pop() if len(replicas) == 1 else None,
        "n_tokens": len(sequence.token_ids_K),
        "n_logprobs": len(finite),
        "logprob_sum": float(finite.sum()) if len(finite) else None,
        "token_hash": int(token_hash(sequence.token_ids_K, np.array([0, len(sequence.token_ids_K)]))[0]),
        "spans": sequence.spans(),
        "cached_prefix_tokens": None if None in cached else max(cached),
        "logprobs": None if ours["rollout_source"] == "received" else logprobs,
        "parts": _places(sequence),
    }
    return pa.Table.from_pylist([row], schema=_ROLLOUT)


def _places(sequence: Trajectory) -> list[dict[str, object]]:
    """Return the place of each part among the tokens under the mask, null where ids differ."""
    places: Sequence[Placed | None] = sequence.placed or [None] * len(sequence.parts)
    return [
        {
            "sample_id": part.row["part_id"],
            "segment_id": part.row["rollout_segment"],
            "row": part.row["rollout_row"],
            "start": None if place is None else place.start,
            "end": None if place is None else place.end,
            **{name: part.row[name] for name in ("prompt_length", "cached_prefix_tokens", "replica", "finish_reason")},
        }
        for part, place in zip(sequence.parts, places, strict=True)
    ]
