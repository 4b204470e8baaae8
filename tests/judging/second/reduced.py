"""What is recorded of a run, summed up as the product does: a frame of what the judge reads.

Dimensions: ``S`` sequences, ``L`` places, ``N`` tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from diagnosis_simulation import series_of

from logprobe.collectors.kernel.statistics import sequence_statistics
from logprobe.monitor.judging.frame import Column, Frame, Pair, Placed, strata_of
from logprobe.monitor.judging.growth import judge as growth_of
from logprobe.monitor.judging.level import band_of
from logprobe.monitor.judging.records import Joins, VersionConflicts, WeightRecord, Weights
from logprobe.monitor.judging.replay import Replay, Turn
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.judging.tokens import Tokens
from logprobe.monitor.judging.weight_readings import Reading, Readings

ENGINE = {
    "dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"],
    "logprobs_mode": "processed_logprobs",
    "enable_prefix_caching": True,
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
TRAINER = {"dtype": "bfloat16", "temperature": 1.0}
TABLES = (("from_start",), ("from_end", "finish"), ("turn", "turn_start"), ("rank",), ("tag", "prompt_length"))


def _replay(agreement: float | None) -> Replay:
    """Routes of 10,000 pairs of a token and a layer, of which this share is equal."""
    return Replay() if agreement is None else Replay((Turn(None, 0, 10_000, round(10_000 * agreement)),))


class Reduced:
    """A run's arrays, as they are read by a judge. `run.recorded` says what there is to read."""

    def frame(self) -> Frame:
        recorded = self.run.recorded
        inside = self.inside
        r, t = self.r[inside], self.t[inside]
        offsets = np.concatenate([[0], np.cumsum(inside.sum(1))])
        series = series_of(self.step, sequence_statistics(r, t, None, offsets))
        setup = self._setup()
        tokens = self._tokens(r, t)
        usable = ~tokens.broken & np.isfinite(tokens.d)
        k3 = [v if np.isfinite(v) else None for v in series.k3.tolist()]
        columns = recorded.get("columns")
        wanted = [tuple(c for c in names if columns is None or c in columns) for names in TABLES]
        keep = self._sample(tokens) if recorded.get("tokens", 1) else None
        return Frame(
            series=series,
            strata=self._table(tokens, usable, ("cached", "in_flight", "replica", "version")),
            places=tuple(self._table(tokens, usable, names) for names in wanted if names),
            setup=setup,
            weights=self._weights(),
            readings=self._readings(),
            joins=self._joins(),
            growth=growth_of(series.step.tolist(), k3, band=band_of(setup)),
            recorded=keep,
            pairs={name: self._pair(of) for name, of in recorded.get("pairs", {}).items()},
            independent=recorded.get("independent"),
            replay=_replay(recorded.get("routing_agreement")),
        )

    def _each(self, values: np.ndarray) -> np.ndarray:
        return np.repeat(values, self.lengths)

    def _labels(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Version of each token as it is stated [S, L], lag by it, and the trainer's [S]. `stated`: how the engine's numbers are made."""
        of = self.run.recorded.get("stated", {})
        version, own = self.version.astype(float), self.step.astype(float)
        since = self.step[:, None] >= of.get("since", 0)
        kind = of.get("kind")
        if kind == "feed":  # the engine counts batches, the trainer's version stands for many
            own = self.step // of["every"]
            version = np.where(since, self.step[:, None] * of.get("times", 1), own[:, None]).astype(
                float
            ) + np.zeros_like(version)
        elif kind == "seconds":
            version = np.where(since, 1.7e9 + 40.0 * self.step[:, None], version)
        elif kind == "ahead":
            version = np.where(since, version + of["by"], version)
        elif kind == "micro":
            version = np.where(since, version * of["times"], version)
        elif kind == "chance":
            version = np.where(
                since, np.random.default_rng([self.run.seed, 9]).integers(0, 10_000, (self.size, 1)), version
            )
        elif kind == "still":
            version = np.where(since, np.minimum(version, of["at"]), version)
        return version, own[:, None] - version, own

    def _sample(self, tokens: Tokens) -> Tokens:
        share = self.run.recorded.get("tokens", 1)
        if share == 1:
            return tokens
        chosen = np.random.default_rng([self.run.seed, 5]).random(self.size) < share
        some = tokens.where(chosen[tokens.sequence])
        return replace(some, sequence=np.unique(some.sequence, return_inverse=True)[1])

    def _tokens(self, r: np.ndarray, t: np.ndarray) -> Tokens:
        recorded, each = self.run.recorded, self._each
        rf, tf = r.astype(float), t.astype(float)
        fine = np.isfinite(rf) & np.isfinite(tf)
        broken = ~fine | (np.minimum(rf, tf) <= -9984) | (np.maximum(rf, tf) > 1e-6) | ((rf == 0) & (tf < -1))
        nothing = np.full(len(r), np.nan)
        version, lag, _ = self._labels()
        known = recorded.get("versions", True)
        self.token_lag = lag[self.inside] if known else nothing
        codes = {v: i for i, v in enumerate(sorted(set(self.sequence_groups["replica"].tolist())))}
        replica = np.array([codes[v] for v in self.sequence_groups["replica"]])
        cached = self.sequence_groups["cached"].astype(int)
        with np.errstate(invalid="ignore"):
            d = tf - rf
        of_columns = lambda name: (
            recorded.get("columns") is None or name in recorded["columns"] or name in recorded.get("requests", ())
        )
        unknown = np.full(len(r), -1)
        return Tokens(
            step=each(self.step).astype(np.int64), sequence=each(np.arange(self.size)), place=self.token_groups["from_start"][self.inside].astype(int),
            last=self.token_groups["from_end"][self.inside] == 0, token_id=self.token[self.inside], r=rf, t=tf, d=d, broken=broken,
            entropy=nothing, lag=self.token_lag, version=version[self.inside].astype(int) if known else unknown,
            replica=each(replica) if of_columns("replica") else unknown, cached=each(cached) if of_columns("cached") else unknown,
            context=each(self.prompt),
        )  # fmt: skip

    def _table(self, tokens: Tokens, usable: np.ndarray, names: tuple[str, ...]) -> Any:
        recorded = self.run.recorded
        whole = "cached" in names
        chosen = recorded.get("columns")
        lag, groups = self.token_lag, {}
        version, stated_lag, _ = self._labels()
        if whole and recorded.get("versions", True):
            mean = lambda x: np.round((x * self.inside).sum(1) / self.lengths)
            lag = self._each(mean(stated_lag))
            groups["version"] = np.array(self._each(mean(version))[usable].tolist(), object)
        for name in names:
            if name == "version" or (chosen is not None and name not in chosen):
                continue
            groups[name] = np.asarray(self._values(name)[self.inside], object)[usable]
        columns = {name: Column.of(values) for name, values in groups.items()}
        rows = (tokens.step[usable], lag[usable], tokens.sequence[usable], tokens.d[usable], columns)
        return strata_of(*rows) if whole else Placed(*rows)

    def _setup(self) -> Setup:
        run, missing = self.run, self.run.recorded.get("unrecorded", ())
        clean = lambda values: {k: v for k, v in values.items() if v is not None}
        engine = clean({**ENGINE, **(run.engine or {})})
        cut_by = {} if run.nucleus is None else {"top_p": run.nucleus}
        sampling = clean({**SAMPLING, "temperature": run.temperature, **cut_by, **(run.sampling or {})})
        trainer = clean({**TRAINER, "temperature": run.temperature, **cut_by, **(run.trainer or {})})
        return Setup(
            engines=() if "engine" in missing else (engine,),
            samplings=None if "sampling" in missing else {"only": sampling},
            trainer=None if "trainer" in missing else trainer,
        )

    def _weights(self) -> Weights:
        """`loads`: all, or `until` a version, or all but each `but`-th; `kept`: the prefix cache is not cleared (also `kept_since`)."""
        of = self.run.recorded.get("loads")
        if of is None:
            return Weights()
        kept = of.get("kept_since", 0 if of.get("kept") else 10**9)
        rows = []
        for version in range(1, self.run.steps):
            loaded = version <= of.get("until", 10**9) and (not of.get("but") or version % of["but"] != of["but"] - 1)
            rows.append(
                WeightRecord(
                    str(version), version, "engine", None, loaded=loaded, pause_mode=of.get("pause"),
                    cache_cleared=None if of.get("cache_unknown") else version < kept, tensors=of.get("tensors", 12), checksum=None,
                )
            )  # fmt: skip
        return Weights(tuple(rows))

    def _readings(self) -> Readings:
        """`fingerprints`: of `replicas` and the trainer; `stuck`: the last version that arrives (in `which`); `partial`: the step since which some tensors stay."""
        of = self.run.recorded.get("fingerprints")
        if of is None:
            return Readings()
        rows = []
        names = [f"layer{i} bf16 64x64" for i in range(4)]
        for version in range(0, self.run.steps, of.get("every", 1)):
            truth = {name: 7919 * version + i for i, name in enumerate(names)}
            if of.get("trainer", True):
                rows.append(
                    Reading(
                        "trainer",
                        None,
                        None,
                        str(version),
                        version,
                        f"t{version}",
                        "x",
                        unannounced=False,
                        tensors=truth,
                    )
                )
            for replica in of.get("replicas", ["e0"]):
                held = min(version, of["stuck"]) if "stuck" in of and replica in of.get("which", [replica]) else version
                if "skips" in of and version % of["skips"] == of["skips"] - 1:
                    held = version - 1
                has = {name: 7919 * held + i for i, name in enumerate(names)}
                mark = f"f{held}"
                if "partial" in of and version > of["partial"]:
                    has |= {name: 7919 * of["partial"] + i for i, name in enumerate(names) if i >= 2}
                    mark += "p"
                rows.append(
                    Reading("worker", replica, "0", str(version), version, mark, "x", unannounced=False, tensors=has)
                )
        return Readings(tuple(rows))

    def _joins(self) -> Joins:
        of = dict(self.run.recorded.get("joins", {}))
        conflicts = of.pop("conflicts", None)
        stated = None if conflicts is None else VersionConflicts(**conflicts)
        return Joins(
            sequences=self.size, tokens=int(self.inside.sum()), seen_by_engine=self.size, conflicts=stated, **of
        )

    def _pair(self, of: dict[str, Any]) -> Pair:
        steps = np.arange(self.run.steps)
        k3 = np.geomspace(of["first"], of["last"], len(steps)) * np.exp(
            0.15 * np.random.default_rng(self.run.seed).standard_normal(len(steps))
        )
        if "since" in of:
            k3 = np.where(steps >= of["since"], of["then"] * np.exp(0.0), k3)
        return Pair(steps, k3, of.get("first_pass", False))
