"""Evidence from weight fingerprints: wrong weights under a label, and labels without new weights.

Only comparable readings are compared. Replicas are compared by the same part of the model in the same layout. Trainer
and engine are compared by tensors of the same name, dtype and shape that have agreed at least once, because a kernel
may reorder a tensor. The newest common version and recurring faults are judged. A past fault that was fixed is not a
finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from logprobe.collectors.fingerprint import LOW_DTYPES, on_the_way

Part = tuple[str | None, str | None]  # worker and layout: what may be compared

_NAMED: Final = 3  # tensors in a text
_HABIT: Final = 3  # mismatches that were fixed, and came again
_LOOKED_AT: Final = 400  # versions, the newest ones
_ENDED: Final = 2  # times the usual distance of mismatches that the newest may lie back


@dataclass(frozen=True)
class Reading:
    """One row of ``diagnosis_weight_readings``. `tensors` maps a sample (name, dtype, shape) to its hash."""

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
        """Key shared by the readings that can be compared with this one."""
        return self.worker, self.layout


@dataclass(frozen=True)
class Divergence:
    """Replicas with different weights of one version. `wrong`: deviating replicas, if known. `why`: the difference."""

    version: str
    step: int | None
    replicas: tuple[str, ...]
    wrong: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Mismatch:
    """Engine whose weights differ from its label. `held`: version of the actual weights, or None if unknown."""

    version: str
    step: int | None
    replica: str | None
    held: str | None
    compared: int
    different: tuple[str, ...]
    partial: bool

    @property
    def tensors(self) -> str:
        """Names of some of the tensors."""
        names = [name.split(" ")[0] for name in self.different[:_NAMED]]
        return ", ".join(names) + (", …" if len(self.different) > _NAMED else "")


@dataclass(frozen=True)
class Reuse:
    """Version with several different weights. `source`: "trainer" or "worker". `versions`: number of weights."""

    version: str
    step: int | None
    source: str
    replica: str | None
    adapter: str | None
    different: int
    versions: int


@dataclass(frozen=True)
class Readings:
    """Fingerprints of a run, oldest first. Those of adapters are only compared with each other."""

    rows: tuple[Reading, ...] = ()

    @cached_property
    def _trainer(self) -> dict[str, Mapping[str, int]]:
        """Tensors of the trainer's weights by version."""
        return {
            row.version: row.tensors
            for row in self.rows
            if row.source == "trainer" and row.adapter is None and row.version is not None
        }

    @cached_property
    def _engines(self) -> dict[tuple[str | None, str | None], dict[str, Reading]]:
        """Last reading of each version by replica and worker, the newest version last."""
        engines: dict[tuple[str | None, str | None], dict[str, Reading]] = {}
        for row in self.rows:
            if row.source == "worker" and row.adapter is None and row.version is not None:
                readings = engines.setdefault((row.replica, row.worker), {})
                readings.pop(row.version, None)
                readings[row.version] = row
        return engines

    @property
    def unannounced(self) -> int:
        """Weight changes without a load, a label or a mark."""
        return sum(row.unannounced for row in self.rows)

    @cached_property
    def divergence(self) -> Divergence | None:
        """Divergence of replicas at the newest version that several of them have, or None."""
        newest_first = [row for row in reversed(self.rows) if row.source == "worker" and row.adapter is None]
        for version in dict.fromkeys(row.version for row in newest_first if row.version is not None):
            parts: dict[Part, list[Reading]] = {}
            for row in (readings[version] for readings in self._engines.values() if version in readings):
                parts.setdefault(row.part, []).append(row)
            several = [rows for rows in parts.values() if len({row.replica for row in rows}) > 1]
            apart = next((rows for rows in several if len({row.fingerprint for row in rows}) > 1), None)
            if apart is not None:
                return self._judged(version, apart)
            if several:
                return None
        return None

    def _judged(self, version: str, rows: list[Reading]) -> Divergence:
        """Identify the wrong replicas by the trainer, by their own past, or by the majority."""
        names = tuple(sorted({row.replica or "" for row in rows}))
        step = next((row.step for row in rows if row.step is not None), None)
        for wrong, why in (
            ([row for row in rows if self._contradicts_trainer(row)], "the trainer's fingerprint says so"),
            ([row for row in rows if self._as_before(row)], "theirs did not change with the version"),
            (_minority(rows), "most others agree with each other"),
        ):
            replicas = tuple(sorted({row.replica or "" for row in wrong}))
            if 0 < len(replicas) < len(names):
                return Divergence(version, step, names, replicas, why)
        return Divergence(version, step, names, (), "which of them is right is unknown")

    def _contradicts_trainer(self, row: Reading) -> bool:
        readings = self._engines[row.replica, row.worker]
        return row.version is not None and self._against_trainer(readings, row.version) is not None

    def _as_before(self, row: Reading) -> bool:
        others = self._engines[row.replica, row.worker].values()
        return any(
            o.version != row.version and o.fingerprint == row.fingerprint and o.layout == row.layout for o in others
        )

    @cached_property
    def mismatch(self) -> Mismatch | None:
        """Engine whose weights contradict its newest label according to the trainer, or None."""
        for readings in self._engines.values():
            version = next(reversed(readings))
            found = self._against_trainer(readings, version) or self._against_versions(readings, version)
            if found is not None:
                return found
        return None

    @cached_property
    def recurring(self) -> tuple[str, ...]:
        """Versions whose label an engine had without the weights, oldest first, if that recurs."""
        return tuple(dict.fromkeys(v for readings in self._engines.values() for v in self._missed(readings)))

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
        """Newest version with different weights at one engine or trainer, or None.

        Ranks of a trainer may each have a part of the model under the same names. Every version then has several
        fingerprints.
        """
        owners: dict[tuple[str | None, ...], dict[str, list[Reading]]] = {}
        for row in self.rows:
            if row.version is not None:
                owner = (row.source, row.replica, row.adapter, *row.part)
                owners.setdefault(owner, {}).setdefault(row.version, []).append(row)
        reuses: list[Reuse] = []
        for (source, *_), under in owners.items():
            counts = {version: len({row.fingerprint for row in rows}) for version, rows in under.items()}
            usual = min(counts.values()) if source == "trainer" else 1
            most = [version for version, count in counts.items() if count > usual]
            if most and not (source == "trainer" and len(counts) == 1):
                last = under[most[-1]][-1]
                own = (last.source, last.replica, last.adapter)
                reuses.append(Reuse(most[-1], last.step, *own, counts[most[-1]], len(most)))
        return max(reuses, key=lambda reuse: (reuse.source == "worker", reuse.versions), default=None)

    def _against_trainer(self, readings: Mapping[str, Reading], version: str) -> Mismatch | None:
        return self._against(readings[version], version, self._agreed(readings)) if version in self._trainer else None

    def _against(self, row: Reading, version: str, agreed: set[str]) -> Mismatch | None:
        truth = self._trainer[version]
        compared = [key for key in row.tensors if key in truth and key in agreed]
        different = tuple(key for key in compared if not self.same(truth, key, row.tensors[key]))
        if not different:
            return None
        held = next(
            (
                other
                for other, theirs in reversed(self._trainer.items())
                if other != version and all(self.same(theirs, key, row.tensors[key]) for key in compared)
            ),
            None,
        )
        arrived = any(self._is_new(key, version) for key in set(compared) - set(different))
        partial = held is None and arrived
        return Mismatch(version, row.step, row.replica, held, len(compared), different, partial=partial)

    @cached_property
    def rounded(self) -> str | None:
        """Dtype of 16 bits to which weights are rounded on their way to engines in float32, or None without proof."""
        for readings in self._engines.values():
            for version, row in list(readings.items())[-_LOOKED_AT:]:
                truth = self._trainer.get(version, {})
                differ = [name for name, value in row.tensors.items() if truth.get(name, value) != value]
                for dtype in LOW_DTYPES if differ else ():
                    if all(truth.get(on_the_way(name, dtype)) == row.tensors[name] for name in differ):
                        return dtype
        return None

    def same(self, truth: Mapping[str, int], key: str, value: int) -> bool:
        """Return whether an engine's tensor is that of the trainer's version `truth`, exactly or as it arrives."""
        return value in (truth.get(key), truth.get(self._arriving(key)))

    def _arriving(self, key: str) -> str:
        """Return the trainer's key of a tensor as engines receive it."""
        return key if self.rounded is None or " float32[" not in key else on_the_way(key, self.rounded)

    def _agreed(self, readings: Mapping[str, Reading]) -> set[str]:
        """Return the tensors that matched the trainer's at some version and therefore have the same order on both
        sides."""
        agreed: set[str] = set()
        for version, row in readings.items():
            truth = self._trainer.get(version, {})
            agreed.update(key for key, value in row.tensors.items() if self.same(truth, key, value))
        return agreed

    def _is_new(self, key: str, version: str) -> bool:
        """Return whether a tensor changed with a version, by the trainer's readings."""
        versions = list(self._trainer)
        at = versions.index(version)
        name = self._arriving(key)
        return at > 0 and self._trainer[versions[at - 1]].get(name) != self._trainer[version].get(name)

    def _against_versions(self, readings: Mapping[str, Reading], version: str) -> Mismatch | None:
        """Return a mismatch if the newest label has an earlier version's weights, although those of the trainer
        differ. Where replicas differ, `divergence` tells."""
        row = readings[version]
        for other, held in readings.items():
            same = held.fingerprint == row.fingerprint and held.layout == row.layout
            if other != version and same and self._differ(other, version, row):
                names = tuple(row.tensors)
                return Mismatch(version, row.step, row.replica, other, len(names), names, partial=False)
        return None

    def _differ(self, one: str, other: str, row: Reading) -> bool:
        """Return whether two versions of the trainer have different tensors of these names."""
        first, second = (self._trainer.get(version, {}) for version in (one, other))
        names = [self._arriving(key) for key in row.tensors]
        return any(name in first and first[name] != second.get(name, first[name]) for name in names)


def _minority(rows: list[Reading]) -> list[Reading]:
    counts = Counter(row.fingerprint for row in rows).most_common()
    clear = len(counts) > 1 and counts[0][1] > counts[1][1]
    return [row for row in rows if row.fingerprint != counts[0][0]] if clear else []


def from_rows(rows: Iterable[Mapping[str, Any]], layouts: Mapping[str, tuple[str, ...]]) -> Readings:
    """Build the readings from rows of ``diagnosis_weight_readings`` and the tensors of each layout."""
    readings = []
    for row in rows:
        keys, hashes = layouts.get(row["layout"], ()), row["tensor_hashes"] or ()
        tensors = dict(zip(keys, hashes, strict=True)) if len(keys) == len(hashes) else {}
        names = ("source", "replica", "worker", "version", "step", "fingerprint", "layout", "adapter")
        own = {name: row[name] for name in names}
        readings.append(Reading(**own, unannounced=row["reason"] == "unannounced", tensors=tensors))
    return Readings(tuple(readings))
