"""Arrays of a made-up run and the frame that the judge reads of them: the one reduction of all simulators.

Dimensions: ``S`` sequences, ``L`` places, ``N`` tokens under the mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.monitor.judging.frame import Column, Frame, Placed, strata_of
from logprobe.monitor.judging.growth import Tracker
from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.records import Joins, Series, Weights
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.judging.tokens import Tokens

Array = np.ndarray
TABLES = (("from_start",), ("from_end", "finish"), ("turn", "turn_start"), ("rank",), ("tag", "prompt_length"))


@dataclass
class Columns:
    """A run, token by token.

    Attributes:
        step: optimizer step [S], ascending.
        token: token ids [S, L].
        r: rollout log-probs [S, L].
        t: trainer log-probs [S, L].
        mask: tokens that count [S, L].
        group: code of the prompt [S].
        version: weight version as stated [S, L]; NaN where unknown.
        trainer_version: the trainer's [S].
        requests: columns of whole requests [S]: cached, in_flight, replica; one that is missing, or None, was not
            recorded. Without `in_flight` a request is in flight if its tokens have several versions.
        places: further group columns, [S, L] or [S].
    """

    step: Array
    token: Array
    r: Array
    t: Array
    mask: Array
    group: Array
    version: Array
    trainer_version: Array
    requests: dict[str, Array] = field(default_factory=dict)
    places: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        """Sequences of several parts of a run, one after the other."""

        def whole(name: str) -> Any:
            first = getattr(parts[0], name)
            if isinstance(first, dict):
                return {of: np.concatenate([getattr(part, name)[of] for part in parts]) for of in first}
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(**{name: whole(name) for name in vars(parts[0])})

    def where(self, keep_S: Array) -> Columns:
        """Some of the sequences."""
        some = {name: values[keep_S] for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        groups = {
            name: {of: values[keep_S] for of, values in getattr(self, name).items()} for name in ("requests", "places")
        }
        return replace(self, **some, **groups)

    def frame(
        self,
        *,
        setup: Setup | None = None,
        kept: Array | bool = True,
        joins: Mapping[str, Any] | None = None,
        **known: Any,
    ) -> Frame:
        """What a judge reads. `kept`: sequences [S] whose raw tokens are kept; `known`: further parts of the frame."""
        setup, series, tokens, lag = setup or Setup(), self.series(), self.tokens(), self.lag()
        size, keep_N = len(self.step), np.isfinite(tokens.d) & ~tokens.broken
        usable = tokens.where(keep_N)
        requests = {"in_flight": (self.version.max(1) - self.version.min(1)) > 0, **self.requests}
        if np.isfinite(self.version).any():
            requests["version"] = self.trainer_version - lag
        whole = {name: Column.of(np.asarray(values)).where(usable.sequence) for name, values in requests.items()}
        replicas = tuple(sorted({name for name in self.requests.get("replica", ()) if name is not None}))
        raw = tokens if isinstance(kept, bool) else tokens.where(np.asarray(kept)[tokens.sequence])
        raw = replace(raw, sequence=np.unique(raw.sequence, return_inverse=True)[1])
        return Frame(
            **{"run": "made up", "replicas": replicas, **known},
            series=series,
            strata=strata_of(usable.step, lag[usable.sequence], usable.sequence, usable.d, whole),
            places=tuple(self._placed(names, usable, keep_N) for names in TABLES if set(names) & set(self.places)),
            setup=setup,
            joins=Joins(**{"sequences": size, "tokens": int(self.mask.sum()), "seen_by_engine": size, **(joins or {})}),
            growth=Tracker(band=band_of(setup)).follow(series.step.tolist(), series.k3.tolist()).verdict(),
            recorded=None if kept is False else raw,
        )

    def lag(self) -> Array:
        """Weight lag of each sequence [S]: the mean of its tokens'; NaN where unknown."""
        lag = np.where(self.mask, self.trainer_version[:, None] - self.version, 0.0)
        return np.floor(lag.sum(1) / self.mask.sum(1) + 0.5)

    def series(self) -> Series:
        """Sums by step."""
        inside = self.mask
        offsets = np.concatenate([[0], np.cumsum(inside.sum(1))])
        s = sequence_statistics(self.r[inside].astype(np.float32), self.t[inside].astype(np.float32), None, offsets)
        series = series_of(self.step, s)
        return Series({**series.columns, **self.copies(series.step)})

    def copies(self, steps: Array) -> dict[str, Array]:
        """By step: answers to prompts with several, and those that are another one again and less likely than 1e-6."""
        found = {"grouped": np.zeros(len(steps)), "copies": np.zeros(len(steps))}
        logprob = np.maximum(*(np.where(self.mask, side, 0.0).sum(1) for side in (self.r, self.t)))
        seen: set[tuple[Any, ...]] = set()
        sizes = dict(zip(*np.unique(self.group, return_counts=True), strict=True))
        for row, place in enumerate(np.searchsorted(steps, self.step).tolist()):
            answer = (self.step[row], self.group[row], self.token[row][self.mask[row]].tobytes())
            found["grouped"][place] += sizes[self.group[row]] > 1
            found["copies"][place] += answer in seen and logprob[row] < np.log(1e-6)
            seen.add(answer)
        return found

    def tokens(self) -> Tokens:
        """Tokens under the mask, broken ones included."""
        inside = self.mask
        lengths = inside.sum(1)
        sequence = np.repeat(np.arange(len(self.step)), lengths)
        place = (np.cumsum(inside, 1) - 1)[inside]
        r, t = (side[inside].astype(np.float32).astype(float) for side in (self.r, self.t))
        version = np.broadcast_to(self.version, inside.shape)[inside].astype(float)
        with np.errstate(invalid="ignore"):
            d = t - r
            impossible = (np.minimum(r, t) <= -9984) | (np.maximum(r, t) > 1e-6) | ((r == 0) & (t < -1))
        codes = np.where(np.isfinite(version), np.unique(version, return_inverse=True)[1], -1)
        return Tokens(
            step=self.step[sequence].astype(np.int64),
            sequence=sequence,
            place=place,
            last=place == lengths[sequence] - 1,
            token_id=self.token[inside].astype(np.intp),
            r=r,
            t=t,
            d=d,
            broken=~np.isfinite(d) | impossible,
            entropy=np.full(len(r), np.nan),
            lag=self.trainer_version[sequence] - version,
            version=codes,
            replica=self._codes("replica")[sequence],
            cached=self._codes("cached")[sequence],
            context=self.group[sequence].astype(np.intp),
        )

    def _codes(self, name: str) -> Array:
        """Place of each sequence's value among the sorted ones [S]; −1 where it was not recorded."""
        values = self.requests.get(name)
        if values is None:
            return np.full(len(self.step), -1)
        known = sorted({value for value in values.tolist() if value is not None})
        known = [False, True] if name == "cached" else known
        return np.array([-1 if value is None else known.index(value) for value in values.tolist()])

    def _placed(self, names: tuple[str, ...], usable: Tokens, keep_N: Array) -> Placed:
        groups = {}
        for name in names:
            if name in self.places:
                values = self.places[name]
                coded = Column.of(values.ravel())  # of whole requests once, not token by token
                codes = coded.codes.reshape(len(self.step), -1)
                groups[name] = Column(np.broadcast_to(codes, self.mask.shape)[self.mask][keep_N], coded.values)
        return Placed(usable.step, usable.lag, usable.sequence, usable.d, groups)


def series_of(step: Array, s: Mapping[str, Array]) -> Series:
    """Sums by step of the statistics of sequences."""
    n, a, q = (s[name].astype(float) for name in ("n", "sum_abs_d", "sum_ratio_m1"))
    summed = {
        "compared": np.ones(len(n)), "n_expected": s["n_expected"], "n": n, "n_compared": s["n_expected"], "abs_d": a,
        "k3": s["sum_k3"], "ratio_m1": q, "t": s["sum_policy"], "r": s["sum_behaviour"], "t2": s["sum_policy2"],
        "r2": s["sum_behaviour2"], "tr": s["sum_policy_behaviour"], "n_up": s["n_positive_d"], "n_down": s["n_negative_d"],
        "n_same": s["n_zero_d"], "nonfinite_rollout": s["n_nonfinite_behaviour"],
        "nonfinite_trainer": s["n_nonfinite_policy"], "sentinel": s["n_sentinel_behaviour"] + s["n_sentinel_policy"],
        "positive_rollout": s["n_positive_behaviour"], "zero_rollout": s["n_zero_behaviour"],
        "zero_trainer": s["n_zero_policy"], "c_nn": n * n, "c_aa": a * a, "c_an": a * n, "c_qq": q * q, "c_qn": q * n,
        **dict.fromkeys(("other_ids", "unaligned", "missing_tokens", "grouped", "copies"), 0 * n),  # no record says in which steps
    }  # fmt: skip
    steps, index = np.unique(step, return_inverse=True)
    return Series({"step": steps, **{name: np.bincount(index, values) for name, values in summed.items()}})


def known_by(weights: Weights, step: int) -> Weights:
    """The records of updates up to a step."""
    return Weights(tuple(record for record in weights.records if record.step is None or record.step <= step))
