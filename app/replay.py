"""Plays a recorded run again, step by step, through the `Recorder` of this process: what the demo shows is the product
at work.

What was recorded before the first step to be played goes to the spool as it is, moved to end now. From there on
everything is recorded again, so times are of today: updates of weights come in the order of the recording, at the pace
of the replay, and each keeps its own duration.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.recorder.records import OWN_EVENTS
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.recorded import WRITER, Frame, RecordedRun, shifted

# Argument of the Recorder → column of the wire contract.
_TRAINING: Final = {
    "sample_ids": "sample_id",
    "token_ids": "token_ids",
    "trainer_logprobs": "trainer_logprobs",
    "rollout_logprobs": "rollout_logprobs",
    "mask": "mask",
    "current_logprobs": "current_logprobs",
    "reference_logprobs": "reference_logprobs",
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
_SEQUENCES: Final = frozenset({"training", "statistics", "rollout"})  # kinds of which a recorder counts the rows
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
        self._fingerprints: dict[str, str] = {}  # recorded → recorded again
        self._clock = _Clock()
        self._laid_down: dict[str, _LaidDown] = {}  # by writer of the recording; other recorders go on in its place

    def lay_down(self, count: int, ended: datetime) -> datetime:
        """Puts the first `count` steps into the spool at once, as if the last of them ended then; the moment at which
        the run began.

        Raises `OSError`.
        """
        if not count:
            return ended
        frame = self._recorded.up_to(count)
        by = ended - frame.time
        whole = count == len(self._recorded.steps)
        laid_down = _write(self._recorded.run, self._home, frame, by=by, whole=whole)
        self._laid_down = {} if whole else laid_down
        self._documents |= _documents(frame)
        self._clock.anchor(frame.time, ended)
        return datetime.fromisoformat(self._recorded.manifest["recorded_from"]) + by

    def play(self, *, steps_per_second: float, stop: threading.Event, start: int = 0) -> int:
        """Records step after step at that pace, from the `start`-th on, until the end or until `stop`; returns the
        number of steps recorded."""
        begun = time.monotonic()
        played = 0
        try:
            for frame in self._recorded.frames(start):
                self.record(frame, now=datetime.now(UTC))
                played += 1
                if stop.wait(max(0.0, begun + played / steps_per_second - time.monotonic())):
                    break
        finally:
            self.close()
        return played

    def record(self, frame: Frame, *, now: datetime) -> None:
        """Records one step as if it had just happened."""
        self._clock.anchor(frame.time, now)
        writers: dict[str, Callable[[pa.Table], None]] = {
            "config": self._configs,
            "weights": self._weights,
            "rollout": self._rollouts,
            "training": self._training,
            "step": self._steps,
            "health": self._health,
        }
        for kind, table in frame.tables.items():
            writers[kind](table)

    def close(self) -> None:
        """Closes the recorders, and those of the recording that were laid down without their end: the run has ended."""
        for recorder in self._recorders.values():
            recorder.close(_CLOSE_SECONDS)
        health = self._recorded.table("health").append_column(WRITER, self._recorded.writers("health"))
        for row in health.filter(pc.equal(health["event"], "closed")).to_pylist():
            laid_down = self._laid_down.pop(row.pop(WRITER), None)
            if laid_down is not None:
                laid_down.close(row, datetime.now(UTC))

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
            versions = [_stated(spans) for spans in part["rollout_versions"].to_pylist()]
            self._recorder(_TRAINER, rank).training(step=step, **_arguments(part, _TRAINING), rollout_versions=versions)

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
            by = self._clock.shift(row["applied_at"] or row["time"])
            moved = {name: row[name] + by if isinstance(row[name], datetime) else row[name] for name in _WEIGHTS}
            self._recorder(component).weights(row["version"], **moved)

    def _configs(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            document = json.loads(row["document"])
            self._documents[row["fingerprint"]] = document
            recorder = self._recorder(_ENGINE if row["kind"] in _ENGINE_KINDS else _TRAINER)
            again = recorder.config(document, kind=row["kind"], replica=row["replica"])
            self._fingerprints[row["fingerprint"]] = again

    def _health(self, table: pa.Table) -> None:
        for row in table.to_pylist():
            if row["event"] not in OWN_EVENTS:
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


class _Clock:
    """Moments of the recording → moments of the replay; between two steps time is stretched or pressed, and never goes
    back."""

    def __init__(self) -> None:
        self._recorded: list[float] = []
        self._played: list[float] = []

    def anchor(self, recorded: datetime, played: datetime) -> None:
        """Moment at which what ended at `recorded` has just ended again. Moments are given in ascending order."""
        self._recorded.append(recorded.timestamp())
        self._played.append(played.timestamp())

    def shift(self, recorded: datetime) -> timedelta:
        """By how much that moment is moved; what was before the first anchor moves with it."""
        moment = recorded.timestamp()
        if moment < self._recorded[0]:
            return timedelta(seconds=self._played[0] - self._recorded[0])
        return timedelta(seconds=float(np.interp(moment, self._recorded, self._played)) - moment)


@dataclass
class _LaidDown:
    """Segments of one writer: their place in the spool, and the number of sequences of each side."""

    spool: SpoolWriter
    sequences: int = 0

    def close(self, end: dict[str, Any], now: datetime) -> None:
        """Writes the event with which its recorder ended, with an account of what was laid down only."""
        account = {
            "written": {"sequences": self.sequences, "last": self.spool.number},
            "reduced": {"sequences": 0},
            "dropped": {},
        }
        rows = [end | {"time": now, "details": json.dumps(json.loads(end["details"] or "{}") | account)}]
        self.spool.write("health", pa.Table.from_pylist(rows, schema=SCHEMAS["health"]))


def _write(run: str, home: Path, frame: Frame, *, by: timedelta, whole: bool) -> dict[str, _LaidDown]:
    """Segments of everything in `frame`, under the names of those who recorded it.

    Where a run continues, what its recorders said of themselves is left out: other recorders continue it.
    """
    writers: dict[str, _LaidDown] = {}
    for kind, table in frame.tables.items():
        kept = _without_own_events(table) if kind == "health" and not whole else table
        for name in kept[WRITER].unique().to_pylist():
            rows = shifted(kept.filter(pc.equal(kept[WRITER], name)).drop_columns(WRITER), by)
            writer = writers.setdefault(name, _LaidDown(SpoolWriter(home, run, name)))
            writer.spool.write(kind, rows.combine_chunks())
            writer.sequences += rows.num_rows if kind in _SEQUENCES else 0
    return writers


def _without_own_events(health: pa.Table) -> pa.Table:
    return health.filter(pc.invert(pc.is_in(health["event"], pa.array(sorted(OWN_EVENTS)))))


def _documents(frame: Frame) -> dict[str, Any]:
    configs = frame.tables.get("config")
    rows = [] if configs is None else configs.to_pylist()
    return {row["fingerprint"]: json.loads(row["document"]) for row in rows}


def _alike(table: pa.Table, keys: list[str], columns: dict[str, str]) -> Iterator[pa.Table]:
    """`table` in parts whose rows share the values of `keys` and know the same columns: one call of the Recorder
    each."""
    present = [table[name].is_valid() for name in columns.values()]
    rows = zip(*(column.to_pylist() for column in (*(table[key] for key in keys), *present)), strict=True)
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


def _stated(spans: list[dict[str, Any]] | None) -> list[tuple[int, int, str | None]] | None:
    return None if spans is None else [(s["sampled_start"], s["sampled_end"], s["version"]) for s in spans]


def _spans(spans: list[dict[str, Any]] | None) -> list[tuple[int, int, str | None]] | None:
    return None if spans is None else [(span["start"], span["end"], span["version"]) for span in spans]
