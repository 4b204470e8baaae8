"""Rows of the join for sequences that were sampled in several engine requests: the requests' records become one.

`parts` are rows of ``sql/join_trajectories.sql``, `theirs` their token lists (``sql/join_rollout_lists.sql``); `ours` has one row per
trained sequence, `lists` its token lists (``sql/join_training_lists.sql``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.spool.schema import SPAN
from logprobe.monitor import ragged
from logprobe.monitor.ingest.trajectories import Part, Placed, Trajectory, trajectory

TRAJECTORY_KEY: Final = ("segment_id", "row")
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
class Joined:
    """Trained sequences, both sides' lists as `alignment` wants them, and the rollout records made of their parts."""

    trained: pa.Table
    lists: pa.Table
    rollouts: pa.Table


def joined_records(ours: pa.Table, lists: pa.Table, parts: pa.Table, theirs: pa.Table) -> Joined:
    """One rollout record per trained sequence, made of its parts."""
    found = _trajectories(ours, lists, parts, theirs)
    rows = [_rollout(row, each) for row, each in zip(ours.to_pylist(), found, strict=True)]
    rollouts = pa.Table.from_pylist(rows, schema=_ROLLOUT)
    ids = [each.token_ids_K if each.placed else _all_tokens(each) for each in found]
    trained = (
        ours.append_column("rollout_segment", rollouts["segment_id"])
        .append_column("rollout_row", rollouts["row"])
        .append_column("complete", pa.array([each.complete for each in found], pa.bool_()))
    )
    lists = (
        lists.append_column("rollout_token_ids", pa.array(ids, pa.list_(pa.int32())))
        .append_column(
            "logprobs",
            pa.array([_logprobs(each, len(n)) for each, n in zip(found, ids, strict=True)], pa.list_(pa.float32())),
        )
        .append_column("routes", pa.nulls(lists.num_rows, pa.list_(pa.uint16())))
        .append_column("rollout_routes", pa.nulls(lists.num_rows, pa.list_(pa.uint16())))
    )
    return Joined(trained, lists, rollouts)


def _trajectories(ours: pa.Table, lists: pa.Table, parts: pa.Table, theirs: pa.Table) -> list[Trajectory]:
    lengths_S = ragged.lengths(lists["token_ids"])
    offsets_S1 = ragged.offsets_of(lengths_S)
    ids_N, mask_N = ragged.flat_ids(lists["token_ids"]), ragged.flat_mask(lists["mask"], lengths_S)
    of_sequence = _parts_of(parts, theirs)
    found = []
    for number, key in enumerate(ours.select(TRAJECTORY_KEY).to_pylist()):
        window = slice(offsets_S1[number], offsets_S1[number + 1])
        found.append(trajectory(ids_N[window], mask_N[window], of_sequence[key["segment_id"], key["row"]]))
    return found


def _parts_of(parts: pa.Table, theirs: pa.Table) -> Mapping[tuple[str, int], list[Part]]:
    lengths_S = ragged.lengths(theirs["token_ids"])
    offsets_S1 = ragged.offsets_of(lengths_S)
    ids_M, logprobs_M = ragged.flat_ids(theirs["token_ids"]), ragged.flat_floats(theirs["logprobs"], lengths_S)
    if logprobs_M is None:
        logprobs_M = np.full(len(ids_M), np.nan, np.float32)
    found: dict[tuple[str, int], list[Part]] = {}
    for number, row in enumerate(parts.to_pylist()):
        window = slice(offsets_S1[number], offsets_S1[number + 1])
        found.setdefault((row["segment_id"], row["row"]), []).append(Part(row, ids_M[window], logprobs_M[window]))
    return found


def _all_tokens(each: Trajectory) -> NDArray[np.int32]:
    return np.concatenate([part.token_ids for part in each.parts])


def _logprobs(each: Trajectory, count: int) -> NDArray[np.float32]:
    return each.logprobs_K() if each.placed else np.full(count, np.nan, np.float32)


def _rollout(ours: Mapping[str, Any], each: Trajectory) -> dict[str, Any]:
    """The parts as one row of rollout_sequences: of what can differ between them the last one's, or null where that would mislead."""
    rows = [part.row for part in each.parts]
    replicas = {row["replica"] for row in rows}
    logprobs = each.logprobs_K()
    finite = logprobs[np.isfinite(logprobs)].astype(np.float64)
    cached = [row["cached_prefix_tokens"] for row in rows]
    return {
        **{
            name: rows[0][name]
            for name in ("run", "sample_id", "group_id", "prompt_length", "prompt_hash", "trajectory")
        },
        **{
            name: rows[-1][name]
            for name in ("time", "finish_reason", "sampling_id", "engine_config_id", "adapter", "adapter_id")
        },
        "segment_id": f"parts/{ours['segment_id']}",
        "row": ours["row"],
        "replica": replicas.pop() if len(replicas) == 1 else None,
        "n_tokens": len(each.token_ids_K),
        "n_logprobs": len(finite),
        "logprob_sum": float(finite.sum()) if len(finite) else None,
        "token_hash": int(token_hash(each.token_ids_K, np.array([0, len(each.token_ids_K)]))[0]),
        "spans": each.spans(),
        "cached_prefix_tokens": None if None in cached else max(cached),
        "logprobs": None if ours["rollout_source"] == "received" else logprobs,
        "parts": _places(each),
    }


def _places(each: Trajectory) -> list[dict[str, Any]]:
    """Where each part lies among the tokens under the mask; null where ids do not agree."""
    places: Sequence[Placed | None] = each.placed or [None] * len(each.parts)
    return [
        {
            "sample_id": part.row["part_id"],
            "segment_id": part.row["rollout_segment"],
            "row": part.row["rollout_row"],
            "start": None if place is None else place.start,
            "end": None if place is None else place.end,
            **{name: part.row[name] for name in ("prompt_length", "cached_prefix_tokens", "replica", "finish_reason")},
        }
        for part, place in zip(each.parts, places, strict=True)
    ]
