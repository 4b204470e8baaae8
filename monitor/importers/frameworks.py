"""Column names of a sequence in each framework (table `FRAMEWORKS`), and conversion of records to rows of the wire
contract.

The user documentation is docs/import-export.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa

from logprobe.collectors.recorder.arrays import text
from logprobe.collectors.spool.schema import LARGEST, SCHEMAS, TRAINING_FLOATS

Record: TypeAlias = Mapping[str, Any]
Columns: TypeAlias = dict[str, Any]  # of the wire contract; missing ones are null
Row: TypeAlias = tuple[str, Columns]  # record kind, its columns
Column: TypeAlias = "str | tuple[str, ...] | Callable[[Record, Place], Any]"

_SHOWN: Final = 60  # characters of an unusable value
_LARGEST_EPOCH: Final = 1e11  # seconds; above it, milliseconds were meant
_NEMO_STEP: Final = re.compile(r"train_data_step(\d+)")
_PRIME_STEP: Final = re.compile(r"step_(\d+)")
# What a value of an unexpected type or shape provokes in the reading of a record.
_MALFORMED: Final = (LookupError, TypeError, ValueError, ArithmeticError, RecursionError)


class BadRecordError(ValueError):
    """Unusable record, with the reason as text."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a record: its file and its position in the file, counted from 0."""

    path: Path
    position: int

    @property
    def name(self) -> str:
        """Name of an unnamed sample."""
        return f"{self.path.name}:{self.position + 1}"


@dataclass(frozen=True, slots=True)
class Framework:
    """Columns of one framework's records.

    Attributes:
        name: name of the framework.
        logprobs: columns with log-probs. A record with one of them belongs to this framework.
        columns: logprobe's column → the framework's column, the first existing one of several, or a function of the
            record.
        marks: further columns that distinguish its records from a framework with the same log-prob columns.
        kind: column that distinguishes rollout from training records, or None if all are training records.
    """

    name: str
    logprobs: tuple[str, ...]
    columns: Mapping[str, Column]
    marks: tuple[str, ...] = ()
    kind: str | None = None

    def claims(self, record: Record) -> bool:
        """Return whether a record has log-probs of this framework."""
        return all(name in record for name in self.marks) and any(
            record.get(name) is not None for name in self.logprobs
        )

    def row(self, record: Record, place: Place) -> Row:
        """Return the row of a record. Raises `BadRecordError`."""
        try:
            values = {ours: _value(theirs, record, place) for ours, theirs in self.columns.items()}
            if self.kind is not None and record[self.kind] == "rollout":
                return "rollout", _checked("rollout", _rollout(values, record))
            return "training", _checked("training", _training(values, place))
        except BadRecordError:
            raise
        except _MALFORMED as error:
            raise BadRecordError(f"does not match {self.name} ({type(error).__name__}: {error})") from error


def framework_of(record: Record) -> Framework | None:
    """Return the framework of a record, or None without known log-prob columns."""
    return next((framework for framework in FRAMEWORKS if framework.claims(record)), None)


def _value(theirs: Column, record: Record, place: Place) -> Any:
    if callable(theirs):
        return theirs(record, place)
    names = (theirs,) if isinstance(theirs, str) else theirs
    return next((record[name] for name in names if record.get(name) is not None), None)


def _training(values: Columns, place: Place) -> Columns:
    tokens, mask, advantages = _tokens(values), values.get("mask"), values.get("advantages")
    rank = None if values.get("rank") is None else _whole("rank", values["rank"])
    unnamed = place.name if rank is None else f"{place.name} of rank {rank}"
    if isinstance(advantages, int | float):  # one number stands for every token
        values["advantages"] = [advantages] * len(tokens)
    for name in ("mask", *TRAINING_FLOATS):
        _require_length(name, values.get(name), tokens)
    return {
        **values,
        "step": _whole("step", values.get("step")),
        "sample_id": unnamed if values.get("sample_id") is None else text(values["sample_id"]),
        "mask": None if mask is None else _flags(mask),
        "rank": rank,
        "tags": _pairs(values.get("tags")),
        "time": _moment(values.get("time")),
        **{name: text(values[name]) for name in ("group_id", "weight_version") if values.get(name) is not None},
    }


def _rollout(values: Record, record: Record) -> Columns:
    """Return the rollout record of slime. It has only the tokens under the mask, since tool output was not sampled."""
    tokens, logprobs = _tokens(values), values["rollout_logprobs"]
    for name, given in (("loss_mask", values["mask"]), ("rollout_log_probs", logprobs)):
        _require_length(name, given, tokens)
    kept = [place for place, flag in enumerate(_flags(values["mask"])) if flag]
    versions, group = set(record.get("weight_versions") or ()), record.get("group_index")
    version = str(versions.pop()) if len(versions) == 1 else None  # of several, it is unknown which token had which
    return {
        "sample_id": values["sample_id"],
        "token_ids": [tokens[place] for place in kept],
        "logprobs": None if logprobs is None else [logprobs[place] for place in kept],
        "spans": None if version is None else [{"start": 0, "end": len(kept), "version": version}],
        "group_id": None if group is None else str(group),
    }


def _checked(kind: str, row: Columns) -> Columns:
    """Return the row if it fits the wire contract. Raises `BadRecordError`."""
    for name, value in row.items():
        wanted = SCHEMAS[kind].field(name).type
        try:
            pa.array([value], wanted)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            if pa.types.is_list(wanted) and pa.types.is_floating(wanted.value_type):
                raise BadRecordError(f"{name}: not a list with one number per token; write one") from error
            if pa.types.is_list(wanted):
                raise BadRecordError(f"{name}: a value does not fit into {wanted.value_type}; check it") from error
            noun = "a number" if pa.types.is_integer(wanted) or pa.types.is_floating(wanted) else f"of type {wanted}"
            raise BadRecordError(f"{name}: {repr(value)[:_SHOWN]} is not {noun}; write one value") from error
    return row


def _tokens(values: Record) -> list[int]:
    tokens = values.get("token_ids")
    if tokens is None:
        raise BadRecordError("no token_ids; add the column")
    if not isinstance(tokens, list) or set(map(type, tokens)) - {int}:
        raise BadRecordError("token_ids: not a list of whole numbers; write one")
    return tokens


def _require_length(name: str, values: Any, tokens: Sequence[int]) -> None:
    if values is not None and (not isinstance(values, list) or len(values) != len(tokens)):
        size = len(values) if isinstance(values, list) else type(values).__name__
        raise BadRecordError(f"{name} has {size} values, token_ids has {len(tokens)}; write one per token")


def _whole(name: str, value: Any) -> int:
    if value is None:
        raise BadRecordError(f"no {name}; add the column")
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if not numeric or value != value // 1 or abs(value) > LARGEST:
        raise BadRecordError(f"{name}: {value!r} is not a whole number; write one")
    return int(value)


def _flags(values: Sequence[Any]) -> list[bool]:
    if wrong := set(values) - {0, 1}:  # True and False are in it
        raise BadRecordError(f"mask: {wrong.pop()!r} is not allowed; write 0 or 1")
    return list(map(bool, values))


def _moment(value: Any) -> datetime | None:
    """Return epoch seconds or ISO 8601 as a time in UTC."""
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
    raise BadRecordError(f"time: {value!r} is not a time; write epoch seconds or ISO 8601")


def _pairs(tags: Any) -> list[tuple[str, str]] | None:
    if tags is None:
        return None
    try:
        pairs: Iterable[tuple[Any, Any]] = tags.items() if isinstance(tags, Mapping) else tags
        return [(str(key), str(value)) for key, value in pairs]
    except (TypeError, ValueError) as error:
        raise BadRecordError(f"tags: {tags!r} is not an object; write one") from error


# --- NeMo-RL: a line is a batch of one, hence lists of one element, padded to the longest of its step.


def _nemo(name: str) -> Callable[[Record, Place], Any]:
    return lambda record, _: _unpadded(record, _single(record.get(name)))


def _unpadded(record: Record, values: Any) -> Any:
    length = _single(record.get("input_lengths"))
    return values[:length] if isinstance(values, list) and isinstance(length, int) else values


def _single(entry: Any) -> Any:
    return entry[0] if isinstance(entry, list) and len(entry) == 1 else entry


def _nemo_step(_: Record, place: Place) -> int:
    match = _NEMO_STEP.search(place.path.name)
    if match is None:
        raise BadRecordError("the file's name has no step; rename the file to train_data_step<N>.jsonl")
    return int(match[1])


def _nemo_mask(record: Record, _: Place) -> Any:
    mask = _unpadded(record, _single(record.get("token_loss_mask")))
    return [0] * len(mask) if mask is not None and _single(record.get("sample_loss_mask")) == 0 else mask


def _nemo_reward(record: Record, _: Place) -> Any:
    """Return the rewards. With dynamic sampling ``rewards`` cover all samples, in another order."""
    return _single(record.get("filtered_rewards", record.get("rewards")))


# --- prime-rl: a line is a sequence without padding.


def _prime_step(record: Record, place: Place) -> Any:
    match = _PRIME_STEP.search(place.path.parent.name)
    stated = (record.get("export_step"), record.get("step"), int(match[1]) if match else None)
    return next((step for step in stated if step is not None), None)


def _prime_name(record: Record, place: Place) -> str:
    stated = record.get("sample_id")
    return f"{_prime_step(record, place)}:{place.name}" if stated is None else str(stated)


def _prime_mask(record: Record, _: Place) -> list[bool]:
    """Return the mask of trained tokens that the policy sampled. Tokens of a cross-entropy loss have no sampling
    log-prob.

    An absent or all-null weight stream has its default, reinforcement learning on all tokens of the mask.
    """
    if record.get("loss_mask") is None:
        raise BadRecordError("no loss_mask; add the column")
    mask = record["loss_mask"]
    streams = [record.get(name) for name in ("rl_weights", "ref_kl_weights")]
    given = [stream for stream in streams if isinstance(stream, list) and any(w is not None for w in stream)]
    if streams[0] not in given:
        return list(mask)
    return [bool(flag) and any(weights) for flag, *weights in zip(mask, *given, strict=True)]


def _prime_reward(record: Record, _: Place) -> Any:
    """Return the reward of a sequence if all tokens under the mask agree. Prime writes the reward once per token."""
    rewards = record.get("rewards")
    if not isinstance(rewards, list):
        return rewards
    values = {reward for reward, flag in zip(rewards, record["loss_mask"], strict=False) if flag}
    return values.pop() if len(values) == 1 else None


def _tag(ours: str, theirs: str) -> Callable[[Record, Place], Any]:
    return lambda record, _: {ours: record[theirs]} if record.get(theirs) else None


# --- open-instruct names samples by step and index.


def _of_step(name: str) -> Callable[[Record, Place], Any]:
    def joined(record: Record, _: Place) -> str | None:
        if "step" not in record:
            raise BadRecordError("no step; add the column")
        return f"{record['step']}:{record[name]}" if name in record else None

    return joined


# --- slime, miles: tokens of prompt and response, everything else of the response.


def _slime_tokens(record: Record, _: Place) -> Any:
    length = record["response_length"]
    return record["tokens"][-length:] if length else []


def _slime_mask(record: Record, _: Place) -> Any:
    mask = record.get("loss_mask")
    return [1] * record["response_length"] if mask is None else mask


def _slime_name(record: Record, place: Place) -> str:
    index = record.get("index")
    return place.name if index is None else str(index)


_OURS: Final = ("step", "sample_id", "reward", "time", "tags", "rank", "weight_version")
_ROLLOUT: Final = ("rollout_logprobs", "rollout_log_probs", "sampling_per_token_logps")
_TRAINER: Final = ("trainer_logprobs", "old_log_probs", "old_per_token_logps")
FRAMEWORKS: Final = (
    Framework(
        "slime or miles",
        ("rollout_log_probs", "log_probs"),
        {
            "step": "rollout_id",
            "sample_id": _slime_name,
            "token_ids": _slime_tokens,
            "mask": _slime_mask,
            "rollout_logprobs": "rollout_log_probs",
            "trainer_logprobs": "log_probs",
            "advantages": "advantages",
            "reward": "reward",
            "rank": "rank",
        },
        marks=("kind", "response_length"),
        kind="kind",
    ),
    Framework(
        "NeMo-RL",
        ("generation_logprobs", "prev_logprobs"),
        {
            "step": _nemo_step,
            "sample_id": lambda _, place: place.name,
            "token_ids": _nemo("token_ids"),
            "mask": _nemo_mask,
            "rollout_logprobs": _nemo("generation_logprobs"),
            "trainer_logprobs": _nemo("prev_logprobs"),
            "advantages": _nemo("advantages"),
            "reward": _nemo_reward,
        },
    ),
    Framework(
        "prime-rl",
        ("inference_logprobs", "trainer_logprobs"),
        {
            "step": _prime_step,
            "sample_id": _prime_name,
            "token_ids": "token_ids",
            "mask": _prime_mask,
            "rollout_logprobs": "inference_logprobs",
            "trainer_logprobs": "trainer_logprobs",
            "entropy": "entropy",
            "advantages": "advantages",
            "reward": _prime_reward,
            "rank": "rank",
            "tags": _tag("environment", "env_name"),
        },
        marks=("inference_logprobs",),
    ),
    Framework(  # the sampled side only: the trainer's log-probs are not in it
        "open-instruct",
        ("logprobs",),
        {
            "step": "step",
            "sample_id": _of_step("sample_idx"),
            "group_id": _of_step("prompt_idx"),
            "token_ids": "response_tokens",
            "rollout_logprobs": "logprobs",
            "advantages": "advantage",
            "reward": "reward",
            "tags": _tag("dataset", "dataset"),
        },
        marks=("response_tokens",),
    ),
    Framework(
        "logprobe, verl or TRL",
        (*_ROLLOUT, *_TRAINER, "current_logprobs"),
        {
            **{name: name for name in (*_OURS, *TRAINING_FLOATS)},
            "group_id": ("group_id", "uid"),
            "token_ids": ("token_ids", "responses", "completion_ids"),
            "mask": ("mask", "response_mask", "completion_mask"),
            "rollout_logprobs": _ROLLOUT,
            "trainer_logprobs": _TRAINER,
        },
    ),
)
