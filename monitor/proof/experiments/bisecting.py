"""`logprobe bisect`: search for the settings that cause the mismatch, by changing one at a time.

Each departing side of the chain is searched separately. The search tries every setting alone, then adds settings
greedily until the mismatch is gone, then removes them one at a time. The result is the smallest set that restores
parity.

An arm that makes a setting safe and closes the mismatch proves the cause. An arm that makes the reference faulty proves
nothing by approaching the recorded values. Its set is named only if all but noise is gone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

from logprobe.monitor.proof.departing import FLOOR, Decision, Departs, Pattern, decide
from logprobe.monitor.proof.experiments.countdown import Countdown
from logprobe.monitor.proof.experiments.knobs import Knob, Side
from logprobe.monitor.proof.paired import UNMEASURED, Cost, Gap, Sums, differences, removed, restores, speed, sums
from logprobe.monitor.proof.sample import Scores

Verdict = Literal["this is it", "contributes", "unproven", "innocent", "not testable here"]
_LEAST: Final = 0.05  # share of the gap below which an arm is called innocent
_AT_FAULT: Final[tuple[Verdict, ...]] = ("this is it", "contributes")
_LEAST_ERROR: Final = 1e-5  # float32 rounding stays below
_JUMPS: Final = 4.0  # times what the layers before it have
_NOT_RUN: Final = "everything: no arm ran"


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of an arm: the log-probs of `a` and `b`, whose mismatch is judged, or the reason for a failure."""

    a: Scores | None = None
    b: Scores | None = None
    cost: Cost = UNMEASURED
    error: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One setting of one knob. `value`: input of the side's `measure`."""

    knob: Knob
    setting: str
    value: Any = None
    alone: bool = False  # cannot be combined with others


Measure = Callable[[tuple[Change, ...]], Measured]


@dataclass(frozen=True, slots=True)
class Bench:
    """Side of the chain with its possible changes.

    Attributes:
        side: searched side.
        base: the two scorings of the mismatch as configured.
        changes: changes to try.
        measure: function that runs an arm.
        ruled_out: knobs that need no arm, with the reason.
        reproduces: true if an arm is a faulty scoring that may reproduce the recorded values, false if an arm makes the
            recorded side safe.
        costs: costs of the engines as configured.
    """

    side: Side
    base: tuple[Scores, Scores]
    changes: tuple[Change, ...]
    measure: Measure
    ruled_out: tuple[tuple[Knob, Verdict, str], ...] = ()
    reproduces: bool = False
    costs: tuple[Cost, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """Row of the result.

    Attributes:
        knob: name of the setting.
        setting: its value in this arm.
        side: side of the setting.
        k3: K3 of the mismatch in this arm, or None if not run.
        removed: removed share of the side's mismatch, or None if not run.
        interval: 95 % interval of `removed`.
        tokens_per_s: speed of the engine in this arm.
        speed: ratio of this speed to the configured engine's, with the 95 % interval, or None if not measured.
        kv_tokens: capacity of its KV cache in tokens.
        verdict: see `Verdict`.
        note: reason for not running the arm, or its further settings.
        cause: cause of the diagnosis that the knob proves.
        leaves_open: questions that the arm does not answer.
    """

    knob: str
    setting: str
    side: Side
    k3: float | None
    removed: float | None
    interval: tuple[float, float] | None
    tokens_per_s: float | None
    verdict: Verdict
    note: str = ""
    cause: str | None = None
    speed: tuple[float, float, float] | None = None
    kv_tokens: int | None = None
    leaves_open: str = _NOT_RUN

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form."""
        return {
            **asdict(self),
            "interval": self.interval and list(self.interval),
            "speed": self.speed and list(self.speed),
        }


@dataclass(frozen=True, slots=True)
class Bisection:
    """Result of `logprobe bisect`."""

    decision: Decision
    legs: Mapping[Departs, Gap | None]
    whole: Gap | None
    noise_floor: float | None
    arms: tuple[Arm, ...]
    smallest_set: tuple[str, ...]
    parity: bool
    floor: float = FLOOR
    level: float | None = None  # K3 up to which other setups of this kind are reported; None: not known
    cost: Cost = UNMEASURED
    residual: Mapping[Side, str] = field(default_factory=dict)
    layers: Mapping[Side, tuple[tuple[str, float], ...]] = field(default_factory=dict)
    not_measured: tuple[str, ...] = ()

    @property
    def enough(self) -> float:
        """K3 of the engine that requires no change, the reported level of similar setups or else agreement."""
        return max(self.floor, self.level or 0.0)

    @property
    def within(self) -> bool:
        """True if the engine departs by at most the reported level of similar setups."""
        engine_gap = self.legs.get("engine")
        return (
            "engine" in self.decision.departs_all
            and engine_gap is not None
            and not engine_gap.broken
            and engine_gap.k3 <= self.enough
        )

    @property
    def cheapest(self) -> Arm | None:
        """Sufficient setting of the engine with the least loss of speed, or None without one or a measured speed."""
        at_fault = [arm for arm in self.arms if arm.side == "engine" and arm.verdict in _AT_FAULT and arm.speed]
        alone = [
            arm
            for arm in at_fault
            if arm.verdict == "this is it" or (not arm.note and arm.k3 is not None and arm.k3 <= self.enough)
        ]  # a note names the others that it needs
        return None if self.within else max(alone, key=lambda arm: arm.speed[0] if arm.speed else 0.0, default=None)

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form, for ``logprobe bisect --json`` and the store."""
        return {
            "departs": self.decision.departs,
            "departs_all": list(self.decision.departs_all),
            "why": self.decision.why,
            "baseline": {
                "k3": None if self.whole is None else self.whole.k3,
                "noise_floor": self.noise_floor,
                "tokens_per_s": self.cost.tokens_per_s,
                "kv_tokens": self.cost.kv_tokens,
                "legs": {leg: None if leg_gap is None else leg_gap.k3 for leg, leg_gap in self.legs.items()},
            },
            "arms": [arm.document() for arm in self.arms],
            "smallest_set": list(self.smallest_set),
            "level": self.level,
            "within_level": self.within,
            "cheapest": self.cheapest and f"{self.cheapest.knob} = {self.cheapest.setting}",
            "parity": self.parity,
            "residual": dict(self.residual),
            "layers": {side: [list(layer) for layer in errors] for side, errors in self.layers.items()},
            "drifts_at": {side: jumps(errors) for side, errors in self.layers.items()},
            "not_measured": list(self.not_measured),
        }


@dataclass
class Search:
    """Search on one side.

    Args:
        bench: side to search.
        floor: K3 that counts as agreement.
        out_of_time: function that returns true if no further arms may start.
        countdown: callback for each arm, except arms of single settings, which the owner reports.
    """

    bench: Bench
    floor: float
    out_of_time: Callable[[], bool] = lambda: False
    countdown: Countdown = field(default_factory=Countdown)
    _kept: dict[tuple[tuple[str, str], ...], Measured] = field(default_factory=dict)

    def run(self) -> tuple[list[Arm], tuple[str, ...], bool]:
        """Return the arms, the smallest set of knobs, and whether that set restores parity."""
        base = self._sums(Measured(*self.bench.base))
        if base is None:
            return [], (), False
        alone = self._arms((), self.bench.changes, base)
        changes = self._greedy(base)
        smallest = self._back(changes)
        if self.bench.reproduces and (self._opposed(alone) or not self._restores(smallest, base)):
            smallest = ()
        arms = [self._with_rest(change, arm, smallest, base) for change, arm in alone.items()]
        if self.bench.reproduces:
            arms = [_unproven(arm, smallest) for arm in arms]
        arms += [_ruled_out(self.bench.side, *why) for why in self.bench.ruled_out]
        names = tuple(dict.fromkeys(change.knob.name for change in smallest))
        return arms, names, bool(smallest) and self._parity(smallest)

    def left(self, names: Collection[str]) -> tuple[Scores, Scores]:
        """Return the two scorings whose mismatch remains after the named settings."""
        changes = tuple(change for change in self.bench.changes if change.knob.name in names)
        measured = next((self._kept[key] for key in self._kept if {name for name, _ in key} == {*names}), None)
        if not changes or measured is None or measured.a is None or measured.b is None:
            return self.bench.base
        return measured.a, measured.b

    def _arms(self, kept: tuple[Change, ...], rest: Sequence[Change], base: Sums) -> dict[Change, Arm]:
        """Return arms that add each of the `rest` to the `kept` settings."""
        return {change: self._arm((*kept, change), base) for change in rest}

    def _arm(self, changes: tuple[Change, ...], base: Sums) -> Arm:
        measured, change = self._measure(changes), changes[-1]
        of = self._sums(measured)
        arm = partial(Arm, change.knob.name, change.setting, self.bench.side, cause=change.knob.cause)
        if measured.error is not None or of is None:
            note = f"not supported here: {measured.error or 'no token could be compared'}"
            return arm(None, None, None, None, "not testable here", note)
        share, interval = removed(base, of)
        alone = len(changes) == 1 and self._restores(changes, base)
        judged_arm, cost = (
            arm(_k3(of), share, interval, measured.cost.tokens_per_s, judged(share, interval, alone=alone)),
            measured.cost,
        )
        ratio = speed(cost, self.bench.costs)
        still = _open(change.knob, of, reproduces=self.bench.reproduces)
        return replace(judged_arm, speed=ratio, kv_tokens=cost.kv_tokens, leaves_open=still)

    def _restores(self, changes: tuple[Change, ...], base: Sums) -> bool:
        """Return whether these changes remove all but noise of the side's mismatch."""
        measured = self._measure(changes) if changes else Measured()
        of = self._sums(measured)
        if of is None or measured.a is None or measured.b is None:
            return False
        return restores(base, of, differences(*self.bench.base), differences(measured.a, measured.b), self.floor)

    def _opposed(self, alone: Mapping[Change, Arm]) -> bool:
        """Return whether a setting and its opposite both appear to close the mismatch, so that neither counts."""
        worked = [change for change, arm in alone.items() if arm.verdict in _AT_FAULT]
        return any(_opposite(one, other) for one, other in itertools.combinations(worked, 2))

    def _greedy(self, base: Sums) -> tuple[Change, ...]:
        """Return the settings that each remove a part of the remaining mismatch, the best first."""
        kept: tuple[Change, ...] = ()
        left = base
        while self._above(left) and not any(change.alone for change in kept):
            rest = [c for c in self.bench.changes if c.knob not in {f.knob for f in kept} and not (kept and c.alone)]
            self.countdown.expect(len(rest) if kept else 0)
            arms = self._arms(kept, rest, left)
            best = max(arms, key=lambda change: _rank(arms[change]), default=None)
            if best is None or arms[best].verdict not in _AT_FAULT:
                break
            kept = (*kept, best)
            left = self._sums(self._measure(kept)) or left
        return kept

    def _back(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Return `changes` without the dispensable settings."""
        kept = changes
        for change in changes if len(changes) > 1 else ():
            fewer = tuple(other for other in kept if other is not change)
            whole, without = self._sums(self._measure(kept)), self._sums(self._measure(fewer))
            if whole is None or without is None:
                continue
            share, interval = removed(without, whole)
            if not self._above(without) or judged(share, interval, alone=False) == "innocent":
                kept = fewer
        return kept

    def _with_rest(self, change: Change, alone: Arm, smallest: tuple[Change, ...], base: Sums) -> Arm:
        """Return the arm of a setting. If its effect only shows after other fixes, use the share removed on top of
        them.
        """
        if change not in smallest or len(smallest) == 1 or alone.verdict in _AT_FAULT:
            return alone
        others = tuple(other for other in smallest if other is not change)
        together = self._arm((*others, change), base)
        without = self._sums(self._measure(others))
        share = None if without is None or together.k3 is None else (_k3(without) - together.k3) / _k3(base)
        note = f"with {', '.join(other.knob.name for other in others)}"
        return replace(together, removed=share, interval=None, verdict="contributes", note=note)

    def _parity(self, changes: tuple[Change, ...]) -> bool:
        left = self._sums(self._measure(changes))
        return left is not None and not self._above(left)

    def _measure(self, changes: tuple[Change, ...]) -> Measured:
        """Run an arm once, regardless of the order of its changes."""
        key = tuple(sorted((change.knob.name, change.setting) for change in changes))
        if key not in self._kept:
            if self.out_of_time():
                return Measured(error="out of time (--minutes); run the same command again to continue")
            with self.countdown.arm(", ".join(f"{name}={setting}" for name, setting in key)):
                self._kept[key] = self.bench.measure(changes)
        return self._kept[key]

    def _sums(self, measured: Measured) -> Sums | None:
        return None if measured.a is None or measured.b is None else sums(measured.a, measured.b)

    def _above(self, of: Sums) -> bool:
        return _k3(of) > self.floor or float(of.broken_S.sum()) > 0.01 * float((of.n_S + of.broken_S).sum())


def judged(share: float, interval: tuple[float, float] | None, *, alone: bool) -> Verdict:
    """Return the verdict on the setting of a completed arm. `alone`: true if the setting alone removes all but noise.

    >>> [judged(0.99, (0.9, 1.0), alone=alone) for alone in (True, False)]
    ['this is it', 'contributes']
    >>> judged(0.2, (-0.1, 0.5), alone=False), judged(0.01, (0.005, 0.015), alone=False)
    ('innocent', 'innocent')
    """
    if interval is None or interval[0] <= 0 or share < _LEAST:
        return "innocent"
    return "this is it" if alone else "contributes"


def _opposite(one: Change, other: Change) -> bool:
    """Return whether the two changes set one knob to x and −x."""
    if one.knob is not other.knob or not (isinstance(one.value, Mapping) and isinstance(other.value, Mapping)):
        return False
    return [*one.value.values()] == [-x if isinstance(x, int | float) else x for x in other.value.values()]


def _ruled_out(side: Side, knob: Knob, verdict: Verdict, note: str) -> Arm:
    still = "whether the setting was in effect: no arm ran" if verdict == "innocent" else _NOT_RUN
    return Arm(knob.name, knob.safe, side, None, None, None, None, verdict, note, knob.cause, leaves_open=still)


def _open(knob: Knob, of: Sums, *, reproduces: bool) -> str:
    """Return the open questions of a completed arm. An arm covers only this sample, and a reproduction does not run the
    suspected code.
    """
    sequences, longest = int((of.n_S > 0).sum()), int(of.n_S.max())
    others = "other faults with the same log-probs, " if reproduces else ""
    return f"seen on {sequences} sequences of up to {longest} tokens; not tested: {others}{knob.untested}"


def _unproven(arm: Arm, smallest: Sequence[Change]) -> Arm:
    """Return an unnamed guilty arm as unproven, since a reproduction only came closer than the reference."""
    if arm.verdict not in _AT_FAULT or any((c.knob.name, c.setting) == (arm.knob, arm.setting) for c in smallest):
        return arm
    return replace(arm, verdict="unproven", note="comes closer; what it leaves is more than noise")


def _rank(arm: Arm) -> float:
    return -1.0 if arm.removed is None else arm.removed


def _k3(of: Sums) -> float:
    n = float(of.n_S.sum())
    return float(of.k3_S.sum()) / n if n else float("inf")


def search_all(
    benches: Sequence[Bench],
    legs: Mapping[Departs, Gap | None],
    whole: Gap | None,
    *,
    look: Callable[[Scores, Scores], Pattern | None],
    noise_floor: float | None,
    floor: float = FLOOR,
    unsure: str | None = None,
    deadline: float | None = None,
    countdown: Countdown | None = None,
) -> Bisection:
    """Search every departing side.

    Args:
        benches: sides that can be searched.
        legs: mismatches of the chain.
        whole: mismatch between r and t.
        look: function that returns the pattern of a mismatch.
        noise_floor: K3 between two engines with the same configuration, or None if not measured.
        floor: K3 that counts as agreement.
        unsure: engine settings that could not be repeated, or None.
        deadline: latest start of an arm on the monotonic clock.
        countdown: callback for each arm.
    """
    floor = max(floor, 2 * (noise_floor or 0.0))
    countdown = countdown or Countdown()
    states = [look(*bench.base) for bench in benches if bench.side == "engine_state"]
    judge = partial(decide, legs, whole, floor=floor, state=next(iter(states), None), unsure=unsure)
    decision = judge()
    departing = [bench for bench in benches if bench.side in decision.departs_all]
    countdown.expect(sum(len(bench.changes) for bench in departing))
    arms: list[Arm] = []
    smallest: list[str] = []
    parities = []
    reproduced: list[Departs] = []
    residual: dict[Side, str] = {}
    for bench in sorted(departing, key=lambda bench: -_leg_size(legs, bench)):
        late = (lambda: False) if deadline is None else (lambda: time.monotonic() > deadline)
        search = Search(bench, floor, late, countdown)
        more, names, parity = search.run()
        arms += more
        smallest += names
        parities.append(parity)
        if bench.reproduces and names:
            reproduced.append(bench.side)
        if not parity:
            residual[bench.side] = _in_words(look(*search.left(names)), named=bool(names))
    arms.sort(key=lambda arm: (arm.removed is None, -_rank(arm)))
    return Bisection(
        decision=judge(reproduced=reproduced),
        legs=legs,
        whole=whole,
        noise_floor=noise_floor,
        arms=tuple(arms),
        smallest_set=tuple(dict.fromkeys(smallest)),
        parity=all(parities) if parities else decision.departs == "none",
        floor=floor,
        residual=residual,
    )


def _in_words(seen: Pattern | None, *, named: bool) -> str:
    """Describe the mismatch that no setting explains."""
    begin = "more than these settings" if named else "not one of these settings"
    words = () if seen is None else seen.words
    return f"{begin}; {'; '.join(words) or 'what is left is alike in all sequences, places and tokens'}"


def _leg_size(legs: Mapping[Departs, Gap | None], bench: Bench) -> float:
    leg_gap = legs.get(bench.side)
    return 0.0 if leg_gap is None else leg_gap.k3


def jumps(layers: Sequence[tuple[str, float]]) -> list[str]:
    """Return the layers at which the relative error grows by more than rounding, in order.

    >>> jumps([("embedding", 0.0), ("layer 0", 2e-7), ("layer 1", 3e-3), ("layer 2", 4e-3)])
    ['layer 1']
    """
    names, before = [], 0.0
    for name, error in layers:
        if error > _LEAST_ERROR and error > _JUMPS * before:
            names.append(name)
        before = max(before, error)
    return names
