"""Proofs from the records of a run: facts that exclude causes, and the arrival of weight updates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from logprobe.monitor.judging.frame import Frame, Strata
from logprobe.monitor.judging.measures import SIGNIFICANT, difference
from logprobe.monitor.judging.records import number_of, windows
from logprobe.monitor.judging.thresholds import number


@dataclass(frozen=True, slots=True)
class Facts:
    """Recorded facts about a run.

    Attributes:
        true: names of the facts that hold.
        newer: share of tokens whose weights would be newer than the trainer's.
        unpublished: share of tokens whose version was never published.
    """

    true: frozenset[str]
    newer: float
    unpublished: float

    @property
    def conflict(self) -> bool:
        """True if the recorded versions contradict each other."""
        return "versions_conflict" in self.true

    @property
    def arrive(self) -> bool:
        """True if records prove that weight updates arrive, by fingerprints or by a load of every version.

        Loads prove it only if K3 was steady at first. If an engine reloads the same weights, the mismatch grows with
        each update from the first one on.
        """
        fingerprints = self.true & {"fingerprints_agree", "engine_weights_change"}
        return bool(fingerprints) or {"loads_recorded", "steady_at_first"} <= self.true

    def excluding(self, facts: tuple[str, ...]) -> str | None:
        """Return the first of these facts that holds, or None."""
        return next((fact for fact in facts if fact in self.true), None)


def facts_of(frame: Frame) -> Facts:
    """Return the facts that the records of a run prove."""
    newer, unpublished = _newer(frame), _unpublished(frame)
    stated = frame.joins.conflicts is not None and frame.joins.conflicts.differing > 0
    true = {name for name, holds in _FACTS.items() if holds(frame)}
    if stated or max(newer, unpublished) > number("version_conflict"):
        true.add("versions_conflict")
    return Facts(frozenset(true), newer, unpublished)


def _newer(frame: Frame) -> float:
    """Return the share of tokens with weights that the trainer did not have yet."""
    known = frame.strata.where(np.isfinite(frame.strata.lag))
    return float(known.tokens[known.lag < 0].sum()) / known.n if known.n else 0.0


def _unpublished(frame: Frame) -> float:
    """Return the share of tokens whose version no update record names, or 0 if too few updates were recorded."""
    column = frame.strata.groups.get("version")
    published = {value for record in frame.weights.records if (value := number_of(record.version)) is not None}
    if column is None or len(published) < number("published_versions"):
        return 0.0
    started = max((v for v in column.present if v < min(published)), default=None)
    known = {*published, started}  # the weights that a run starts with are not published
    strange = column.known & ~column.isin(known)
    n = float(frame.strata.tokens[column.known].sum())
    return float(frame.strata.tokens[strange].sum()) / n if n else 0.0


def _distinct_fingerprints(frame: Frame) -> bool:
    """Return whether all recorded versions of an engine have different fingerprints."""
    seen: dict[tuple[str | None, str | None, str | None], dict[str, str]] = {}
    for row in frame.readings.rows:
        if row.source == "worker" and row.version is not None and row.adapter is None:
            seen.setdefault((row.replica, row.worker, row.layout), {})[row.version] = row.fingerprint
    return any(len(by) >= number("published_versions") for by in seen.values()) and all(
        len(set(by.values())) == len(by) for by in seen.values()
    )


def _engine_weights_change(frame: Frame) -> bool:
    return _distinct_fingerprints(frame) and frame.readings.mismatch is None and not frame.readings.recurring


def _fingerprints_agree(frame: Frame) -> bool:
    """Return whether engines and trainer were compared by fingerprints without any difference."""
    readings = frame.readings
    trained = {row.version: row.tensors for row in readings.rows if row.source == "trainer" and row.version}
    alike = sum(
        1
        for row in readings.rows
        if row.source == "worker"
        and row.version in trained
        and any(readings.same(trained[row.version], name, value) for name, value in row.tensors.items())
    )
    whole = readings.mismatch is None and readings.divergence is None and not readings.recurring
    return whole and alike >= number("published_versions")


def _loads_recorded(frame: Frame) -> bool:
    """Return whether each engine label came with a complete load."""
    updates = frame.weights.updates
    labels = {record.version for record in updates if record.version is not None}
    loaded = {record.version for record in updates if record.loaded}
    counts = {record.tensors for record in updates if record.tensors}
    return len(labels) >= number("published_versions") and labels <= loaded and len(counts) <= 1


def _steady_at_first(frame: Frame) -> bool:
    """Return whether K3 did not rise within the run's beginning, including its start-up."""
    first = windows(frame.measured)[0]
    rows = frame.strata.where(frame.strata.step <= first.max(initial=0)).alike
    third = -(-len(rows.steps) // 3)
    begin, end = rows.within(rows.steps[:third]), rows.within(rows.steps[len(rows.steps) - third :])
    rises = difference(end.abs_d, begin.abs_d) > SIGNIFICANT
    return not (rises and end.k3 > number("growth_ratio") * begin.k3)


def _cache_cleared(frame: Frame) -> bool:
    """Return whether all update records state that the prefix cache was cleared."""
    updates = [record for record in frame.weights.updates if record.loaded or record.cache_cleared is not None]
    return len(updates) >= number("published_versions") and all(record.cache_cleared for record in updates)


@dataclass(frozen=True, slots=True)
class Still:
    """A version that stands still while the trainer advances.

    Attributes:
        since: first step with it.
        version: the version.
        replica: replica of the engine that has it, or None for all.
    """

    since: int
    version: float
    replica: str | None = None


def stands_still(frame: Frame) -> Still | None:
    """Return the version of all engines, or of one replica, that stands still while the trainer advances, or None."""
    known = frame.strata.where(frame.strata.known("version") & np.isfinite(frame.strata.lag))
    today = known.within(windows(frame.measured)[1])
    if today.n < number("most") * frame.now.n:
        return None
    found = _still(frame, known)
    column = today.groups.get("replica")
    for replica in [] if found is not None or column is None else column.present:
        if found is None and today.where(today.is_value("replica", replica)).n >= number("fewest"):
            found = _still(frame, known.where(known.is_value("replica", replica)), str(replica))
    return found


def _still(frame: Frame, known: Strata, replica: str | None = None) -> Still | None:
    """Return the version that stands still in a part of the tokens, whose versions are known.

    Versions may rise rarely. A version counts as constant after several times the longest interval between versions. An
    engine that went back to older weights stands still at those.
    """
    if len(known.steps) < 2 * number("paired_steps"):
        return None
    steps, version = known.steps, known.groups["version"].numbers
    index = np.searchsorted(steps, known.step)
    newest, lag = np.full(len(steps), -np.inf), np.full(len(steps), np.inf)
    np.maximum.at(newest, index, version)
    np.minimum.at(lag, index, known.lag)
    risen = np.flatnonzero(np.diff(np.maximum.accumulate(newest), prepend=-np.inf) > 0)
    at, waits = int(risen[-1]), np.diff(steps[risen])
    long = max(number("paired_steps"), number("stands_still") * float(waits.max(initial=0.0)))
    if steps[-1] - steps[at] < long or not lag[-1] > lag[at] + 1 or _loaded_past(frame, float(newest[at]), replica):
        return None
    now = float(newest[at + 1 :].max())
    return Still(int(steps[at if now == newest[at] else at + 1]), now, replica)


def _loaded_past(frame: Frame, version: float, replica: str | None) -> bool:
    """Return whether an engine loaded newer weights. Batches then wait in a queue, and updates arrive."""
    updates = [record for record in frame.weights.updates if replica is None or record.replica in (None, replica)]
    loaded = [number_of(record.version) for record in updates if record.loaded]
    return any(value is not None and value > version + 1 for value in loaded)


def _unmoved(frame: Frame) -> bool:
    """Return whether the learning rate was 0 before K3 began to grow, so that neither lag nor drift makes it grow."""
    since, grew = frame.unmoved_since, frame.growth.since_step
    return since is not None and grew is not None and since <= grew


def _temperatures_equal(frame: Frame) -> bool:
    setup = frame.setup
    ours = setup.trainer_temperature
    if ours is None or len(setup.temperatures) != 1 or setup.penalties:  # penalties change the distribution likewise
        return False
    return math.isclose(setup.temperatures[0], ours, rel_tol=1e-6)


def _vocabularies_equal(frame: Frame) -> bool:
    sizes = vocabularies(frame)
    return sizes is not None and sizes[0] == sizes[1]


def vocabularies(frame: Frame) -> tuple[int, int] | None:
    """Return the rows of the softmax at engine and trainer, or None if either is not recorded."""
    engine = frame.setup.engine("vocab_size")
    trainer = [(frame.setup.trainer or {}).get(name) for name in ("padded_vocab_size", "vocab_size")]
    ours = next((value for value in trainer if isinstance(value, int)), None)
    if len(engine) != 1 or not isinstance(engine[0], int) or ours is None:
        return None
    return engine[0], ours


_FACTS: Final[Mapping[str, Callable[[Frame], bool]]] = MappingProxyType(
    {
        "processed_logprobs": lambda frame: frame.setup.logprobs_mode == "processed_logprobs",
        "temperatures_equal": _temperatures_equal,
        "nothing_truncated": lambda frame: bool(frame.setup.samplings) and not frame.setup.truncations,
        "truncation_replayed": lambda frame: frame.setup.masks_replayed,
        "nothing_masked": lambda frame: bool(frame.setup.samplings) and not frame.setup.structured,
        "vocabularies_equal": _vocabularies_equal,
        "engine_weights_change": _engine_weights_change,
        "fingerprints_agree": _fingerprints_agree,
        "loads_recorded": _loads_recorded,
        "cache_cleared": _cache_cleared,
        "steady_at_first": _steady_at_first,
        "routes_agree": lambda frame: frame.replay.measured and frame.replay.exact,
        "batch_invariant": lambda frame: any(bool(value) for value in frame.setup.engine("batch_invariant")),
        "version_stands_still": lambda frame: stands_still(frame) is not None,
        "learning_rate_zero": _unmoved,
    }
)
NAMES: Final = frozenset({*_FACTS, "versions_conflict"})
