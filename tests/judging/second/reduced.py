"""What is recorded of a run, summed up as the product does: a frame of what the judge reads.

Dimensions: ``S`` sequences, ``L`` places, ``N`` tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from run_columns import Columns

from logprobe.monitor.judging.frame import Frame, Pair
from logprobe.monitor.judging.records import VersionConflicts, WeightRecord, Weights
from logprobe.monitor.judging.replay import Replay, Turn
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.judging.weight_readings import Reading, Readings

ENGINE = {
    "dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"],
    "logprobs_mode": "processed_logprobs",
    "enable_prefix_caching": True,
}
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
TRAINER = {"dtype": "bfloat16", "temperature": 1.0}


def _replay(agreement: float | None) -> Replay:
    """Routes of 10,000 pairs of a token and a layer, of which this share is equal."""
    return Replay() if agreement is None else Replay((Turn(None, 0, 10_000, round(10_000 * agreement)),))


class Reduced:
    """A run's arrays, as they are read by a judge. `run.recorded` says what there is to read."""

    def frame(self) -> Frame:
        recorded, chosen = self.run.recorded, self.run.recorded.get("columns")
        version, _, own = self._labels()
        known = recorded.get("versions", True)
        wanted = lambda name: chosen is None or name in chosen
        requests = ("cached", "in_flight", "replica")
        columns = Columns(
            step=self.step,
            token=self.token,
            r=self.r,
            t=self.t,
            mask=self.inside,
            group=self.prompt,
            version=version.astype(float) if known else np.full(self.inside.shape, np.nan),
            trainer_version=own,
            requests={name: self.sequence_groups[name] for name in requests if wanted(name)},
            places={
                name: values
                for name, values in (*self.token_groups.items(), *self.sequence_groups.items())
                if name not in requests and wanted(name)
            },
        )
        share = recorded.get("tokens", 1)
        return columns.frame(
            setup=self._setup(),
            kept=np.random.default_rng([self.run.seed, 5]).random(self.size) < share if 0 < share < 1 else bool(share),
            joins=self._joins(),
            weights=self._weights(),
            readings=self._readings(),
            pairs={name: self._pair(of) for name, of in recorded.get("pairs", {}).items()},
            independent=recorded.get("independent"),
            replay=_replay(recorded.get("routing_agreement")),
            unmoved_since=recorded.get("learning_rate_zero_since"),
        )

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

    def _setup(self) -> Setup:
        run, missing = self.run, self.run.recorded.get("unrecorded", ())
        clean = lambda values: {k: v for k, v in values.items() if v is not None}
        engine = clean({**ENGINE, **(run.engine or {})})
        cut_by = {} if run.nucleus is None else {"top_p": run.nucleus}
        sampling = clean({**SAMPLING, "temperature": run.temperature, **cut_by, **(run.sampling or {})})
        trainer = clean({**TRAINER, "temperature": run.temperature, **cut_by, **(run.trainer or {})})
        return Setup(
            engines=() if "engine" in missing else (engine,),
            samplings=None if "sampling" in missing else {"only": sampling, **self._sampled_otherwise(sampling)},
            trainer=None if "trainer" in missing else trainer,
        )

    def _sampled_otherwise(self, sampling: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """`also_sampled`: parameters in which some requests differ."""
        others = self.run.recorded.get("also_sampled")
        return {} if others is None else {"others": {**sampling, **others}}

    def _weights(self) -> Weights:
        """`rounding`: what the trainer's fingerprints say of its elements. `loads`: all, or `until` a version, or all but each `but`-th; `kept`: the prefix cache is not cleared (also `kept_since`)."""
        rows = self._elements(**self.run.recorded.get("rounding", {}))
        of = self.run.recorded.get("loads")
        if of is None:
            return Weights(tuple(rows))
        kept = of.get("kept_since", 0 if of.get("kept") else 10**9)
        for version in range(1, self.run.steps):
            loaded = version <= of.get("until", 10**9) and (not of.get("but") or version % of["but"] != of["but"] - 1)
            rows.append(
                WeightRecord(
                    str(version), version, "engine", None, loaded=loaded, pause_mode=of.get("pause"),
                    cache_cleared=None if of.get("cache_unknown") else version < kept, tensors=of.get("tensors", 12), checksum=None,
                )
            )  # fmt: skip
        return Weights(tuple(rows))

    def _elements(
        self, crossing: float = 0.0, exact: tuple[float, ...] = (), dtype: str = "bfloat16"
    ) -> list[WeightRecord]:
        """Records of the trainer: `exact` shares at first and later, and the share of changed elements that cross."""
        rows = []
        for version in range(self.run.steps if exact else 0):
            told = {"sampled": 1000, f"exact {dtype}": round(1000 * exact[version > 0])}
            if version:
                told |= {"changed": 900, f"changed {dtype}": round(900 * crossing)}
            rows.append(
                WeightRecord(
                    str(version), version, "trainer", None, loaded=False, pause_mode=None, cache_cleared=None, tensors=None, checksum=None,
                    elements=tuple(told.items()),
                )
            )  # fmt: skip
        return rows

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

    def _joins(self) -> dict[str, Any]:
        of = dict(self.run.recorded.get("joins", {}))
        return {**of, "conflicts": VersionConflicts(**of["conflicts"])} if "conflicts" in of else of

    def _pair(self, of: dict[str, Any]) -> Pair:
        steps = np.arange(self.run.steps)
        k3 = np.geomspace(of["first"], of["last"], len(steps)) * np.exp(
            0.15 * np.random.default_rng(self.run.seed).standard_normal(len(steps))
        )
        if "since" in of:
            k3 = np.where(steps >= of["since"], of["then"] * np.exp(0.0), k3)
        return Pair(steps, k3)
