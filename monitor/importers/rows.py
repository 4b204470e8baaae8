"""Rows of the wire contract from what other frameworks wrote; a row that does not fit together is refused with the
reason."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import pyarrow as pa

Row: TypeAlias = tuple[str, Mapping[str, Any]]  # record kind, its columns; missing ones are null

# Lists of a training row besides `token_ids` and `mask`.
FLOAT_LISTS: Final = ("rollout_logprobs", "trainer_logprobs", "current_logprobs", "entropy", "advantages")
TRAINER_STEP: Final = "train/global_step"  # that Hugging Face trainers declare as the step of all they log to W&B
_LARGEST_EPOCH: Final = 1e11  # seconds; above it, milliseconds were meant


class BadRowError(ValueError):
    """One row cannot be used; the text says why."""


def training(
    *, step: Any, sample_id: Any, token_ids: Any, mask: Any = None, time: Any = None, reward: Any = None, **columns: Any
) -> Row:
    """A training row. `columns`: `FLOAT_LISTS` as long as `token_ids`, and the record's other columns.

    A number for `advantages` stands for every token. Raises `BadRowError`.
    """
    tokens = integers("token_ids", token_ids)
    row = {
        "step": whole("step", step),
        "sample_id": str(sample_id),
        "token_ids": tokens,
        "mask": None if mask is None else _flags(_as_long("mask", mask, tokens)),
        "reward": None if reward is None else number("reward", reward),
        "time": moment(time),
        "rank": None if columns.get("rank") is None else whole("rank", columns["rank"], bits=32),
        "tags": columns.get("tags"),
        **{name: str(columns[name]) for name in ("group_id", "weight_version") if columns.get(name) is not None},
    }
    if isinstance(columns.get("advantages"), int | float):
        columns["advantages"] = [columns["advantages"]] * len(tokens)
    row |= {
        name: floats(name, _as_long(name, columns[name], tokens))
        for name in FLOAT_LISTS
        if columns.get(name) is not None
    }
    return "training", row


def rollout(*, sample_id: Any, token_ids: Any, logprobs: Any = None, version: str | None = None, **columns: Any) -> Row:
    """A rollout row; `version`: of the weights that sampled all of its tokens, None: unknown. Raises `BadRowError`."""
    tokens = integers("token_ids", token_ids)
    spans = None if version is None else [{"start": 0, "end": len(tokens), "version": version}]
    given = None if logprobs is None else floats("logprobs", _as_long("logprobs", logprobs, tokens))
    return "rollout", {"sample_id": str(sample_id), "token_ids": tokens, "logprobs": given, "spans": spans, **columns}


def scalars(step: Any, values: Mapping[str, Any], time: Any = None) -> Row:
    """A step row with the numbers among `values`. Raises `BadRowError` when there is none."""
    numbers = {name: float(value) for name, value in values.items() if type(value) in {int, float}}
    if not numbers:
        raise BadRowError("contains no numbers")
    return "step", {"step": whole("step", step), "time": moment(time), "scalars": list(numbers.items())}


def integers(name: str, values: Any) -> list[int]:
    """`values` as int32. Raises `BadRowError`."""
    return list(_checked(name, values, pa.int32()))


def floats(name: str, values: Any) -> list[float | None]:
    """`values` as float32; None: unknown. Raises `BadRowError`."""
    return list(_checked(name, values, pa.float32()))


def whole(name: str, value: Any, *, bits: int = 64) -> int:
    """`value` as an integer of so many bits. Raises `BadRowError`."""
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or value != value // 1 or abs(value) >= 1 << (bits - 1):
        raise BadRowError(f"{name}: a whole number expected, got {value!r}")
    return int(value)


def number(name: str, value: Any) -> float:
    """`value` as a float. Raises `BadRowError`."""
    if not isinstance(value, int | float):
        raise BadRowError(f"{name}: a number expected, got {value!r}")
    return float(value)


def moment(value: Any) -> datetime | None:
    """Epoch seconds or ISO 8601 as a time in UTC. Raises `BadRowError`."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        if isinstance(value, str):
            given = datetime.fromisoformat(value)
            return given if given.tzinfo else given.replace(tzinfo=UTC)
        if math.isfinite(value) and abs(value) < _LARGEST_EPOCH:
            return datetime.fromtimestamp(value, UTC)
    except (TypeError, ValueError):
        pass
    raise BadRowError(f"time: epoch seconds or ISO 8601 expected, got {value!r}")


def _checked(name: str, values: Any, kind: pa.DataType) -> Sequence[Any]:
    if not isinstance(values, list):
        raise BadRowError(f"{name}: a list expected, got {type(values).__name__}")
    try:
        pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise BadRowError(f"{name}: not a list of {kind} ({error})") from error
    if kind == pa.int32() and None in values:
        raise BadRowError(f"{name}: holds a null")
    return values


def _as_long(name: str, values: Any, tokens: Sequence[int]) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(tokens):
        size = len(values) if isinstance(values, list) else type(values).__name__
        raise BadRowError(f"{name} has {size} values, token_ids has {len(tokens)}")
    return values


def _flags(values: Sequence[Any]) -> list[bool]:
    """`values` as booleans. Raises `BadRowError`."""
    for value in _different(values):
        if value not in (0, 1):  # True and False are
            raise BadRowError(f"mask: 0 or 1 expected, got {value!r}")
    return list(map(bool, values))


def _different(values: Sequence[Any]) -> Iterable[Any]:
    """Each value once, where they can be told apart quickly."""
    try:
        return dict.fromkeys(values)
    except TypeError:  # some are lists
        return values
