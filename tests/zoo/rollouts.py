"""Rollouts of a made-up run, drawn token by token: contexts, the engine's and the trainer's probabilities, and what was sampled.

Every context has four tokens with probabilities as peaked as a language model's. The engine samples from its own softmax; noise of
either side is noise on logits, so E[ρ] = 1 holds exactly and certain tokens vary less, as on real engines. Faults act on logits,
on rows, or on what is reported.

Dimensions: ``S`` sequences, ``L`` tokens of a sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from diagnosis_simulation import log_softmax
from run_columns import Columns, known_by

from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.records import Weights
from logprobe.monitor.judging.setup import Setup

Array = np.ndarray
TOKENS = 4
KEPT = 30_000  # raw tokens that a diagnosis gets to see


@dataclass(frozen=True)
class Noise:
    """How two computations of the same weights differ; fitted to recordings by `zoo.fit`.

    Attributes:
        level: K3 of it.
        tail: σ of the logarithm of each token's own scale; 0 is normal, experts have about 1.
        rerouted: fraction of tokens with ten times the scale (other experts).
        length: exponent of (1 + place) in the scale.
        peaked: exponent of 1 − p in the scale: beyond what the softmax does by itself.
        unrest: σ of log K3 from step to step.
        memory: of that (AR(1)).
    """

    level: float = 1e-3
    tail: float = 0.0
    rerouted: float = 0.0
    length: float = 0.0
    peaked: float = 0.0
    unrest: float = 0.1
    memory: float = 0.5


@dataclass(frozen=True)
class Trend:
    """How K3 goes: from `onset` on policies drift apart, and K3 above the noise grows as level · (2^(k/doubling) − 1)."""

    onset: int | None = None
    doubling: float = 40.0


@dataclass(frozen=True)
class Lag:
    """Weight lag: each sequence's is drawn from `versions`; from `onset` on one more every `every` steps. Each version adds `adds` to K3."""

    versions: tuple[int, ...] = (0,)
    adds: float = 0.0
    onset: int | None = None
    every: int = 10
    known: bool = True
    restarts: int = (
        0  # steps between restarts of the learning rate, from which what a version adds falls to a twentieth; 0: none
    )


@dataclass(frozen=True)
class Fault:
    """What is wrong with the engine: `kind` with K3 `size` among the tokens concerned, from step `since` on."""

    kind: str = ""
    size: float = 0.0
    since: int = 0
    power: float = 1.0  # of growth with the number of updates missed
    every: int = 10  # updates of which one is missed, of "skipped_updates"
    told: bool = False  # the label is that of the weights, not that of the update


@dataclass(frozen=True)
class Tasks:
    """A curriculum: at one of `every` steps the logit of the likeliest token is lower by `harder`, and noise `noisier` times as large; 0: none."""

    every: int = 0
    harder: float = 0.0
    noisier: float = 1.0
    harder_at_second: float = 0.0  # the same of all prompts that the second replica is given


@dataclass(frozen=True)
class Run:
    """One made-up run."""

    seed: int = 0
    steps: int = 400
    prompts: int = 6
    answers: int = 4
    length: int = 16
    noise: Noise = Noise()
    trend: Trend = Trend()
    lag: Lag = Lag()
    fault: Fault = Fault()
    tasks: Tasks = Tasks()
    setup: Setup = field(default_factory=Setup)
    weights: Weights = field(default_factory=Weights)
    cached: bool = True  # of the answers to a prompt, all but the first find it in the cache
    replicas: int = 2
    raw: bool = True  # raw tokens are kept
    spread: float = 2.5  # of the logit of the likeliest token's probability

    @property
    def drifts(self) -> int | None:
        """Step from which policies drift apart."""
        return self.trend.onset

    def rollouts(self) -> Rollouts:
        """Draws it."""
        return rollouts(self)


@dataclass(frozen=True)
class Rollouts:
    """What was sampled [S, L], and what is known of each sequence [S]."""

    run: Run
    step: Array
    token: Array
    r: Array
    t: Array
    lag: Array
    cached: Array
    in_flight: Array
    replica: Array

    def frame(self, last: int | None = None) -> Frame:
        """What a diagnosis sees when `last` is the newest step."""
        return _frame(self if last is None else self._until(last))

    def _until(self, last: int) -> Rollouts:
        keep = self.step <= last
        names = ("step", "token", "r", "t", "lag", "cached", "in_flight", "replica")
        return replace(self, **{name: getattr(self, name)[keep] for name in names})


def rollouts(run: Run) -> Rollouts:
    """Draws a run."""
    rng = np.random.default_rng(run.seed)
    size = run.steps * run.prompts * run.answers
    step = np.repeat(np.arange(run.steps), run.prompts * run.answers)
    lag = _lags(run, rng, step)
    cached = (np.arange(size) % run.answers > 0) & run.cached
    in_flight = (rng.random(size) < 0.25) & (run.fault.kind == "inflight_stale_kv") & (step > 0)
    replica = _replicas(run, size)
    z = _logits(run, rng, step)
    variance = _variance(run, rng, step, lag, cached, in_flight, replica, z)
    trainer = z + (rng.standard_normal(z.shape, np.float32) * np.sqrt(variance)[..., None]).astype(np.float32)
    engine, reported, trainer = _semantic(run, z, trainer, step)
    token = (engine + rng.gumbel(size=z.shape)).argmax(-1)
    at = np.ogrid[: z.shape[0], : z.shape[1]]
    r, t = reported[at[0], at[1], token], trainer[at[0], at[1], token]
    return Rollouts(run, step, token, r.astype(np.float32), t.astype(np.float32), lag, cached, in_flight, replica)


def _replicas(run: Run, size: int) -> Array:
    return (np.arange(size) // run.answers) % max(run.replicas, 1)


def _logits(run: Run, rng: np.random.Generator, step: Array) -> Array:
    """Log-probabilities of each context [S, L, TOKENS]; answers to one prompt start from the same one."""
    size = len(step)
    first = np.arange(size) // run.answers * run.answers
    z = (rng.normal(0, 1.5, (size, run.length, TOKENS))).astype(np.float32)
    z[..., 0] += (
        rng.normal(2.5, run.spread, (size, run.length)) - (run.tasks.harder * _one_of(step, run.tasks.every))[:, None]
    )
    z[..., 0] -= (run.tasks.harder_at_second * (_replicas(run, size) == 1))[:, None]
    z[:, 0] = z[first, 0]
    return log_softmax(z)


def _lags(run: Run, rng: np.random.Generator, step: Array) -> Array:
    lag = rng.choice(run.lag.versions, len(step))
    if run.lag.onset is not None:
        lag = lag + np.maximum(step - run.lag.onset + run.lag.every - 1, 0) // run.lag.every
    if run.fault.kind == "skipped_updates" and run.fault.told:
        lag = lag + _skipped(run, step)
    return np.minimum(lag, step)


def _one_of(step: Array, every: int) -> Array:
    return (step % every == every - 1) if every else np.zeros(len(step), bool)


def _skipped(run: Run, step: Array) -> Array:
    return (step >= run.fault.since) & _one_of(step, run.fault.every)


def _variance(run: Run, rng: np.random.Generator, step, lag, cached, in_flight, replica, z) -> Array:
    """Variance of the noise on each logit [S, L]: that of the numerics, of lag, of drift and of an engine's fault."""
    noise = run.noise
    sure = 1 - np.exp(z.max(-1))
    scale = np.maximum(sure, 1e-6) ** noise.peaked * (1 + np.arange(run.length)) ** noise.length
    scale = scale * np.exp(noise.tail * rng.standard_normal(scale.shape))
    scale = np.where(rng.random(scale.shape) < noise.rerouted, 10 * scale, scale) ** 2
    numerics = noise.level * np.exp(_unrest(run, rng))[step][:, None] * scale / _k3_per_variance(rng, z, scale)
    plain = 1 / _k3_per_variance(rng, z, np.ones_like(scale))
    numerics *= np.where(_one_of(step, run.tasks.every), run.tasks.noisier, 1.0)[:, None]
    extra = (
        run.lag.adds * _rate(run.lag, step) * lag + _drift(run, step) + _faulty(run, step, cached, in_flight, replica)
    )
    return numerics + extra[:, None] * plain


def _k3_per_variance(rng: np.random.Generator, z: Array, variance: Array) -> float:
    """K3 that noise of (small) variance makes, over that variance's scale: half the variance of d under the softmax."""
    p = np.exp(z)
    return float(np.mean((p * (1 - p)).sum(-1) / 2 * variance))


def _unrest(run: Run, rng: np.random.Generator) -> Array:
    shocks = rng.standard_normal(run.steps) * run.noise.unrest
    level = np.zeros(run.steps)
    for step in range(1, run.steps):
        level[step] = run.noise.memory * level[step - 1] + np.sqrt(1 - run.noise.memory**2) * shocks[step]
    return level


def _rate(lag: Lag, step: Array) -> Array:
    """Of learning: falls along a cosine from one restart to the next."""
    return (
        0.05 + 0.475 * (1 + np.cos(np.pi * (step % lag.restarts) / lag.restarts))
        if lag.restarts
        else np.ones(len(step))
    )


def _drift(run: Run, step: Array) -> Array:
    if run.trend.onset is None:
        return np.zeros(len(step))
    return run.noise.level * (2 ** (np.maximum(step - run.trend.onset, 0) / run.trend.doubling) - 1)


def _faulty(run: Run, step, cached, in_flight, replica) -> Array:
    fault = run.fault
    since = step >= fault.since
    missed = np.maximum(step - fault.since + 1, 0) ** fault.power
    return fault.size * {
        "stale_prefix_cache": since * cached,
        "inflight_stale_kv": since * in_flight,
        "replica_divergence": since * (replica == 1),
        "missed_weight_sync": missed,
        "partial_weight_sync": missed,
        "skipped_updates": _skipped(run, step).astype(float),
        "quantized_rollout": since.astype(float),
    }.get(fault.kind, np.zeros(len(step)))


def _semantic(run: Run, engine: Array, trainer: Array, step: Array) -> tuple[Array, Array, Array]:
    """Log-probs that are sampled from, reported, and the trainer's [S, L, TOKENS]."""
    kind, size = run.fault.kind, run.fault.size
    late = (step >= run.fault.since)[:, None, None]
    z, t = log_softmax(engine), log_softmax(trainer)
    if kind == "offset":
        return z, np.minimum(z - np.where(late, size, 0.0), 0.0), t
    if kind == "raw_logprobs":
        hot, trained = log_softmax(engine / size), log_softmax(trainer / size)
        return np.where(late, hot, z), z, np.where(late, trained, t)
    if kind == "temperature_mismatch":
        hot = np.where(late, log_softmax(engine / size), z)
        return hot, hot, t
    if kind == "truncated_support":
        cut = np.where(late & (engine < np.log(size)), -1e9, engine)
        return log_softmax(cut), log_softmax(cut), t
    return z, z, t


def _frame(rolled: Rollouts) -> Frame:
    """The raw tokens of some prompts of every step are kept."""
    run, (size, length) = rolled.run, rolled.r.shape
    older = rolled.in_flight[:, None] & (np.arange(length) < length // 2)
    prompt = np.arange(size) // run.answers
    columns = Columns(
        step=rolled.step,
        token=rolled.token,
        r=rolled.r,
        t=rolled.t,
        mask=np.ones(rolled.r.shape, bool),
        group=prompt,
        version=(rolled.step - rolled.lag)[:, None] - older if run.lag.known else np.full(rolled.r.shape, np.nan),
        trainer_version=rolled.step,
        requests={
            "cached": rolled.cached,
            "in_flight": rolled.in_flight,
            "replica": np.array([f"replica-{code}" for code in rolled.replica.tolist()], object),
        },
    )
    parts = max(1, round(rolled.r.size / KEPT))
    return columns.frame(
        setup=run.setup,
        kept=run.raw and prompt % parts == 0,
        weights=known_by(run.weights, int(rolled.step.max())),
    )
