"""What fingerprints prove of the weights in engines: same label and other weights, a label that moved on without its
weights.

Only like is compared with like: replicas by the same part of the model in the same layout, a trainer and an engine by
tensors of the same name, dtype and shape that have agreed at least once (a kernel may keep a tensor in its own order).
What is judged is the newest version that both have, and what comes again and again: what was wrong and was fixed is not
a finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

Part = tuple[str | None, str | None]  # worker and layout: what may be compared

_NAMED: Final = 3  # tensors in a text
_HABIT: Final = 3  # mismatches that were fixed, and came again
_LOOKED_AT: Final = 400  # versions, the newest ones
_ENDED: Final = 2  # times the usual distance of mismatches that the newest may lie back


@dataclass(frozen=True)
class Reading:
    """One row of ``diagnosis_weight_readings``; `tensors` maps what was sampled (name, dtype, shape) to its hash."""

    source: str
    replica: str | None
    worker: str | None
    version: str | None
    step: int | None
    fingerprint: str
    layout: str | None
    unannounced: bool
    tensors: Mapping[str, int]
    adapter: str | None = None  # LoRA; None: the weights below them

    @property
    def part(self) -> Part:
        """What it may be compared with."""
        return self.worker, self.layout


@dataclass(frozen=True)
class Divergence:
    """Replicas that have other weights than others of the same version. `wrong`: which, where that can be said; `why`:
    how."""

    version: str
    step: int | None
    replicas: tuple[str, ...]
    wrong: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Mismatch:
    """An engine has other weights than its label says. `held`: the version whose weights it has, where that is
    known."""

    version: str
    step: int | None
    replica: str | None
    held: str | None
    compared: int
    different: tuple[str, ...]
    partial: bool

    @property
    def tensors(self) -> str:
        """Some of the tensors, for people."""
        names = [name.split(" ")[0] for name in self.different[:_NAMED]]
        return ", ".join(names) + (", …" if len(self.different) > _NAMED else "")


@dataclass(frozen=True)
class Reuse:
    """A version that names several different weights. `source`: who said so, "trainer" or "worker"; `versions`: how
    many there are."""

    version: str
    step: int | None
    source: str
    replica: str | None
    adapter: str | None
    different: int
    versions: int


@dataclass(frozen=True)
class Readings:
    """The fingerprints of a run, oldest first. Those of adapters are compared with each other alone."""

    rows: tuple[Reading, ...] = ()

    @cached_property
    def _below(self) -> tuple[Reading, ...]:
        return tuple(row for row in self.rows if row.adapter is None)

    @cached_property
    def _trainer(self) -> dict[str, Mapping[str, int]]:
        return {row.version: row.tensors for row in self._below if row.source == "trainer" and row.version is not None}

    @cached_property
    def _engines(self) -> dict[str | None, dict[str | None, dict[str, Reading]]]:
        """Replica → worker → version → the last reading of it."""
        by_replica: dict[str | None, dict[str | None, dict[str, Reading]]] = {}
        for row in self._below:
            if row.source == "worker" and row.version is not None:
                of_worker = by_replica.setdefault(row.replica, {}).setdefault(row.worker, {})
                of_worker.pop(row.version, None)  # the newest last
                of_worker[row.version] = row
        return by_replica

    @cached_property
    def divergence(self) -> Divergence | None:
        """Replicas that differ at the newest version that several of them have."""
        for version in self._newest_first:
            groups: dict[Part, list[Reading]] = {}
            for row in self._at(version):
                groups.setdefault(row.part, []).append(row)
            several = [rows for rows in groups.values() if len({row.replica for row in rows}) > 1]
            for rows in several:
                if len({row.fingerprint for row in rows}) > 1:
                    return self._judged(version, rows)
            if several:
                return None
        return None

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """An engine whose newest label is not that of its weights, by the trainer's fingerprints or by other
        replicas'."""
        for workers in self._engines.values():
            for readings in workers.values():
                version = next(reversed(readings))
                mismatch = self._against_trainer(readings, version) or self._against_versions(readings, version)
                if mismatch is not None:
                    return mismatch
        return None

    @cached_property
    def recurring(self) -> tuple[str, ...]:
        """Versions whose label an engine had and whose weights it had not, oldest first, where that comes again and
        again; else none."""
        versions: dict[str, None] = {}
        for workers in self._engines.values():
            for readings in workers.values():
                versions.update(dict.fromkeys(self._missed(readings)))
        return tuple(versions)

    def _missed(self, readings: Mapping[str, Reading]) -> list[str]:
        versions = [version for version in readings if version in self._trainer][-_LOOKED_AT:]
        agreed = self._agreed(readings)
        judged = {version: self._against(readings[version], version, agreed) for version in versions}
        missed = [version for version, mismatch in judged.items() if mismatch is not None and not mismatch.partial]
        fixed = [version for version, after in pairwise(versions) if version in missed and after not in missed]
        if len(fixed) < _HABIT:
            return []
        since = len(versions) - 1 - versions.index(missed[-1])
        return [] if since > _ENDED * len(versions) / len(missed) else missed

    @cached_property
    def reuse(self) -> Reuse | None:
        """The newest version that one engine or trainer had for different weights.

        Ranks of a trainer that each have a part of the model under the same names give several fingerprints of every
        version.
        """
        reuses: list[Reuse] = []
        for rows in self._by_owner.values():
            under: dict[str, list[Reading]] = {}
            for row in rows:
                under.setdefault(row.version or "", []).append(row)
            counts = {version: len({row.fingerprint for row in readings}) for version, readings in under.items()}
            alone = rows[0].source == "trainer" and len(counts) == 1
            most = [version for version, count in counts.items() if count > self._usual(rows[0].source, counts)]
            if most and not alone:
                last = under[most[-1]][-1]
                own = (last.source, last.replica, last.adapter)
                reuses.append(Reuse(most[-1], last.step, *own, counts[most[-1]], len(most)))
        return max(reuses, key=lambda reuse: (reuse.source == "worker", reuse.versions), default=None)

    @cached_property
    def _by_owner(self) -> dict[tuple[str | None, ...], list[Reading]]:
        by_owner: dict[tuple[str | None, ...], list[Reading]] = {}
        for row in self.rows:
            if row.version is not None:
                by_owner.setdefault((row.source, row.replica, row.adapter, *row.part), []).append(row)
        return by_owner

    @staticmethod
    def _usual(source: str, counts: Mapping[str, int]) -> int:
        return min(counts.values()) if source == "trainer" else 1

    @property
    def unannounced(self) -> int:
        """Changes of weights that no one announced."""
        return sum(row.unannounced for row in self.rows)

    @property
    def _newest_first(self) -> list[str]:
        order: dict[str, None] = {}
        for row in reversed(self._below):
            if row.source == "worker" and row.version is not None:
                order.setdefault(row.version)
        return list(order)

    def _at(self, version: str) -> list[Reading]:
        return [row for workers in self._engines.values() for of in workers.values() if (row := of.get(version))]

    def _judged(self, version: str, rows: list[Reading]) -> Divergence:
        names = tuple(sorted({row.replica or "" for row in rows}))
        step = next((row.step for row in rows if row.step is not None), None)
        for wrong, why in (
            ({r.replica or "": "" for r in rows if self._contradicts_trainer(r)}, "the trainer's fingerprint says so"),
            ({r.replica or "": "" for r in rows if self._as_before(r)}, "theirs did not change with the version"),
            ({r.replica or "": "" for r in _minority(rows)}, "most others agree with each other"),
        ):
            if 0 < len(wrong) < len(names):
                return Divergence(version, step, names, tuple(sorted(wrong)), why)
        return Divergence(version, step, names, (), "which of them is right is unknown")

    def _contradicts_trainer(self, row: Reading) -> bool:
        readings = self._engines[row.replica][row.worker]
        return row.version is not None and self._against_trainer(readings, row.version) is not None

    def _as_before(self, row: Reading) -> bool:
        others = self._engines[row.replica][row.worker].values()
        return any(
            o.version != row.version and o.fingerprint == row.fingerprint and o.layout == row.layout for o in others
        )

    def _against_trainer(self, readings: Mapping[str, Reading], version: str) -> Mismatch | None:
        return self._against(readings[version], version, self._agreed(readings)) if version in self._trainer else None

    def _against(self, row: Reading, version: str, agreed: set[str]) -> Mismatch | None:
        truth = self._trainer[version]
        compared = [key for key in row.tensors if key in truth and key in agreed]
        different = tuple(key for key in compared if row.tensors[key] != truth[key])
        if not different:
            return None
        held = self._held(row, compared, version)
        arrived = any(self._is_new(key, version) for key in set(compared) - set(different))
        return Mismatch(
            version, row.step, row.replica, held, len(compared), different, partial=held is None and arrived
        )

    def _agreed(self, readings: Mapping[str, Reading]) -> set[str]:
        """Tensors that were the trainer's at some version, so that both sides keep them in the same order."""
        agreed: set[str] = set()
        for version, row in readings.items():
            truth = self._trainer.get(version, {})
            agreed.update(key for key, value in row.tensors.items() if truth.get(key) == value)
        return agreed

    def _held(self, row: Reading, compared: list[str], version: str) -> str | None:
        """The version of the trainer whose weights these are."""
        for other, truth in reversed(self._trainer.items()):
            if other != version and all(truth.get(key) == row.tensors[key] for key in compared):
                return other
        return None

    def _is_new(self, key: str, version: str) -> bool:
        """Whether a tensor changed with a version, as the trainer says."""
        before = None
        for other, truth in self._trainer.items():
            if other == version:
                return before is not None and before.get(key) != truth.get(key)
            before = truth
        return False

    def _against_versions(self, readings: Mapping[str, Reading], version: str) -> Mismatch | None:
        """The newest label has the weights of an earlier one, and elsewhere these two differ."""
        row = readings[version]
        for other, held in readings.items():
            if other == version or held.fingerprint != row.fingerprint or held.layout != row.layout:
                continue
            if self._differ(other, version, row):
                return Mismatch(
                    version, row.step, row.replica, other, len(row.tensors), tuple(row.tensors), partial=False
                )
        return None

    def _differ(self, one: str, other: str, row: Reading) -> bool:
        """Whether two versions are of different weights, by the trainer or by another replica's readings of the same
        part."""
        first, second = self._trainer.get(one), self._trainer.get(other)
        if first is not None and second is not None:
            return any(key in first and first[key] != second.get(key, first[key]) for key in row.tensors)
        for replica, workers in self._engines.items():
            a, b = (workers.get(row.worker, {}).get(version) for version in (one, other))
            if replica != row.replica and a and b and a.part == b.part == row.part and a.fingerprint != b.fingerprint:
                return True
        return False


def _minority(rows: list[Reading]) -> list[Reading]:
    counts = Counter(row.fingerprint for row in rows).most_common()
    clear = len(counts) > 1 and counts[0][1] > counts[1][1]
    return [row for row in rows if row.fingerprint != counts[0][0]] if clear else []


def from_rows(rows: Iterable[Mapping[str, Any]], layouts: Mapping[str, tuple[str, ...]]) -> Readings:
    """From rows of ``diagnosis_weight_readings`` and the tensors of each layout."""
    readings = []
    for row in rows:
        keys, hashes = layouts.get(row["layout"], ()), row["tensor_hashes"] or ()
        tensors = dict(zip(keys, hashes, strict=True)) if len(keys) == len(hashes) else {}
        names = ("source", "replica", "worker", "version", "step", "fingerprint", "layout", "adapter")
        own = {name: row[name] for name in names}
        readings.append(Reading(**own, unannounced=row["reason"] == "unannounced", tensors=tensors))
    return Readings(tuple(readings))
