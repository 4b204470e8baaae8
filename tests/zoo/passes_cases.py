"""Cases of the zoo whose log-probs come from real forward passes (`zoo.passes`), and what should follow of each.

What should follow is derived from the pages, not from the rules. `DEVELOPMENT` and `HELD_BACK` share no family: a rule that was fixed
with the one has never seen what is wrong in the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from zoo.cases import Case
from zoo.passes import Drift, Fault, Lag, Policy, Run

from logprobe.monitor.judging.records import WeightRecord, Weights
from logprobe.monitor.judging.setup import Setup

Made = tuple[str, Run, str | None]  # what should follow, of which run, for which cause
Make = Callable[[np.random.Generator, Run], Made]
_ARCHITECTURE: Final = {0: "Qwen3ForCausalLM", 4: "Qwen3MoeForCausalLM"}


@dataclass(frozen=True)
class Set:
    """Families that belong together. `shape`: prompts, answers, vocabulary."""

    name: str
    first_seed: int
    shape: tuple[int, int, int]
    families: dict[str, Make]


def cases(of: Set, each: int, healthy: int | None = None) -> Iterator[Case]:
    """`each` runs of every family, of healthy ones `healthy`."""
    for place, family in enumerate(of.families):
        count = healthy if healthy is not None and family.startswith("healthy") else each
        for number in range(count):
            yield case(of, family, of.first_seed + 100 * place + number)


def case(of: Set, family: str, seed: int) -> Case:
    """One run of a family."""
    rng = np.random.default_rng([seed, 23])
    prompts, answers, vocabulary = of.shape
    plain = Run(seed=seed, prompts=prompts, answers=answers, vocabulary=vocabulary, raw=bool(rng.random() < 0.75))
    wanted, run, cause = of.families[family](rng, plain)
    if not run.setup.engines and not family.endswith("nothing recorded"):
        run = replace(run, setup=recorded(run))
    return Case(f"{family}-{seed}", family, f"{run.engine} / {run.trainer}", wanted, run, cause)


def recorded(run: Run, *, temperature: float | None = None, **trainer: Any) -> Setup:
    """What both sides' configuration says when all of it is recorded. `temperature`: of the engine, if not the one of both."""
    quantized = run.engine == "fp8"
    engine = {
        "dtype": "bfloat16" if quantized else run.engine,
        "architectures": [_ARCHITECTURE[run.policy.experts]],
        "logprobs_mode": "processed_logprobs",
    } | ({"quantization": "fp8"} if quantized else {})
    params = {"temperature": temperature or run.temperature, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    said = {"dtype": run.trainer} | ({"temperature": run.temperature} if run.temperature != 1 else {}) | trainer
    return Setup(engines=(engine,), samplings={"a": params}, trainer=said)


def silent(setup: Setup) -> Setup:
    """The same without sampling params and what log-probs mean: an engine of which only its model is known."""
    engine = {name: value for name, value in setup.engines[0].items() if name != "logprobs_mode"}
    return Setup(engines=(engine,), samplings=None, trainer=setup.trainer)


def _plain(engine: str, trainer: str, **policy: Any) -> Make:
    def make(rng: np.random.Generator, run: Run) -> Made:
        moves = Policy(**({"pace": _pace(rng)} | policy))
        return "healthy", replace(run, engine=engine, trainer=trainer, policy=moves), None

    return make


def _pace(rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(*np.log([5e-4, 2e-3]))))


def _lagging(*, known: bool) -> Make:
    def make(rng: np.random.Generator, run: Run) -> Made:
        versions = tuple(range(5)) if rng.random() < 0.5 else (1, 2)
        return "healthy", replace(run, lag=Lag(versions, known=known), policy=Policy(pace=_pace(rng) / 2)), None

    return make


def _cooler(rng: np.random.Generator, run: Run) -> Made:
    return "healthy", replace(run, temperature=0.8, policy=Policy(pace=_pace(rng))), None


def _small(rng: np.random.Generator, run: Run) -> Made:
    return "healthy", replace(run, prompts=4, answers=2, policy=Policy(pace=_pace(rng))), None


def _lag_grows(rng: np.random.Generator, run: Run) -> Made:
    lag = Lag((0, 1), onset=int(rng.integers(220, 260)), every=int(rng.integers(8, 14)))
    return "enable", replace(run, lag=lag, policy=Policy(pace=2e-3)), "staleness"


def _lag_grows_unrecorded(rng: np.random.Generator, run: Run) -> Made:
    lag = Lag((0, 1, 2), onset=int(rng.integers(270, 300)), every=int(rng.integers(4, 7)))
    return "enable", replace(run, lag=lag, policy=Policy(pace=1.5e-3)), "staleness"


def _departs(lag: tuple[int, ...], doublings: tuple[float, float], onsets: tuple[int, int]) -> Make:
    def make(rng: np.random.Generator, run: Run) -> Made:
        drift = Drift(int(rng.integers(*onsets)), rng.uniform(*doublings), 8e-3)
        return "enable", replace(run, lag=Lag(lag), drift=drift, policy=Policy(pace=5e-4)), "late_growth"

    return make


def _peaked(rng: np.random.Generator, run: Run) -> Made:
    """Precision error of a policy that gets peaked within 150 steps; whether anything follows depends on how far K3 gets."""
    moves = Policy(pace=5e-4, entropy=(0.6, 2.5), since=int(rng.integers(220, 250)))
    return "no fault", replace(run, policy=moves), None


def _fault(
    kind: str, *sizes: float, cause: str | None, since: tuple[int, ...] = (0, 230), pace: float = 1e-3, **more: Any
) -> Make:
    """A fault of a size among `sizes` (a range), from one of the steps `since` on; `more` goes to the run."""

    def make(rng: np.random.Generator, run: Run) -> Made:
        size = rng.uniform(min(sizes), max(sizes))
        fault = Fault(kind, size, int(rng.choice(since)), told=bool(rng.random() < 0.5))
        run = replace(run, fault=fault, policy=Policy(pace=pace), **more)
        return "refuse", replace(run, setup=_said(run)), cause

    return make


def _said(run: Run) -> Setup:
    """What is recorded beside a fault: where it is told, the engine's temperature or truncation, or the trainer's dropout."""
    kind, size, plain = run.fault.kind, run.fault.size, recorded(run)
    if kind == "dropout":
        return recorded(run, attention_dropout=size) if run.fault.told else plain
    if kind == "temperature":
        return recorded(run, temperature=size) if run.fault.told and not run.fault.since else silent(plain)
    if kind in {"top_p", "top_k"}:
        params = {"a": {**plain.samplings["a"], kind: size if kind == "top_p" else int(size)}}
        return Setup(plain.engines, params, plain.trainer) if run.fault.told and not run.fault.since else silent(plain)
    return plain


def _partial(rng: np.random.Generator, run: Run) -> Made:
    wanted, run, _ = _fault("partial_update", 0, 0, cause=None, since=(215, 250), pace=2e-3)(rng, run)
    run = replace(run, fault=replace(run.fault, size=float(rng.random() < 0.5)))
    if not run.fault.told:
        return wanted, run, None
    complete = lambda v: v < run.fault.since
    return (
        wanted,
        replace(run, weights=_updates(run, tensors=lambda v: 10 if complete(v) else 7)),
        "partial_weight_sync",
    )


def _tenth(rng: np.random.Generator, run: Run) -> Made:
    """One update of ten is missed, and labels come without a load: from numbers alone, one step in ten may be other tasks."""
    _, run, _ = _fault("tenth_missed", 6, 10, cause=None, since=(0,), pace=4e-3)(rng, run)
    weights = _updates(run, loaded=lambda v: v % 10 != 9)
    return "refuse", replace(run, weights=weights, fault=replace(run.fault, told=True)), "missed_weight_sync"


def _updates(
    run: Run, *, loaded: Callable[[int], bool] = lambda v: True, tensors: Callable[[int], int | None] = lambda v: None
) -> Weights:
    common = {"source": "engine", "replica": None, "pause_mode": None, "cache_cleared": True, "checksum": None}
    return Weights(
        tuple(WeightRecord(str(v), v, loaded=loaded(v), tensors=tensors(v), **common) for v in range(1, run.steps))
    )


def _spell(rng: np.random.Generator, run: Run) -> Made:
    """Forty versions behind for some steps, and then as before."""
    since = int(rng.integers(250, 290))
    fault = Fault("stale_spell", 40, since, since + int(rng.integers(6, 14)))
    return "ended", replace(run, fault=fault, policy=Policy(pace=1e-3)), None


def _unlisted(kind: str, *sizes: float, since: tuple[int, ...] = (0, 230)) -> Make:
    def make(rng: np.random.Generator, run: Run) -> Made:
        return "unlisted", _fault(kind, *sizes, cause=None, since=since)(rng, run)[1], None

    return make


DEVELOPMENT: Final = Set(
    "development", 20_000_000, (8, 6, 256),
    {
        "healthy, bf16 / float32": _plain("bfloat16", "float32"),
        "healthy, fp16 / float32": _plain("float16", "float32"),
        "healthy, lag of 0 to 4": _lagging(known=True),
        "healthy, entropy falls": _plain("bfloat16", "float32", entropy=(0.8, 1.5)),
        "healthy, answers get longer": _plain("bfloat16", "float32", longer=14.0),
        "healthy, temperature 0.8 on both sides": _cooler,
        "lag grows": _lag_grows,
        "optimizers depart": _departs((0,), (20, 35), (220, 250)),
        "temperature unknown to the trainer": _fault("temperature", 0.6, 0.85, cause="temperature_mismatch", since=(0,)),
        "one replica of four stale": _fault("stale_replica", 15, 30, cause="replica_divergence"),
        "one layer stays old": _partial,
        "log-probs shifted by one token": _fault("shifted", 0, 0, cause="misaligned_tokens"),
        "dropout in the trainer": _fault("dropout", 0.03, 0.1, cause="trainer_not_deterministic"),
        "a spell that ended": _spell,
        "unlisted: log-probs clamped at the trainer": _unlisted("clamped", -3.0, -4.5),
        "unlisted: the trainer forgets long answers": _unlisted("short_memory", 12, 18),
        "unlisted: drafts accepted without a look": _unlisted("loose_draft", 0.05, 0.2),
        "raw log-probs, hot, said to be processed": _fault("raw", 0, 0, cause="raw_logprobs", since=(0,), temperature=1.25),
        "a large top-k unknown to the trainer": _fault("top_k", 36, 60, cause="truncated_support", since=(0,)),
    },
)  # fmt: skip
HELD_BACK: Final = Set(
    "held back", 30_000_000, (6, 8, 320),
    {
        "healthy, bf16 / bf16": _plain("bfloat16", "bfloat16"),
        "healthy, fp8 / bf16": _plain("fp8", "bfloat16"),
        "healthy, experts, bf16 / bf16": _plain("bfloat16", "bfloat16", experts=4),
        "healthy, a curriculum that changes": _plain("bfloat16", "float32", lessons=60),
        "healthy, small batches": _small,
        "healthy, lag unknown, nothing recorded": _lagging(known=False),
        "lag grows fast, nothing recorded": _lag_grows_unrecorded,
        "optimizers depart beside lag": _departs((0, 1, 2), (36, 45), (200, 219)),
        "no fault: the policy gets peaked": _peaked,
        "top-p unknown to the trainer": _fault("top_p", 0.85, 0.95, cause="truncated_support", since=(0,)),
        "top-k unknown to the trainer": _fault("top_k", 8, 30, cause="truncated_support", since=(0,)),
        "raw log-probs, said to be processed": _fault("raw", 0, 0, cause="raw_logprobs", since=(0,), temperature=0.8),
        "every tenth update missed": _tenth,
        "stale prefix cache": _fault("stale_prefix", 30, 60, cause="stale_prefix_cache", since=(60, 240), pace=2e-3),
        "other chat template": _fault("other_template", 0, 0, cause="different_model"),
        "wrong tokens in the trainer's copy": _fault("wrong_tokens", 0.004, 0.02, cause="retokenization"),
        "temperature unknown from step 200 on": _fault("temperature", 0.65, 0.9, cause="temperature_mismatch", since=(200,)),
        "unlisted: the sampler repeats a random number": _unlisted("sticky_sampler", 0.03, 0.1),
        "unlisted: an adapter applied twice": _unlisted("adapter_twice", 0.05, 0.1, since=(0,)),
        "unlisted: the likeliest token's log-prob reported": _unlisted("reports_best", 0.02, 0.06),
    },
)  # fmt: skip
