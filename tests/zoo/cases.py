"""The zoo: ordinary runs, growth, lag and engine faults at each level, by kind of model. Every run is a function of its seed.

`DEVELOPMENT` is what rules were written and fixed with: the set of the fit, and the ranges of earlier judgements. `HELD_BACK` is what the
confusion table is made of; nothing is looked at or fixed with it. The two share no seeds, no range of a parameter and no shape of a batch:
each set draws its own from ranges around what `zoo.fit` measured on recordings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, Literal

import numpy as np
from zoo.rollouts import Fault, Lag, Noise, Run, Tasks, Trend

from logprobe.monitor.judging.records import WeightRecord, Weights
from logprobe.monitor.judging.setup import Setup

Wanted = Literal["healthy", "enable", "refuse"]
RECORDED: Final = json.loads((Path(__file__).parent / "recorded_noise.json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Kind:
    """A kind of model and its dtypes. `levels`: K3 of its numerics, geometric range; `adds`: what a fault may be measured against."""

    name: str
    engine: str
    trainer: str | None
    architecture: str
    levels: tuple[float, float]
    recorded: str
    heavier: float = 0.0  # tail on top of the recorded one: large mixtures of experts have heavier ones than a toy


KINDS: Final = (
    Kind("dense, bf16 / float32", "bfloat16", "float32", "Qwen3ForCausalLM", (2e-4, 3e-3), "low_precision"),
    Kind("dense, bf16 / bf16", "bfloat16", "bfloat16", "Qwen3ForCausalLM", (1e-4, 2e-3), "batch_variance"),
    Kind("experts, bf16 / bf16", "bfloat16", "bfloat16", "Qwen3MoeForCausalLM", (1e-3, 5e-2), "moe_routing", 0.6),
    Kind("unknown set-up", "", None, "", (2e-4, 2e-2), "low_precision"),
)


@dataclass(frozen=True)
class Set:
    """Where a run's parameters are drawn from.

    Attributes:
        name: of the set.
        first_seed: of its first run.
        spreads: times the recorded width of scales.
        unrest: σ of log K3 from step to step.
        memory: of that, AR(1).
        doublings: of K3, in steps.
        peaks: σ of the likeliest token's logit: how peaked the policy is.
        onsets: step at which growth or a late fault begins; the last one excluded.
        every: steps from one more version of a growing lag to the next; the last one excluded.
        prompts: of a step.
        answers: to each.
        length: tokens of each.
        replicas: of the engine.
    """

    name: str
    first_seed: int
    spreads: tuple[float, float]
    unrest: tuple[float, float]
    memory: tuple[float, float]
    doublings: tuple[float, float]
    peaks: tuple[float, float]
    onsets: tuple[int, int] = (230, 270)
    every: tuple[int, int] = (8, 13)
    prompts: int = 6
    answers: int = 4
    length: int = 16
    replicas: int = 2


FIT: Final = Set("fit", 1_000, (0.8, 1.0), (0.05, 0.15), (0.0, 0.5), (25, 50), (2.0, 2.5))
SEEN: Final = Set("seen", 3_500_000, (1.05, 1.4), (0.16, 0.3), (0.55, 0.85), (15, 24.5), (2.6, 3.2))
SEEN_SLOW: Final = Set("seen, slow", 3_700_000, (0.5, 0.75), (0.16, 0.25), (0.55, 0.7), (51, 70), (1.5, 1.95))
DEVELOPMENT: Final = (FIT, SEEN, SEEN_SLOW)
RESTLESS: Final = Set(
    "held back, restless", 9_100_000, (1.42, 1.6), (0.31, 0.34), (0.86, 0.9), (71, 95), (3.25, 3.6), onsets=(271, 300), every=(13, 16),
    prompts=5, answers=5, length=20, replicas=3,
)  # fmt: skip
CALM: Final = Set(
    "held back, calm", 9_600_000, (0.3, 0.48), (0.02, 0.045), (0.51, 0.54), (10, 14.5), (1.1, 1.45), onsets=(210, 229), every=(5, 8),
    prompts=8, answers=3, length=14, replicas=4,
)  # fmt: skip
HELD_BACK: Final = (RESTLESS, CALM)


@dataclass(frozen=True)
class Case:
    """One run of the zoo, and how it should be judged."""

    name: str
    family: str
    kind: str
    wanted: Wanted
    run: Run
    cause: str | None = None

    @property
    def onset(self) -> int | None:
        """Where growth or the fault begins; None: there is none, or it was always there."""
        begins = [onset for onset in (self.run.drifts, self.run.lag.onset) if onset is not None]
        return begins[0] if begins else self.run.fault.since or None


def cases(of: Set, each: int, healthy: int | None = None) -> Iterator[Case]:
    """`each` runs of every family and kind, of healthy ones `healthy`."""
    everything = sorted(product(KINDS, FAMILIES), key=lambda pair: pair[1] in ADDED)  # the seeds of the others stay
    for place, (kind, family) in enumerate(everything):
        count = healthy if healthy is not None and family in HEALTHY_FAMILIES else each
        for number in range(count):
            yield FAMILIES[family](of, kind, family, of.first_seed + 1000 * place + number)


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([seed, 17])


def _run(of: Set, kind: Kind, rng: np.random.Generator, seed: int, **more: object) -> Run:
    fitted = RECORDED[kind.recorded]
    spread = rng.uniform(*of.spreads)
    noise = Noise(
        level=float(np.exp(rng.uniform(*np.log(kind.levels)))),
        tail=(fitted["tail"] + kind.heavier) * spread,
        rerouted=fitted["rerouted"] * spread,
        length=fitted["length"] * spread + float(rng.choice([0.0, 0.1, 0.25])),
        peaked=fitted["peaked"] * spread,
        unrest=rng.uniform(*of.unrest),
        memory=rng.uniform(*of.memory),
    )
    return Run(
        seed=seed,
        noise=noise,
        setup=_setup(kind),
        spread=rng.uniform(*of.peaks),
        raw=bool(rng.random() < 0.6),
        prompts=of.prompts,
        answers=of.answers,
        length=of.length,
        replicas=of.replicas,
        **more,
    )


def _setup(kind: Kind) -> Setup:
    if not kind.engine:
        return Setup()
    sampling = {"a": {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}}
    engine = {"dtype": kind.engine, "architectures": [kind.architecture], "logprobs_mode": "processed_logprobs"}
    return Setup(engines=(engine,), samplings=sampling, trainer={"dtype": kind.trainer})


def _healthy(of: Set, kind: Kind, family: str, seed: int) -> Case:
    run = _run(of, kind, _rng(seed), seed)
    return Case(f"{family}-{seed}", family, kind.name, "healthy", run)


def _asynchronous(of: Set, kind: Kind, family: str, seed: int) -> Case:
    rng = _rng(seed)
    run = _run(of, kind, rng, seed)
    lag = Lag((0, 1, 2, 3), run.noise.level * rng.uniform(0.1, 0.6), known=bool(rng.random() < 0.8))
    return Case(f"{family}-{seed}", family, kind.name, "healthy", replace(run, lag=lag))


def _drift(of: Set, kind: Kind, family: str, seed: int) -> Case:
    rng = _rng(seed)
    run = _run(of, kind, rng, seed, trend=_trend(of, rng))
    return Case(f"{family}-{seed}", family, kind.name, "enable", _to_the_end(run), "late_growth")


def _trend(of: Set, rng: np.random.Generator) -> Trend:
    return Trend(int(rng.integers(*of.onsets)), rng.uniform(*of.doublings))


def _to_the_end(run: Run) -> Run:
    """Until K3 is ten times what it was."""
    trend = run.trend
    return replace(run, steps=int(trend.onset + 3.4 * trend.doubling) + 20)


def _drift_lagging(of: Set, kind: Kind, family: str, seed: int) -> Case:
    rng = _rng(seed)
    run = _run(of, kind, rng, seed, trend=_trend(of, rng))
    lag = Lag((0, 1), run.noise.level * rng.uniform(0.1, 0.5), known=bool(rng.random() < 0.8))
    return Case(f"{family}-{seed}", family, kind.name, "enable", replace(_to_the_end(run), lag=lag), "late_growth")


def _lag_grows(of: Set, kind: Kind, family: str, seed: int) -> Case:
    rng = _rng(seed)
    run = _run(of, kind, rng, seed)
    onset = int(rng.integers(*of.onsets))
    lag = Lag((0, 1), run.noise.level * rng.uniform(0.4, 0.8), onset=onset, every=int(rng.integers(*of.every)))
    return Case(f"{family}-{seed}", family, kind.name, "enable", replace(run, lag=lag, steps=onset + 160), "staleness")


def _growth_beside(of: Set, kind: Kind, family: str, seed: int) -> Case:
    """Growth, and an engine fault that makes less than a tenth of today's gap."""
    rng = _rng(seed)
    run = _to_the_end(_run(of, kind, rng, seed, trend=_trend(of, rng)))
    name = str(rng.choice(["stale_prefix_cache", "replica_divergence", "inflight_stale_kv"]))
    fault = Fault(name, run.noise.level * rng.uniform(0.2, 0.6))
    return Case(f"{family}-{seed}", family, kind.name, "enable", replace(run, fault=fault), "late_growth")


def _fault(cause: str) -> object:
    """An engine fault that makes 35 to 95 % of the gap of today, since a step or all along."""

    def make(of: Set, kind: Kind, family: str, seed: int) -> Case:
        rng = _rng(seed)
        run = _run(of, kind, rng, seed)
        share, concerned = rng.uniform(0.35, 0.95), _concerned(cause, run)
        size = run.noise.level * share / (1 - share) / concerned
        since = _since(of, rng)
        fault = Fault(cause, size, since)
        weights = _kept(run.steps) if cause == "inflight_stale_kv" else Weights()
        return Case(f"{family}-{seed}", family, kind.name, "refuse", replace(run, fault=fault, weights=weights), cause)

    return make


def _kept(steps: int) -> Weights:
    """Updates that keep what requests in flight have computed, as the plugin records them."""
    common = {
        "source": "engine",
        "replica": None,
        "loaded": True,
        "cache_cleared": False,
        "tensors": None,
        "checksum": None,
    }
    return Weights(tuple(WeightRecord(str(v), v, pause_mode="keep", **common) for v in range(1, steps)))


def _concerned(cause: str, run: Run) -> float:
    """Share of the sequences that a fault concerns: all answers but the first, one replica, a quarter."""
    return {"stale_prefix_cache": 1 - 1 / run.answers, "replica_divergence": 1 / run.replicas}.get(cause, 0.25)


def _since(of: Set, rng: np.random.Generator) -> int:
    """From the first step on, or late."""
    return int(rng.choice([0, rng.integers(*of.onsets)]))


def _curriculum(of: Set, kind: Kind, family: str, seed: int) -> Case:
    """One step in every few is of harder tasks, whose tokens are less certain."""
    rng = _rng(seed)
    tasks = Tasks(int(rng.choice([2, 3, 5, 10])), rng.uniform(1.0, 2.0), rng.uniform(1.0, 3.0))
    return Case(f"{family}-{seed}", family, kind.name, "healthy", replace(_run(of, kind, rng, seed), tasks=tasks))


def _restarts(of: Set, kind: Kind, family: str, seed: int) -> Case:
    """The learning rate falls and is set back every few steps, and so does what a version of lag adds."""
    rng = _rng(seed)
    run = _run(of, kind, rng, seed)
    adds = run.noise.level * rng.uniform(0.5, 2.0)
    lag = Lag((0, 1), adds, known=bool(rng.random() < 0.7), restarts=int(rng.choice([5, 10, 20])))
    return Case(f"{family}-{seed}", family, kind.name, "healthy", replace(run, lag=lag))


def _now_and_then(of: Set, kind: Kind, family: str, seed: int) -> Case:
    """One update in every few is missed, and the engine has its label without a load: 35 to 95 % of the gap."""
    rng = _rng(seed)
    run = _run(of, kind, rng, seed)
    every, share, since = int(rng.choice([3, 5, 10])), rng.uniform(0.35, 0.95), int(rng.choice([0, 100]))
    fault = Fault("skipped_updates", run.noise.level * share / (1 - share) * every, since, every=every)
    common = {
        "source": "engine",
        "replica": None,
        "pause_mode": None,
        "cache_cleared": True,
        "tensors": None,
        "checksum": None,
    }
    records = tuple(
        WeightRecord(str(v), v, loaded=v < since or v % every != every - 1, **common) for v in range(1, run.steps)
    )
    run = replace(run, fault=fault, weights=Weights(records))
    return Case(f"{family}-{seed}", family, kind.name, "refuse", run, "missed_weight_sync")


def _missed(of: Set, kind: Kind, family: str, seed: int) -> Case:
    """Updates that stop arriving: each adds a tenth to twice the noise, with a power of 1 to 2."""
    rng = _rng(seed)
    run = _run(of, kind, rng, seed)
    size = run.noise.level * float(np.exp(rng.uniform(*np.log([0.1, 2.0]))))
    fault = Fault("missed_weight_sync", size, int(rng.integers(*of.onsets)), power=rng.uniform(1, 2))
    run = replace(run, fault=fault, steps=fault.since + 80)
    return Case(f"{family}-{seed}", family, kind.name, "refuse", run, "missed_weight_sync")


def _partial(of: Set, kind: Kind, family: str, seed: int) -> Case:
    missed = _missed(of, kind, family, seed)
    since = missed.run.fault.since
    records = tuple(
        WeightRecord(str(v), v, "engine", None, loaded=True, pause_mode=None, cache_cleared=True, tensors=10 if v < since else 7, checksum=None)
        for v in range(1, missed.run.steps)
    )  # fmt: skip
    fault = Fault("partial_weight_sync", missed.run.fault.size, since, missed.run.fault.power)
    run = replace(missed.run, fault=fault, weights=Weights(records))
    return Case(missed.name, family, kind.name, "refuse", run, "partial_weight_sync")


def _semantic(cause: str, low: float, high: float) -> object:
    def make(of: Set, kind: Kind, family: str, seed: int) -> Case:
        rng = _rng(seed)
        run = _run(of, kind, rng, seed)
        size = rng.uniform(low, high)
        if cause == "offset":  # 5 to 90 % of the gap
            share = rng.uniform(0.05, 0.9)
            size = float(np.sqrt(2 * run.noise.level * share / (1 - share)))
        fault = Fault(cause, size, _since(of, rng))
        run = replace(run, fault=fault, setup=_sampled_as(run.setup, cause, size, rng))
        return Case(f"{family}-{seed}", family, kind.name, "refuse", run, _NAMES.get(cause, cause))

    return make


_NAMES: Final = {"offset": "miscalibrated_logprobs"}


def _sampled_as(setup: Setup, cause: str, size: float, rng: np.random.Generator) -> Setup:
    """What the engine says of its sampling: its temperature; of a truncation all or, in half of the runs, nothing."""
    if not setup.engines:
        return setup
    params = (setup.samplings or {})["a"]
    if cause == "truncated_support":
        samplings = {"a": {**params, "min_p": size}} if rng.random() < 0.5 else None
        return Setup(engines=setup.engines, samplings=samplings, trainer=setup.trainer)
    if cause not in {"raw_logprobs", "temperature_mismatch"}:
        return setup
    silent = {name: value for name, value in setup.engines[0].items() if name != "logprobs_mode"}
    return Setup(engines=(silent,), samplings={"a": {**params, "temperature": size}}, trainer=setup.trainer)


FAMILIES: Final = {
    "healthy": _healthy,
    "healthy, asynchronous": _asynchronous,
    "policies drift apart": _drift,
    "policies drift apart, asynchronous": _drift_lagging,
    "lag grows": _lag_grows,
    "growth beside a small fault": _growth_beside,
    "stale prefix cache": _fault("stale_prefix_cache"),
    "requests in flight": _fault("inflight_stale_kv"),
    "replica gone astray": _fault("replica_divergence"),
    "missed updates": _missed,
    "partial updates": _partial,
    "offset": _semantic("offset", 0, 0),
    "raw log-probs": _semantic("raw_logprobs", 0.6, 0.9),
    "forgotten temperature": _semantic("temperature_mismatch", 0.6, 0.9),
    "truncation": _semantic("truncated_support", 0.02, 0.1),
    "healthy, curriculum": _curriculum,
    "healthy, learning-rate restarts": _restarts,
    "updates missed now and then": _now_and_then,
}
ADDED: Final = ("healthy, curriculum", "healthy, learning-rate restarts", "updates missed now and then")
HEALTHY_FAMILIES: Final = ("healthy", "healthy, asynchronous", *ADDED[:2])
SEMANTIC_FAMILIES: Final = ("offset", "raw log-probs", "forgotten temperature", "truncation")
