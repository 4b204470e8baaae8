"""Sequences for rescoring, with the sampled tokens and the log-probs of engine and trainer.

A sample file is JSON lines or Parquet, one sequence per row:

    sample_id, prompt_ids, response_ids     required; token ids as lists of integers
    rollout_logprobs, trainer_logprobs      r and t per response token; either may be null
    temperature                             of sampling; default 1.0
    sampling                                other sampling params as an object: top_p, top_k, min_p, presence_penalty, …
    rollout_version, trainer_version        weight versions of r and t, or null for the scored checkpoint
    replica                                 engine that sampled it
    spans                                   [{"start", "end", "version"}] if several versions sampled it
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.scorers.jobs import SequenceJob

Floats = NDArray[np.float64]
Scores = tuple[Floats | None, ...]  # log-probs per sequence [tokens]; None: not scored

# What a processor of the sampler changes, with the value that changes nothing.
NEUTRAL: Final[Mapping[str, float]] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
_LARGEST_FILE: Final = 1 << 30  # bytes; a sample is some hundred sequences
_REQUIRED: Final = ("sample_id", "prompt_ids", "response_ids")


@dataclass(frozen=True, slots=True)
class Span:
    """Response tokens ``start:end``, sampled by weights `version`."""

    start: int
    end: int
    version: str


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """Prompt with one response.

    Attributes:
        sample_id: name of the sequence.
        prompt_ids: token ids of the prompt.
        response_ids: token ids of the response, at least one.
        rollout: r per response token, NaN if unknown, or None if not recorded.
        trainer: t per response token, NaN if unknown, or None if not recorded.
        temperature: sampling temperature.
        sampling: sampling params that differ from `NEUTRAL`.
        rollout_version: version of the weights that sampled it, or None if not stated.
        trainer_version: version of the weights of t, or None if not stated.
        spans: weight versions within the response, empty for one version or an unstated one.
        replica: engine that sampled it, or None if not stated.
        assumed: unstated inputs of a log-prob, "temperature" or "sampling".
    """

    sample_id: str
    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    rollout: Floats | None = None
    trainer: Floats | None = None
    temperature: float = 1.0
    sampling: Mapping[str, float] = field(default_factory=dict)
    rollout_version: str | None = None
    trainer_version: str | None = None
    spans: tuple[Span, ...] = ()
    replica: str | None = None
    assumed: tuple[str, ...] = ()

    def versions(self) -> set[str | None]:
        """Weight versions that sampled the sequence."""
        return {self.rollout_version, *(span.version for span in self.spans)}

    def job(self) -> SequenceJob:
        """Return the sequence as a part of a scorer's job."""
        return {
            "prompt_ids": list(self.prompt_ids),
            "response_ids": list(self.response_ids),
            "temperature": self.temperature,
            "sampling": dict(self.sampling),
            "spans": [(span.start, span.end, span.version) for span in self.spans],
        }


def read_sample(path: Path) -> tuple[TokenSequence, ...]:
    """Return the sequences of a sample file.

    Raises:
        ConfigurationError: the file is unreadable, a column is missing, or a row is inconsistent. The message names row
            and reason.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigurationError(f"{path} has more than 1 GiB; a few hundred sequences are enough, pass fewer")
        rows = list(_rows(path))
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ConfigurationError(f"{path}: not readable as a sample ({error}); write JSON lines or Parquet") from error
    if not rows:
        raise ConfigurationError(f"{path} has no rows; pass a sample with at least one")
    return tuple(sequence_of(row, f"{path}, row {number}") for number, row in enumerate(rows, 1))


def _rows(path: Path) -> Iterator[dict[str, object]]:
    if path.suffix == ".parquet":
        yield from pq.read_table(path).to_pylist(maps_as_pydicts="lossy")
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigurationError(
                f"{path}, line {number}: invalid JSON ({error}); write one object per line"
            ) from error
        if not isinstance(row, dict):
            raise ConfigurationError(f"{path}, line {number}: not a JSON object; write one per line")
        yield row


def sequence_of(row: Mapping[str, Any], place: str) -> TokenSequence:
    """Return the sequence of a row in the columns of a sample. Raises `ConfigurationError`."""
    missing = [name for name in _REQUIRED if row.get(name) is None]
    if missing:
        raise ConfigurationError(f"{place}: {', '.join(missing)} missing; see docs/compare.md for the columns")
    response = _ids(row["response_ids"], f"{place}: response_ids")
    if not response:
        raise ConfigurationError(f"{place}: response_ids is empty; leave the row out")
    return TokenSequence(
        sample_id=str(row["sample_id"]),
        prompt_ids=_ids(row["prompt_ids"], f"{place}: prompt_ids"),
        response_ids=response,
        rollout=_logprobs(row, "rollout_logprobs", len(response), place),
        trainer=_logprobs(row, "trainer_logprobs", len(response), place),
        temperature=temperature_of(row.get("temperature"), place),
        sampling=sampling_of(row.get("sampling"), place),
        rollout_version=_text(row.get("rollout_version")),
        trainer_version=_text(row.get("trainer_version")),
        spans=spans_of(row.get("spans")),
        replica=_text(row.get("replica")),
        assumed=tuple(name for name in ("temperature", "sampling") if row.get(name) is None),
    )


def stating(sequences: Sequence[TokenSequence], text: str, place: str) -> tuple[TokenSequence, ...]:
    """Return the sequences with default sampling params. `text`: JSON object with the defaults. Raises
    `ConfigurationError`.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"{place}: invalid JSON ({error}); write an object") from error
    names = ("temperature", *NEUTRAL)
    if not isinstance(given, dict) or not given or not {*given} <= {*names}:
        raise ConfigurationError(
            f"{place}: {text!r} is not a JSON object of sampling params; write some of {', '.join(names)}"
        )
    temperature = {"temperature": temperature_of(given["temperature"], place)} if "temperature" in given else {}
    sampling = {"sampling": sampling_of(given, place)} if {*given} - {"temperature"} else {}
    if not any(name in sequence.assumed for sequence in sequences for name in (*temperature, *sampling)):
        raise ConfigurationError(f"{place}: every sequence states its own; leave the option out")
    return tuple(_stating(sequence, {**temperature, **sampling}) for sequence in sequences)


def _stating(sequence: TokenSequence, values: Mapping[str, Any]) -> TokenSequence:
    filled = {name: value for name, value in values.items() if name in sequence.assumed}
    return replace(sequence, **filled, assumed=tuple(name for name in sequence.assumed if name not in filled))


def _ids(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(isinstance(item, bool) or not isinstance(item, int) for item in value):
        raise ConfigurationError(f"{place} is not a list of integers; write token ids")
    return tuple(value)


def _logprobs(row: Mapping[str, Any], name: str, length: int, place: str) -> Floats | None:
    value = row.get(name)
    if value is None:
        return None
    try:
        array = np.array([math.nan if item is None else item for item in value], np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{place}: {name} is not a list of numbers; write one per token") from error
    if array.shape != (length,):
        raise ConfigurationError(
            f"{place}: {name} has {array.size} values for {length} response tokens; write one per token"
        )
    return array


def temperature_of(value: Any, place: str) -> float:
    """Return the temperature that log-probs are divided by. Raises `ConfigurationError`."""
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigurationError(f"{place}: temperature {value!r} is not a number; write one of at least 0")
    # vLLM reports greedy tokens' log-probs without dividing by a temperature.
    return float(value) if value > 1e-5 else 1.0  # noqa: PLR2004 - where vLLM calls sampling greedy


def sampling_of(value: Any, place: str) -> dict[str, float]:
    """Return the sampling params that change a distribution from an object or its JSON text. Raises
    `ConfigurationError`.
    """
    try:
        document = json.loads(value) if isinstance(value, str) else value or {}
        given = {name: document.get(name) for name in NEUTRAL}
        numbers = {name: float(number) for name, number in given.items() if number is not None}
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{place}: sampling is not an object of numbers ({error}); write one") from error
    return {name: number for name, number in numbers.items() if not _neutral(name, number)}


def _neutral(name: str, value: float) -> bool:
    return value == NEUTRAL[name] or (name == "top_k" and value <= 0)


def spans_of(value: Any) -> tuple[Span, ...]:
    """Return the weight versions of a response, empty if one of them is unknown."""
    rows = value or []
    if any(row.get("version") is None for row in rows):
        return ()
    return tuple(Span(int(row["start"]), int(row["end"]), str(row["version"])) for row in rows)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def assumptions(sequences: Sequence[TokenSequence]) -> list[str]:
    """Return the missing inputs of the sample, each with its use or with the assumption that replaces it and its
    risk.
    """
    say = "state it with --sampling"
    absent = [name for name in ("rollout", "trainer") if all(getattr(sequence, name) is None for sequence in sequences)]
    assumed = {name for sequence in sequences for name in sequence.assumed}
    words = {
        "rollout": "recorded r: no rollout_logprobs in the sample; with them, the engine's state is measured",
        "trainer": "recorded t: no trainer_logprobs in the sample; with them, the trainer is measured",
        "temperature": "temperature: not in the sample, taken as 1; if it was another, engine and trainer both seem "
        f"to depart; {say}",
        "sampling": "sampling params: not in the sample, taken as none; if top-p or others were used, a fresh engine "
        f"seems to depart; {say}",
    }
    return [text for name, text in words.items() if name in (*absent, *assumed)]
