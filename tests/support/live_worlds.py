"""Random small runs with everything that can happen to records: names, parts, tokens, versions, attempts, odd values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from segments import at, records

from logprobe.collectors.kernel.pairs import PAIRS
from logprobe.collectors.kernel.statistics import COLUMNS, DEFAULT_BOUNDS, sequence_statistics
from logprobe.collectors.recorder.token_hash import token_hash
from logprobe.collectors.spool.segments import SpoolWriter

SECOND = 1_000_000
Row = dict[str, Any]


@dataclass(frozen=True)
class World:
    """What may happen in a run. Each is a probability, or a number."""

    steps: int = 4
    samples: int = 4  # of a step
    received: float = 0.4
    unsampled: float = 0.1  # no rollout record
    masked: float = 0.4
    odd_tokens: float = 0.1  # the engine has other tokens, or more, or fewer
    again: float = 0.0  # a second rollout record of the same name
    parts: float = 0.15
    trajectory: float = 0.1
    renamed: bool = False  # the engine has other names for everything
    routes: float = 0.2
    odd_values: float = 0.1
    stated: float = 0.2
    decided: float = 0.3
    marks: int = 3
    labels: bool = False  # of weights are no numbers
    reduced: float = 0.1  # statistics instead of tokens
    attempts: int = 1
    ranks: int = 2


WORLDS = {
    "plain": World(),
    "received": World(received=1.0, parts=0),
    "missing": World(received=0.0),
    "labels": World(labels=True, marks=0),
    "renamed": World(renamed=True, parts=0, masked=0.2, odd_tokens=0.05),
    "attempts": World(attempts=3, parts=0, decided=0.8, marks=5),
    "again": World(again=0.3),
    "marks": World(decided=1.0, marks=8, odd_tokens=0),
    "stated": World(stated=0.8),
    "odd": World(odd_values=0.6, reduced=0.4),
}


class History:
    """The records of one random run, as the segments that its writers would have written."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.rng = np.random.default_rng(seed)
        self.segments: list[tuple[str, str, list[Row]]] = []  # writer, kind, rows

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def make(self) -> History:
        world = self.world
        for attempt in range(world.attempts):
            first = 0 if attempt == 0 else int(self.rng.integers(0, world.steps))
            start = 1000 * attempt
            for rank in range(world.ranks):
                writer = f"t{attempt}-{rank}"
                self._says(writer, "started", None, start, rank)
                self._says(writer, "training_begins", first, start + 1, rank)
            for step in range(first, world.steps):
                self._step(attempt, step, start + 10 * (step + 1))
        for number in range(world.marks):
            self._mark(number)
        return self

    def _says(self, writer: str, event: str, step: int | None, second: float, rank: int) -> None:
        row = {"time": at(second), "component": "recorder", "event": event, "severity": "info", "step": step}
        self.segments.append((writer, "health", [row | {"details": f'{{"rank": {rank}}}'}]))

    def label(self, step: int) -> str:
        return f"v-{step:03d}" if self.world.labels else str(step)

    def _step(self, attempt: int, step: int, second: float) -> None:
        rollouts: list[Row] = []
        for rank in range(self.world.ranks):
            trained, reduced = [], []
            for index in range(self.world.samples):
                name = f"{attempt}/{step}-{rank}-{index}"
                row = self._trained(name, step, rank, second + 5)
                rollouts += self._sampled(name, row, step, second)
                if self.chance(self.world.reduced):
                    reduced.append(_reduced(row))
                else:
                    trained.append(row)
            writer = f"t{attempt}-{rank}"
            cut = int(self.rng.integers(0, len(trained) + 1))
            self._write(writer, "training", trained[:cut])
            self._write(writer, "training", trained[cut:])
            self._write(writer, "statistics", reduced)
            self._write(writer, "step", [self._told(step, rank, second + 6)])
        self.rng.shuffle(rollouts)  # type: ignore[arg-type]
        self._write("engine", "rollout", rollouts)
        self._weights(step, second)

    def _write(self, writer: str, kind: str, rows: list[Row]) -> None:
        if rows:
            self.segments.append((writer, kind, rows))

    def _logprobs(self, n: int, *, odd: bool = True) -> list[float | None]:
        values: list[float | None] = [float(v) for v in -self.rng.exponential(1.0, n).astype(np.float32)]
        if odd and n and self.chance(self.world.odd_values):
            values[int(self.rng.integers(n))] = [None, float("nan"), float("-inf"), 0.5, 0.0, -9999.0][
                self.rng.integers(6)
            ]
        return values

    def _trained(self, name: str, step: int, rank: int, second: float) -> Row:
        n = int(self.rng.integers(0 if self.chance(0.05) else 1, 14))
        t = self._logprobs(n)
        row: Row = {
            "time": at(second + rank),
            "step": step,
            "rank": rank,
            "sample_id": name,
            "token_ids": self.rng.integers(0, 50, n).tolist(),
            "trainer_logprobs": t,
            "reward": float(self.rng.normal()) if self.chance(0.7) else None,
            "weight_version": self.label(step) if self.chance(0.9) else None,
        }
        if self.chance(self.world.masked):
            row["mask"] = (self.rng.random(n) < 0.7).tolist()
        if self.chance(self.world.received):
            row["rollout_logprobs"] = self._logprobs(n)
        for name_of, share in (
            ("current_logprobs", 0.5),
            ("reference_logprobs", 0.3),
            ("teacher_logprobs", 0.2),
            ("entropy", 0.5),
            ("advantages", 0.6),
        ):
            if self.chance(share):
                row[name_of] = self._logprobs(n)
        if self.chance(self.world.routes):
            row["routes"] = self.rng.integers(0, 3, n * 2).tolist()
        if self.chance(self.world.stated):
            row["rollout_versions"] = self._stated(row, n, step)
        return row

    def _stated(self, row: Row, n: int, step: int) -> list[Row]:
        mask = row.get("mask") or [True] * n
        cut = int(self.rng.integers(0, n + 1))
        spans = [(0, cut, self.label(max(step - 1, 0))), (cut, n, self.label(step) if self.chance(0.8) else None)]
        return [
            {"start": a, "end": b, "sampled_start": sum(mask[:a]), "sampled_end": sum(mask[:b]), "version": version}
            for a, b, version in spans
            if a < b
        ]

    def _sampled(self, name: str, trained: Row, step: int, second: float) -> list[Row]:
        world, mask = self.world, trained.get("mask")
        ids = trained["token_ids"]
        if mask is not None and self.chance(0.7):
            ids = [token for token, kept in zip(ids, mask, strict=True) if kept]
        if self.chance(world.unsampled):
            return []
        if self.chance(world.odd_tokens):
            ids = [[*ids, 7, 8], ids[:-1], [99, *ids[1:]], []][self.rng.integers(4)]
        if ids and self.chance(world.parts):
            return self._parts(name, trained, ids, step, second)
        row = self._rollout(f"engine-{name}" if world.renamed else name, ids, step, second)
        if trained.get("rollout_logprobs") and len(ids) == len(trained["token_ids"]) and self.chance(0.7):
            row["logprobs"] = trained["rollout_logprobs"]
        if "routes" in trained and self.chance(0.8):
            row["routes"] = self.rng.integers(0, 3, len(ids) * (2 if self.chance(0.9) else 3)).tolist()
        rows = [row]
        if self.chance(world.again):
            other = self._rollout(
                row["sample_id"],
                ids if self.chance(0.5) else [1, 2, 3],
                step,
                second + float(self.rng.integers(-9, 30)),
            )
            if self.chance(0.4):
                other |= {"logprobs": row["logprobs"], "spans": row["spans"]}
            rows.append(other)
        return rows

    def _parts(self, name: str, trained: Row, ids: list[int], step: int, second: float) -> list[Row]:
        cut = int(self.rng.integers(0, len(ids) + 1))
        named = self.chance(self.world.trajectory / max(self.world.trajectory + self.world.parts, 1e-9))
        rows = []
        for place, (first, some) in enumerate(((0, ids[:cut]), (cut, ids[cut:]))):
            row = self._rollout(f"{name}.{place}", some, step, second + place)
            row["prompt_length"] = 3 + first if self.chance(0.8) else None
            if named:
                row["trajectory"] = name
            rows.append(row)
        if not named:
            trained["part_ids"] = [row["sample_id"] for row in rows]
        return [row for row in rows if self.chance(0.9)]

    def _rollout(self, name: str, ids: list[int], step: int, second: float) -> Row:
        n = len(ids)
        cut = int(self.rng.integers(0, n + 1))
        spans = [{"start": 0, "end": n, "version": self.label(step)}]
        if self.chance(0.3):
            older = self.label(max(step - 1, 0)) if self.chance(0.8) else None
            spans = [{"start": 0, "end": cut, "version": older}, {"start": cut, "end": n, "version": self.label(step)}]
        row: Row = {
            "time": at(second),
            "sample_id": name,
            "token_ids": ids,
            "logprobs": self._logprobs(n) if self.chance(0.9) else None,
            "spans": spans if self.chance(0.9) else None,
            "replica": ("east", "west-dp1")[self.rng.integers(2)],
        }
        if n and self.chance(self.world.decided):
            times = [round((second + 0.1 * index) * SECOND) for index in range(n)]
            decided = round((second - 1) * SECOND) if self.chance(0.8) else None
            row |= {
                "step_times": times,
                "decisions": [{"end": n, "at": decided, "first": times[0], "last": times[-1]}],
                "machine": "here",
                "clock_offset": round(at(0).timestamp()) * SECOND,
                "engine_started": 0,
            }
        return row

    def _told(self, step: int, rank: int, second: float) -> Row:
        scalars = {"loss": 1.0}
        if self.chance(0.5):
            scalars |= {"entropy": float(self.rng.random()), "grad_norm": float(self.rng.random())}
        if self.chance(0.3):
            scalars["reward"] = float(self.rng.normal())
        row: Row = {
            "time": at(second + int(self.rng.integers(3))),
            "step": step,
            "rank": rank,
            "scalars": list(scalars.items()),
        }
        if self.chance(0.3):
            weight, tokens = float(self.rng.random()), int(self.rng.integers(0, 50))
            row["correction"] = (
                f'{{"report": {{"tokens": {tokens}, "is_weight_mean": {weight}, "clipped_frac": 0.25}}}}'
            )
        return row

    def _weights(self, step: int, second: float) -> None:
        version = self.label(step)
        self._write(
            "t0-0",
            "weights",
            [
                {
                    "time": at(second - 3),
                    "version": version,
                    "step": step,
                    "source": "trainer",
                    "requested_at": at(second - 3),
                }
            ],
        )
        for replica in ("east", "west"):
            late = float(self.rng.random())
            row = {"time": at(second - 1), "version": version, "source": "engine", "replica": replica}
            row |= {"started_at": at(second - 2), "applied_at": at(second - 2 + late), "resumed_at": at(second - 1)}
            if self.chance(0.5):  # it knows no label: marks say what it loaded
                row |= {"version": None, "machine": "here", "seen": _seen(second - 3, second)}
            self._write("engine", "weights", [row])

    def _mark(self, number: int) -> None:
        second = 10 * int(self.rng.integers(1, self.world.steps + 1)) + float(self.rng.random())
        here = self.chance(0.6)
        row: Row = {
            "time": at(second),
            "version": self.label(50 + number),
            "source": "trainer",
            "applied_at": at(second),
            "moment": round(second * SECOND) if here else 5,
            "machine": "here" if here else "there",
            "replica": (None, "east", "west")[self.rng.integers(3)],
        }
        if self.chance(0.3):  # a worker's weights became others since it read them last
            before = second - 10 * float(self.rng.random())
            row |= {"version": None, "source": "worker", "machine": "here", "seen": _seen(second, second + 0.1)}
            row |= {"moment": round(before * SECOND), "unless": {"since": round((before - 0.1) * SECOND)}}
            row["unless"]["until"] = row["seen"]["ended"]
        self._write("marks", "weights", [row])

    def bring(self, home: Path, run: str, order: Sequence[int]) -> Iterator[None]:
        """Writes the segments in this order, each by its writer; yields after each."""
        writers: dict[str, SpoolWriter] = {}
        for place in order:
            name, kind, rows = self.segments[place]
            writer = writers.setdefault(name, SpoolWriter(home, run, name))
            writer.write(kind, records(kind, *rows))
            yield


def _reduced(row: Row) -> Row:
    """The same record as a collector reduces it that cannot keep tokens."""
    n = len(row["token_ids"])
    mask = np.array(row.get("mask") or [True] * n, np.bool_)
    kept = ("time", "step", "rank", "sample_id", "reward", "weight_version", "part_ids", "rollout_versions")
    found: Row = {name: row.get(name) for name in kept} | {"n_total": n, "n_expected": int(mask.sum())}
    ids = np.array(row["token_ids"], np.int32)[mask]
    found["token_hash"] = int(token_hash(ids, np.array([0, len(ids)]))[0])
    offsets = np.array([0, n])
    sides = {"backend": "rollout_logprobs", "total": "rollout_logprobs"}
    for pair in PAIRS:
        behaviour = row.get(sides.get(pair, "trainer_logprobs"))
        policy = row.get(
            {"backend": "trainer_logprobs", "reference": "reference_logprobs", "teacher": "teacher_logprobs"}.get(
                pair, "current_logprobs"
            )
        )
        if behaviour is not None and policy is not None:
            a, b = (np.array([np.nan if v is None else v for v in side], np.float32) for side in (behaviour, policy))
            columns = sequence_statistics(a, b, mask, offsets, bounds=DEFAULT_BOUNDS[pair])
            found[pair] = {name: columns[name][0].item() for name in COLUMNS}
    return found


def _seen(began: float, ended: float) -> Row:
    seen = {"began": round(began * SECOND), "ended": round(ended * SECOND), "decided": None, "clock_set": None}
    return seen | {"clock_offset": round(at(0).timestamp()) * SECOND, "engine_started": 0}
