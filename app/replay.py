"""Plays a recorded run again, step by step, through the `Recorder` of this process: what the demo shows is the product at work.

Everything is recorded anew, so times are of today; the times inside a weight update keep their distance to the step.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.recorder import Recorder
from logprobe.monitor.recorded import Frame, RecordedRun, shifted

# Argument of the Recorder → column of the wire contract.
_TRAINING: Final = {
    "sample_ids": "sample_id",
    "token_ids": "token_ids",
    "trainer_logprobs": "trainer_logprobs",
    "rollout_logprobs": "rollout_logprobs",
    "mask": "mask",
    "current_logprobs": "current_logprobs",
    "entropy": "entropy",
    "advantages": "advantages",
    "rewards": "reward",
    "weight_version": "weight_version",
    "prompt_ids": "group_id",
    "tags": "tags",
}
_ROLLOUT: Final = {
    "sample_ids": "sample_id",
    "token_ids": "token_ids",
    "logprobs": "logprobs",
    "cached_prefix_tokens": "cached_prefix_tokens",
    "prompt_lengths": "prompt_length",
    "prompt_hashes": "prompt_hash",
    "prompt_ids": "group_id",
    "finish_reasons": "finish_reason",
    "request_ids": "request_id",
}
_WEIGHTS: Final = (
    "step",
    "source",
    "replica",
    "requested_at",
    "started_at",
    "applied_at",
    "resumed_at",
    "pause_mode",
    "cache_cleared",
    "tensors",
    "checksum",
)
_TRAINER: Final = "trainer"
_ENGINE: Final = "vllm_plugin"  # as the plugin's own recorder is called
_OWN_EVENTS: Final = frozenset({"started", "heartbeat", "closed"})  # the recorders of the replay write these themselves
_ENGINE_KINDS: Final = frozenset({"engine_config", "sampling_params"})
_CLOSE_SECONDS: Final = 5.0


class Replay:
    """One recorded run on its way into the spool of `home`, under the name it was recorded with."""

    def __init__(self, recorded: RecordedRun, home: Path) -> None:
        """Records nothing before `play`."""
        self._recorded = recorded
        self._home = home
        self._recorders: dict[tuple[str, int | None], Recorder] = {}
        self._documents: dict[str, Any] = {}  # configuration documents by recorded fingerprint
        self._fingerprints: dict[str, str] = {}  # recorded → recorded anew

    def play(self, *, steps_per_second: float, stop: threading.Event) -> int:
        """Records step after step at that pace until the end or until `stop`; returns the number of steps recorded."""
        begun = time.monotonic()
        played = 0
        try:
            for frame in self._recorded.frames():
                self.record(frame, now=datetime.now(UTC))
                played += 1
                if stop.wait(max(0.0, begun + played / steps_per_second - time.monotonic())):
                    break
        finally:
            self.close()
        return played

    def record(self, frame: Frame, *, now: datetime) -> None:
        """Records one step as if it had just happened."""
        writers: dict[str, Callable[[pa.Table], None]] = {
            "config": self._configs,
            "weights": lambda table: self._weights(shifted(table, now - frame.time)),
            "rollout": self._rollouts,
            "training": self._training,
            "step": self._steps,
            "health": self._health,
        }
        for kind, table in frame.tables.items():
            writers[kind](table)

    def close(self) -> None:
        """Closes the recorders: the run has ended."""
        for recorder in self._recorders.values():
            recorder.close(_CLOSE_SECONDS)

    @cached_property
    def _first_rank(self) -> int | None:
        """The trainer's process that also speaks of what concerns all ranks."""
        ranks = self._recorded.table("training")["rank"]
        return ranks[0].as_py() if len(ranks) else None

    def _recorder(self, component: str, rank: int | None = None) -> Recorder:
        key = (component, self._first_rank if component == _TRAINER and rank is None else rank)
        if key not in self._recorders:
            self._recorders[key] = Recorder(
                self._home, self._recorded.run, component=component, rank=key[1], flush_interval=0.5
            )
        return self._recorders[key]

    def _training(self, table: pa.Table) -> None:
        for part in _alike(table, ["step", "rank"], _TRAINING):
            step, rank = part["step"][0].as_py(), part["rank"][0].as_py()
            self._recorder(_TRAINER, rank).training(step=step, **_arguments(part, _TRAINING))

    def _rollouts(self, table: pa.Table) -> None:
        for part in _alike(table, ["replica", "engine_config_id"], _ROLLOUT):
            config = part["engine_config_id"][0].as_py()
            self._recorder(_ENGINE).rollout(
                **_arguments(part, _ROLLOUT),
                weight_version=[_spans(spans) for spans in part["spans"].to_pylist()],
                sampling=[self._documents.get(mark) for mark in part["sampling_id"].to_pylist()],
                replica=part["replica"][0].as_py(),
                engine_config_id=self._fingerprints.get(config, config),
            )

    def _steps(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            correction = None if row["correction"] is None else json.loads(row["correction"])
            self._recorder(_TRAINER, row["rank"]).step(row["step"], dict(row["scalars"] or ()), correction=correction)

    def _weights(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            component = _ENGINE if row["source"] == "engine" else _TRAINER
            self._recorder(component).weights(row["version"], **{name: row[name] for name in _WEIGHTS})

    def _configs(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            document = json.loads(row["document"])
            self._documents[row["fingerprint"]] = document
            recorder = self._recorder(_ENGINE if row["kind"] in _ENGINE_KINDS else _TRAINER)
            anew = recorder.config(document, kind=row["kind"], replica=row["replica"])
            self._fingerprints[row["fingerprint"]] = anew

    def _health(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            if row["event"] not in _OWN_EVENTS:
                details = None if row["details"] is None else json.loads(row["details"])
                component = row["component"] or _TRAINER
                self._recorder(_ENGINE if component.startswith("vllm") else _TRAINER).report(
                    row["event"],
                    row["message"] or "",
                    severity=row["severity"],
                    component=component,
                    step=row["step"],
                    details=details,
                )


def _alike(table: pa.Table, keys: list[str], columns: dict[str, str]) -> Iterator[pa.Table]:
    """`table` in parts whose rows share the values of `keys` and know the same columns: one call of the Recorder each."""
    known = [table[name].is_valid() for name in columns.values()]
    rows = zip(*(column.to_pylist() for column in (*(table[key] for key in keys), *known)), strict=True)
    parts: dict[tuple[Any, ...], list[int]] = {}
    for index, row in enumerate(rows):
        parts.setdefault(row, []).append(index)
    for indices in parts.values():
        yield table.take(pa.array(indices)).combine_chunks()


def _arguments(table: pa.Table, columns: dict[str, str]) -> dict[str, Any]:
    return {name: _values(table[column]) for name, column in columns.items() if table[column].null_count == 0}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """A list column as numpy arrays (as lists where values are missing), any other as Python values."""
    if pa.types.is_map(column.type):
        return [dict(row) for row in column.to_pylist()]
    if not pa.types.is_list(column.type) or pc.list_flatten(column).null_count:
        return list(column.to_pylist())
    return [row.values.to_numpy(zero_copy_only=False) for row in column]


def _spans(spans: list[dict[str, Any]] | None) -> list[tuple[int, int, str | None]] | None:
    return None if spans is None else [(span["start"], span["end"], span["version"]) for span in spans]
