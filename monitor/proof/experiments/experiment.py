"""Measurements of `logprobe bisect` on each side, by processes that score with changed knobs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.setup import Setup as SetupOfRun
from logprobe.monitor.proof.departing import FLOOR, Departs, pattern
from logprobe.monitor.proof.experiments.bisecting import Bench, Bisection, Change, Measured, Verdict, search_all
from logprobe.monitor.proof.experiments.countdown import Countdown
from logprobe.monitor.proof.experiments.knobs import KNOBS, Knob
from logprobe.monitor.proof.paired import Gap, gap
from logprobe.monitor.proof.sample import NEUTRAL, Scores, TokenSequence, assumptions
from logprobe.monitor.proof.scorers.running import has_cuda, run_scorer
from logprobe.monitor.proof.scoring import REFERENCE, Fresh, Run, Scorers, aged
from logprobe.monitor.proof.setup import Setup

COMPARED: Final[tuple[Literal["engine", "trainer"], ...]] = (
    "engine",
    "trainer",
)  # sides whose hidden states can be watched


def bisect(
    sequences: Sequence[TokenSequence],
    setup: Setup,
    *,
    knobs: Sequence[Knob] = KNOBS,
    floor: float = FLOOR,
    minutes: float | None = None,
    run: Run = run_scorer,
    countdown: Countdown | None = None,
) -> Bisection:
    """Find the settings that cause the mismatch.

    Args:
        sequences: sequences to score.
        setup: checkpoints, engine and trainer.
        knobs: settings to try.
        floor: K3 that counts as agreement.
        minutes: time in minutes after which no arm is started.
        run: function like `run_scorer` that starts a process or returns a cached answer.
        countdown: callback for each arm.

    Raises:
        ConfigurationError: neither engine nor reference could score anything.
        StoreError: the disk is full.
    """
    countdown = countdown or Countdown()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    lab = _Laboratory(sequences, setup, run, countdown)
    legs: dict[Departs, Gap | None] = {
        "engine_state": gap("r", lab.r, "r_fresh", lab.fresh.decode),
        "engine": gap("r_fresh", lab.fresh.decode, "q", lab.q_rollout),
        "trainer": gap("q", lab.q, "t", lab.t),
        "policy_age": None if lab.q_rollout is lab.q else gap("q_rollout", lab.q_rollout, "q", lab.q),
    }
    noise = gap("r_fresh", lab.fresh.decode, "r_fresh", lab.again.decode)
    unlike = lab.unlike()
    bisection = search_all(
        lab.benches(knobs),
        legs,
        gap("r", lab.r, "t", lab.t),
        look=partial(pattern, sequences=sequences),
        noise_floor=None if noise is None else noise.k3,
        floor=floor,
        unsure=", ".join(unlike) or None,
        deadline=deadline,
        countdown=countdown,
    )
    layers = {side: lab.layers(side) for side in COMPARED if side in bisection.residual}
    lost = [f"not repeated of the engine's settings: {', '.join(unlike)}"] if unlike else []
    return replace(
        bisection,
        cost=lab.fresh.cost,
        level=lab.level(),
        layers={side: errors for side, errors in layers.items() if errors},
        not_measured=(*lab.problems(), *lost, *assumptions(sequences)),
    )


class _Laboratory:
    """Baselines, measured once, with the changes of arms on each side."""

    def __init__(self, sequences: Sequence[TokenSequence], setup: Setup, run: Run, countdown: Countdown) -> None:
        self._sequences, self._setup, self._run = sequences, setup, run
        self._countdown = countdown
        self._baselines = scorers = self._scorers()
        ages = aged(sequences)
        countdown.expect(3 + ages + (setup.trainer is not None))
        with countdown.arm("baseline: engine"):
            self.fresh = scorers.engine({})
        if self.fresh.error is not None and not setup.overrides.get("enforce_eager"):
            self.fresh = self._eagerly()
            scorers = self._baselines
        with countdown.arm("baseline: engine, once more"):
            self.again = scorers.engine({}, repeat=1) if self.fresh.error is None else self.fresh
        with countdown.arm("baseline: reference"):
            self.q = scorers.reference(lambda sequence: sequence.trainer_version)
        scorers.require(self.fresh.decode, self.q)
        self.q_rollout = self.q
        if ages:
            with countdown.arm("baseline: reference, weights of the rollout"):
                self.q_rollout = scorers.reference(lambda sequence: sequence.rollout_version)
        self.r: Scores = tuple(sequence.rollout for sequence in sequences)
        self.t: Scores = tuple(sequence.trainer for sequence in sequences)
        if setup.trainer is not None:
            with countdown.arm("baseline: trainer"):
                self.t = self._trainer({}, scorers)

    def _eagerly(self) -> Fresh:
        """Return the baseline engine without compilation, which then applies to all arms, or the failed one if neither
        starts.
        """
        setup = replace(self._setup, overrides={**self._setup.overrides, "enforce_eager": True})
        scorers = Scorers(self._sequences, setup, self._run)
        with self._countdown.arm("baseline: engine, eagerly"):
            fresh = scorers.engine({})
        if fresh.error is not None:
            return self.fresh
        self._setup = setup
        scorers.problems += [f"{why}; started with enforce_eager" for why in self._baselines.problems]
        self._baselines = scorers
        return fresh

    def problems(self) -> list[str]:
        """Return the problems of the baselines, without those of arms."""
        return list(dict.fromkeys(self._baselines.problems))

    def layers(self, side: Literal["engine", "trainer"]) -> tuple[tuple[str, float], ...]:
        """Return the relative error of a side's hidden states by layer. The trainer's requires its function."""
        with self._countdown.arm(f"hidden states of the {side} by layer"):
            return self._baselines.layers(side)

    def unlike(self) -> tuple[str, ...]:
        """Return the settings of the recorded engine that the baseline lacks."""
        return self._setup.unlike(self._baselines.settings)

    def level(self) -> float | None:
        """Return the highest reported K3 of similar setups, or None without a started engine or a report."""
        engine, trainer = self._baselines.settings, self._setup.trainer_settings
        return band_of(SetupOfRun((engine,), trainer=trainer)) if engine else None

    def _scorers(self) -> Scorers:
        """Return the scorers of one arm, with separate problems."""
        return Scorers(self._sequences, self._setup, self._run)

    def benches(self, knobs: Sequence[Knob]) -> list[Bench]:
        """Return the sides with their possible changes."""
        return [self._engine_bench(knobs), self._state_bench(knobs), self._trainer_bench(knobs)]

    def _engine_bench(self, knobs: Sequence[Knob]) -> Bench:
        changes: list[Change] = []
        ruled_out: list[tuple[Knob, Verdict, str]] = []
        for knob in knobs:
            if knob.side != "engine":
                continue
            why = _safe_already(knob, self._baselines.settings, self._sequences)
            if why is not None:
                ruled_out.append((knob, "innocent", why))
            elif knob.hardware == "cuda" and not has_cuda():
                ruled_out.append((knob, "not testable here", "not supported here: needs a CUDA device"))
            else:
                changes.append(Change(knob, knob.safe))
        base = (self.fresh.decode, self.q_rollout)
        costs = (self.fresh.cost, self.again.cost)
        return Bench("engine", base, tuple(changes), self._measure_engine, tuple(ruled_out), costs=costs)

    def _measure_engine(self, changes: tuple[Change, ...]) -> Measured:
        overrides: dict[str, object] = {}
        environment: dict[str, str] = {}
        sampling: dict[str, object] = {}
        for change in changes:
            overrides.update(change.knob.engine)
            environment.update(change.knob.environment)
            sampling.update(change.knob.sampling)
        fresh = self._scorers().engine(overrides, sampling=sampling, environment=environment)
        return _measured(fresh.decode, self.q_rollout, fresh)

    def _state_bench(self, knobs: Sequence[Knob]) -> Bench:
        """Return the bench of possible engine states, which the other available checkpoints reproduce."""
        wanted = {knob.name: knob for knob in knobs if knob.side == "engine_state"}
        others = _earlier(self._setup.models, {sequence.rollout_version for sequence in self._sequences})
        changes = [
            Change(wanted[name], words, state, alone="model" in state)
            for name, words, state in self._states(others)
            if name in wanted
        ]
        note = "not supported here: needs the checkpoint of an earlier version; pass --model VERSION=PATH"
        spans = "not supported here: needs spans in the sample: where weights changed within a response"
        tried = {change.knob.name for change in changes}
        ruled_out: list[tuple[Knob, Verdict, str]] = [
            (knob, "not testable here", spans if others and name == "in_flight" else note)
            for name, knob in wanted.items()
            if name not in tried
        ]
        base = (self.r, self.fresh.decode)
        return Bench("engine_state", base, tuple(changes), self._measure_state, tuple(ruled_out), reproduces=True)

    def _states(self, others: Sequence[str]) -> Iterator[tuple[str, str, dict[str, object]]]:
        """Yield knob, description of its state, and the required model or arguments of `Scorers.replayed`."""
        for version in others:
            yield "weights", f"{version} loaded", {"model": version}
            yield "enable_prefix_caching", f"prompts kept from {version}", {"prefix": version}
            yield "enable_prefix_caching", f"shared prefixes kept from {version}", {"prefix": version, "shared": True}
        if any(sequence.spans and sequence.versions() <= set(self._setup.models) for sequence in self._sequences):
            yield "in_flight", "updates as recorded, cache kept", {"in_flight": True}

    def _measure_state(self, changes: tuple[Change, ...]) -> Measured:
        settings = {name: value for change in changes for name, value in change.value.items()}
        if "model" in settings:
            fresh = self._scorers().engine({}, model=settings["model"])
        else:
            fresh = self._scorers().replayed(**{"in_flight": False, **settings})
        return _measured(self.r, fresh.decode, fresh)

    def _trainer_bench(self, knobs: Sequence[Knob]) -> Bench:
        """Return the arms of the trainer. With its function, arms make settings safe. Without it, arms make the
        reference faulty to reproduce t.
        """
        changes: list[Change] = []
        ruled_out: list[tuple[Knob, Verdict, str]] = []
        for knob in knobs:
            if knob.side != "trainer":
                continue
            ((name, safe),) = knob.trainer.items()
            if self._setup.trainer is None:
                changes += [Change(knob, f"{value} gives t", {name: value}) for value in knob.faulty]
                if not knob.faulty:
                    ruled_out.append(
                        (
                            knob,
                            "not testable here",
                            "not supported here: pass --trainer module:function and its settings",
                        )
                    )
            elif self._setup.trainer_settings.get(name, safe) == safe:
                ruled_out.append((knob, "innocent", "safe already"))
            else:
                changes.append(Change(knob, knob.safe, {name: safe}))
        reproduces = self._setup.trainer is None
        base = (self.q, self.t)  # from the reference: the other direction explodes where the trainer is far too low
        return Bench("trainer", base, tuple(changes), self._measure_trainer, tuple(ruled_out), reproduces)

    def _measure_trainer(self, changes: tuple[Change, ...]) -> Measured:
        settings: dict[str, object] = {}
        for change in changes:
            settings.update(change.value)
        scorers = self._scorers()
        if self._setup.trainer is None:
            values = scorers.reference(lambda sequence: sequence.trainer_version, **settings)
            pair = (values, self.t)
        else:
            values = self._trainer(settings, scorers)
            pair = (self.q, values)
        if all(value is None for value in values):
            return Measured(error="; ".join(scorers.problems) or "no answer")
        return Measured(*pair)

    def _trainer(self, settings: Mapping[str, Any], scorers: Scorers) -> Scores:
        setup = self._setup
        function = setup.trainer or REFERENCE
        return scorers.forward(
            function, {**setup.trainer_settings, **settings}, lambda sequence: sequence.trainer_version
        )


def _measured(a: Scores, b: Scores, fresh: Fresh) -> Measured:
    if all(value is None for value in fresh.decode):
        return Measured(error=fresh.error or "no checkpoint for any sequence")
    return Measured(a, b, fresh.cost)


def _safe_already(knob: Knob, settings: Mapping[str, Any], sequences: Sequence[TokenSequence]) -> str | None:
    """Return the reason why a knob needs no arm if the engine has its safe value, or None for another or unknown
    value.
    """
    for name in knob.sampling:
        used = {sequence.sampling.get(name, NEUTRAL[name]) for sequence in sequences}
        return f"already {NEUTRAL[name]:g}" if used == {NEUTRAL[name]} else None
    if knob.name == "head_dtype":
        return "already float32" if settings.get("head_dtype") == "float32" else None
    for name, safe in knob.engine.items():
        if name in settings and settings[name] == safe:
            return f"already {safe}"
    return None


def _earlier(models: Mapping[str, Path], stated: set[str | None]) -> list[str]:
    """Return the possible earlier versions of the engine, reduced to the oldest and the newest.

    >>> _earlier({str(number): Path() for number in range(12)}, {"9", "10"})
    ['0', '8']
    """
    others = [version for version in models if version and version not in stated]
    if all(str(version).isdigit() for version in (*others, *stated)):
        last = max((int(str(version)) for version in stated), default=0)
        others = sorted((version for version in others if int(version) < last), key=int)
    return others if len(others) <= 2 else [others[0], others[-1]]  # noqa: PLR2004 - both ends
