"""Frame of a simulated policy: random logits, tokens really drawn from them, and any fault as a function of the logits.

Every answer of a prompt starts from the same logits, as in a real run; later tokens have contexts of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.monitor.judging.frame import Column, Frame, Strata
from logprobe.monitor.judging.growth import judge
from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.records import Joins, Series, Weights
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.judging.tokens import from_table, replicas_of
from logprobe.monitor.metrics.lag import Versions

Logits = np.ndarray  # [contexts, V]


def log_softmax(z: Logits) -> Logits:
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def tempered(temperature: float) -> Callable[[Logits], Logits]:
    return lambda z: log_softmax(z / temperature)


def nucleus(top_p: float) -> Callable[[Logits], Logits]:
    def of(z: Logits) -> Logits:
        p = np.exp(log_softmax(z))
        order = np.argsort(-p, axis=-1)
        before = np.cumsum(np.take_along_axis(p, order, -1), -1) - np.take_along_axis(p, order, -1)
        kept = np.zeros(z.shape, bool)
        np.put_along_axis(kept, order, before < top_p, -1)
        return log_softmax(np.where(kept, z, -1e9))

    return of


def allowing(share: float) -> Callable[[Logits], Logits]:
    """A grammar that allows the first part of the vocabulary."""
    return lambda z: log_softmax(np.where(np.arange(z.shape[-1]) < share * z.shape[-1], z, -1e9))


def padded(rows: int) -> Callable[[Logits], Logits]:
    return lambda z: log_softmax(np.concatenate([z, np.zeros((*z.shape[:-1], rows))], -1))[..., : z.shape[-1]]


def rounded(z: Logits) -> Logits:
    """To bfloat16, as its bits say."""
    return ((z.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32).astype(float)


def noisy(size: float, seed: int = 1) -> Callable[[Logits], Logits]:
    """Other logits for every context."""
    rng = np.random.default_rng(seed)
    return lambda z: log_softmax(z + rng.normal(0, size, z.shape))


def drift(size: Any, shape: tuple[int, ...], seed: int = 5) -> Logits:
    """Normal log-ratios of this standard deviation with E[ρ] = 1: of log-probs that belong to what was sampled from."""
    return np.random.default_rng(seed).normal(0, 1, shape) * size - np.square(size) / 2


ANSWERS = 4


@dataclass
class Simulation:
    """A run. `engine` samples from `sampled` of the logits and reports `reported`; `trained` is the trainer's; all [contexts, V] → the same."""

    steps: int = 12
    prompts: int = 8
    length: int = 16
    vocabulary: int = 64
    seed: int = 0
    spread: float = 3.0
    sampled: Callable[[Logits], Logits] = log_softmax
    reported: Callable[[Logits], Logits] | None = None
    trained: Callable[[Logits], Logits] = log_softmax
    first_trained: int = 0  # before this step the trainer agrees
    change: Callable[[Columns], None] = lambda columns: None
    setup: Setup = field(default_factory=Setup)
    weights: Weights = field(default_factory=Weights)
    keep_tokens: bool = True

    @property
    def sequences(self) -> int:
        return self.steps * self.prompts * ANSWERS

    def columns(self) -> Columns:
        rng = np.random.default_rng(self.seed)
        shape = (self.sequences, self.length)
        step = np.repeat(np.arange(self.steps), self.prompts * ANSWERS)
        context = np.arange(self.sequences) // ANSWERS
        token, r, t = np.zeros(shape, int), np.zeros(shape), np.zeros(shape)
        for place in range(self.length):
            contexts, index = np.unique(context, return_inverse=True)
            z = rng.normal(0, self.spread, (len(contexts), self.vocabulary))
            q, reported, trained = self.sampled(z), (self.reported or self.sampled)(z), self.trained(z)
            token[:, place] = (q[index] + rng.gumbel(size=(self.sequences, self.vocabulary))).argmax(-1)
            r[:, place] = reported[index, token[:, place]]
            t[:, place] = np.where(step < self.first_trained, r[:, place], trained[index, token[:, place]])
            context = index * self.vocabulary + token[:, place]
        columns = Columns(
            step=step,
            token=token,
            r=r.astype(np.float32),
            t=t.astype(np.float32),
            mask=np.ones(shape, bool),
            group=np.arange(self.sequences) // ANSWERS,
            version=np.repeat(step[:, None], self.length, 1),
            trainer_version=step.copy(),
            cached=np.full(self.sequences, -1),
            replica=np.full(self.sequences, -1),
        )
        self.change(columns)
        return columns

    def frame(self) -> Frame:
        columns = self.columns()
        series = columns.series()
        table = columns.table()
        recorded = from_table(table, Versions.from_records([])) if self.keep_tokens else None
        return Frame(
            run="simulated",
            series=series,
            strata=columns.strata(),
            joins=Joins(sequences=self.sequences, tokens=columns.r.size, seen_by_engine=self.sequences),
            setup=self.setup,
            weights=self.weights,
            growth=judge(
                series.step.tolist(),
                [v if np.isfinite(v) else None for v in series.k3.tolist()],
                band=band_of(self.setup),
            ),
            recorded=recorded,
            replicas=() if recorded is None else replicas_of(table),
        )


def series_of(step: np.ndarray, s: dict[str, np.ndarray]) -> Series:
    """Sums by step of the statistics of sequences."""
    n, d, a, q = (s[name].astype(float) for name in ("n", "sum_d", "sum_abs_d", "sum_ratio_m1"))
    summed = {
        "sequences": np.ones(len(n)), "compared": np.ones(len(n)), "n_expected": s["n_expected"], "n": n, "n_compared": s["n_expected"],
        "d": d, "d2": s["sum_d2"], "abs_d": a, "k3": s["sum_k3"], "ratio_m1": q, "t": s["sum_policy"], "r": s["sum_behaviour"],
        "t2": s["sum_policy2"], "r2": s["sum_behaviour2"], "tr": s["sum_policy_behaviour"], "n_up": s["n_positive_d"],
        "n_down": s["n_negative_d"], "n_same": s["n_zero_d"], "nonfinite_rollout": s["n_nonfinite_behaviour"],
        "nonfinite_trainer": s["n_nonfinite_policy"], "sentinel": s["n_sentinel_behaviour"] + s["n_sentinel_policy"],
        "positive_rollout": s["n_positive_behaviour"], "positive_trainer": s["n_positive_policy"], "zero_rollout": s["n_zero_behaviour"], "zero_trainer": s["n_zero_policy"],
        "c_nn": n * n, "c_dd": d * d, "c_dn": d * n, "c_aa": a * a, "c_an": a * n, "c_qq": q * q, "c_qn": q * n,
    }  # fmt: skip
    steps, index = np.unique(step, return_inverse=True)
    columns: dict[str, Any] = {name: np.bincount(index, values) for name, values in summed.items()}
    least, most = np.full(len(steps), np.inf), np.full(len(steps), -np.inf)
    np.minimum.at(least, index, s["min_d"])
    np.maximum.at(most, index, s["max_d"])
    return Series({"step": steps, **columns, "min_d": least, "max_d": most})


@dataclass
class Columns:
    """Padded arrays of a run [S, L] and [S]; −1 and NaN are nulls."""

    step: np.ndarray
    token: np.ndarray
    r: np.ndarray
    t: np.ndarray
    mask: np.ndarray
    group: np.ndarray
    version: np.ndarray
    trainer_version: np.ndarray
    cached: np.ndarray
    replica: np.ndarray

    def statistics(self) -> dict[str, np.ndarray]:
        offsets = np.arange(len(self.r) + 1) * self.r.shape[1]
        return sequence_statistics(self.r.ravel(), self.t.ravel(), self.mask.ravel(), offsets)

    def series(self) -> Series:
        return series_of(self.step, self.statistics())

    def strata(self) -> Strata:
        s, lag = self.statistics(), np.round(self.trainer_version - self.version.mean(1))
        keys = np.stack(
            [
                self.step,
                np.where(self.version.min(1) < 0, -99, lag),
                self.cached,
                self.version.min(1) != self.version.max(1),
                self.replica,
                np.round(self.version.mean(1)),
            ]
        )
        rows, index = np.unique(keys, axis=1, return_inverse=True)
        step, lag, cached, in_flight, replica, version = rows
        return Strata(
            step=step.astype(np.int64),
            lag=np.where(lag == -99, np.nan, lag).astype(float),
            groups={
                "cached": flags(cached),
                "in_flight": flags(in_flight),
                "replica": Column.of(np.array([_name(value) for value in replica], object)),
                "version": Column.of(np.where(lag == -99, np.nan, version).astype(float)),
            },
            **{name: np.bincount(index.ravel(), values) for name, values in _summed(s).items()},
        )

    def table(self) -> pa.Table:
        size, length = self.r.shape
        flat: Mapping[str, Any] = {
            "sequence": np.repeat(np.arange(size), length),
            "step": np.repeat(self.step, length),
            "token_id": self.token.ravel(),
            "mask": self.mask.ravel(),
            "r": self.r.ravel(),
            "t": self.t.ravel(),
            "broken": self._broken(),
            "entropy": pa.nulls(size * length, pa.float32()),
            "weight_version": _labels(self.version.ravel()),
            "trainer_weight_version": _labels(np.repeat(self.trainer_version, length)),
            "group_id": [f"g{g}" for g in np.repeat(self.group, length)],
            "prompt_hash": pa.nulls(size * length, pa.string()),
            "replica": pa.array([_name(v) for v in np.repeat(self.replica, length)], pa.string()),
            "cached_prefix_tokens": pa.array(
                [None if v < 0 else int(16 * v) for v in np.repeat(self.cached, length)], pa.int32()
            ),
        }
        return pa.table(
            {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in flat.items()}
        ).select(list(flat))

    def _broken(self) -> pa.Array:
        r, t = self.r.ravel().astype(float), self.t.ravel().astype(float)
        finite = np.isfinite(r) & np.isfinite(t)
        bad = ~finite | (np.minimum(r, t) <= -9999) | (np.maximum(r, t) > 1e-6) | ((r == 0) & (t < -1))
        return pa.array(bad)


def _labels(values: np.ndarray) -> pa.Array:
    return pa.array([None if v < 0 else str(int(v)) for v in values], pa.string())


def flags(codes: np.ndarray) -> Column:
    """1, 0 and −1 for true, false and not recorded."""
    return Column(np.where(codes < 0, -1, codes).astype(np.intp), (False, True))


def _summed(s: Mapping[str, Any]) -> dict[str, Any]:
    """What strata add up, of each sequence [S]."""
    n, a = np.asarray(s["n"], float), np.asarray(s["sum_abs_d"], float)
    return {
        "sequences": np.ones(len(n)),
        "tokens": n,
        "sum_k3": s["sum_k3"],
        "sum_abs_d": a,
        "c_nn": n * n,
        "c_aa": a * a,
        "c_an": a * n,
    }


def _name(value: int) -> str | None:
    return None if value < 0 else f"replica-{int(value)}"
