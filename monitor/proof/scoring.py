"""`logprobe bisect --only-score`: rescoring of the same tokens by a fresh engine, the reference and the trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.proof.departing import FLOOR, Decision, Departs, decide, pattern
from logprobe.monitor.proof.paired import UNMEASURED, Cost, Gap, gap, sums
from logprobe.monitor.proof.sample import Floats, Scores, TokenSequence, assumptions
from logprobe.monitor.proof.scorers.jobs import UNREPEATED, EngineJob, SequenceJob
from logprobe.monitor.proof.scorers.running import ENGINE, FORWARD, LAYERS, Outcome, run_scorer
from logprobe.monitor.proof.setup import Setup

REFERENCE: Final = "logprobe.monitor.proof.forward:score"
PATHS: Final = ("decode", "prefill", "alone")
_WATCHED: Final = 4  # sequences whose hidden states are compared, or that a trainer is given by themselves
_EIGHT: Final = 8  # sequences that a trainer is given at a time, as another micro-batch
COLD: Final = {"enable_prefix_caching": False}
Run = Callable[..., Outcome]
Compared = Literal["reference", "trainer", "engine"]


@dataclass(frozen=True, slots=True)
class Score:
    """Measured log-probs by scorer, mismatches, and deviating side."""

    scores: Mapping[str, Scores]
    pairs: tuple[Gap, ...]
    decision: Decision
    path: str
    not_measured: tuple[str, ...]
    settings: Mapping[str, Any]
    speed: Mapping[str, float]
    floor: float
    sequences: tuple[Mapping[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    breaks: Mapping[str, Any] | None = None

    @property
    def exact(self) -> bool:
        """True if r and t were compared and are equal in every bit."""
        return any((pair.a, pair.b, pair.unequal) == ("r", "t", 0) for pair in self.pairs)

    def document(self) -> dict[str, object]:
        """Return the JSON-ready form, the output of ``logprobe bisect --only-score --json``."""
        return {
            "departs": self.decision.departs,
            "departs_all": list(self.decision.departs_all),
            "why": self.decision.why,
            "scores": {name: _mean(self.scores.get(name)) for name in ("r", "r_fresh", "q", "t", "t_fresh")},
            "pairs": [pair.document() for pair in self.pairs],
            "sequences": [dict(sequence) for sequence in self.sequences],
            "path": self.path,
            "exact": self.exact,
            "breaks": self.breaks,
            "noise_floor": self.floor,
            "not_measured": list(self.not_measured),
            "engine": dict(self.settings),
            "tokens_per_s": dict(self.speed),
        }


def score(
    sequences: Sequence[TokenSequence],
    setup: Setup,
    *,
    floor: float = FLOOR,
    exact: bool = False,
    run: Run = run_scorer,
) -> Score:
    """Score `sequences` by every available scorer and decide which side deviates.

    Args:
        sequences: sequences to score.
        setup: checkpoints, engine and trainer.
        floor: K3 that counts as agreement.
        exact: true to look for the operation at which bit equality ends.
        run: starts a process, like `run_scorer`.

    Raises:
        ConfigurationError: neither engine nor reference could score anything.
        StoreError: the disk is full.
    """
    gaps: list[str] = []
    scores: dict[str, Scores] = {
        "r": tuple(sequence.rollout for sequence in sequences),
        "t": tuple(sequence.trainer for sequence in sequences),
    }
    scorers = Scorers(sequences, setup, run)
    fresh = scorers.engine(COLD, paths=PATHS)
    scores |= {"r_fresh": fresh.decode, "r_fresh_prefill": fresh.prefill, "r_fresh_alone": fresh.alone}
    scores["q"] = scorers.reference(lambda sequence: sequence.trainer_version)
    scorers.require(fresh.decode, fresh.prefill, scores["q"])
    if aged(sequences):
        scores["q_rollout"] = scorers.reference(lambda sequence: sequence.rollout_version)
    if setup.trainer is not None:
        trainer = partial(
            scorers.forward, setup.trainer, setup.trainer_settings, lambda sequence: sequence.trainer_version
        )
        scores |= {"t_fresh": trainer(), "t_fresh_again": trainer(repeat=1), "t_fresh_alone": trainer(at_once=1)}
        scores |= {"t_fresh_eights": trainer(at_once=_EIGHT)} if len(sequences) > _EIGHT else {}
    path = "decode" if any(values is not None for values in fresh.decode) else "prefill"
    pairs = _pairs(scores, path)
    whole = pairs.get(("r", "t"))
    unequal = next((pair.first_unequal for pair in pairs.values() if pair and pair.first_unequal), None)
    breaks = scorers.breaks(unequal[0]) if exact and unequal is not None else None
    gaps += [*scorers.problems, *_missing(scores, setup), *assumptions(sequences)]
    fresh_name, sampled_name = _names(scores, path)
    state = pattern(scores["r"], scores[fresh_name], sequences)
    legs = _legs(pairs, fresh_name, sampled_name)
    unlike = setup.unlike(scorers.settings, COLD)
    gaps += [f"not repeated of the engine's settings: {', '.join(unlike)}"] if unlike else []
    decision = decide(legs, whole, floor=floor, state=state, unsure=", ".join(unlike) or None)
    speed = dict(scorers.speed)
    measured = tuple(pair for pair in pairs.values() if pair is not None)
    off = tuple(_off(sequences, scores, legs))
    names = tuple(sequence.sample_id for sequence in sequences)
    return Score(
        scores, measured, decision, path, tuple(dict.fromkeys(gaps)), scorers.settings, speed, floor, off, names, breaks
    )


def _off(
    sequences: Sequence[TokenSequence], scores: Mapping[str, Scores], legs: Mapping[Departs, Gap | None]
) -> Iterator[dict[str, object]]:
    """Yield the sequences with a deviating token, with their engine and the K3 of each mismatch."""
    measured = {leg: leg_gap for leg, leg_gap in legs.items() if leg_gap is not None}
    of = {leg: sums(scores[leg_gap.a], scores[leg_gap.b]) for leg, leg_gap in measured.items()}
    for at in sorted({at for leg_gap in measured.values() for at in leg_gap.sequences_off}):
        parts = {
            str(leg): float(leg_sums.k3_S[at] / max(leg_sums.n_S[at], 1))
            for leg, leg_sums in of.items()
            if leg_sums is not None
        }
        yield {"sample_id": sequences[at].sample_id, "replica": sequences[at].replica, **parts}


@dataclass(frozen=True, slots=True)
class Fresh:
    """Log-probs of a fresh engine by decode kernels, by prefill kernels, and for a few sequences alone in the
    engine.
    """

    decode: Scores
    prefill: Scores
    alone: Scores = ()
    cost: Cost = UNMEASURED
    error: str | None = None


class Scorers:
    """Launcher of scorers on the sequences with a checkpoint, which restores the order of their answers.

    Args:
        sequences: sequences to score.
        setup: checkpoints, engine and trainer.
        run: starts a process, like `run_scorer`.
    """

    def __init__(self, sequences: Sequence[TokenSequence], setup: Setup, run: Run = run_scorer) -> None:
        self.problems: list[str] = []
        self.settings: dict[str, object] = {}
        self.speed: dict[str, float] = {}
        self._sequences = sequences
        self._setup = setup
        self._run = run

    def engine(
        self,
        overrides: Mapping[str, Any],
        *,
        paths: Sequence[str] = ("decode",),
        sampling: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        model: str | None = None,
        repeat: int = 0,
    ) -> Fresh:
        """Return r′ of every sequence with known weights.

        Args:
            overrides: changed arguments of the engine.
            paths: "decode", "prefill" or both.
            sampling: params that replace those of the sequences, usually neutral ones.
            environment: variables added to the setup's.
            model: weight version to score with instead of the sequences' own.
            repeat: number of an otherwise equal call.
        """
        jobs = []
        for checkpoint, indices in self._by_checkpoint(lambda sequence: model or sequence.rollout_version, "engine"):
            job: EngineJob = {
                "model": str(checkpoint),
                "arguments": self._setup.arguments,
                "overrides": _merged(self._setup.overrides, overrides),
                "sequences": [_sampled(self._sequences[index].job(), sampling or {}) for index in indices],
                "paths": list(paths),
                "replay": None,
                "checkpoints": {},
                "repeat": repeat,
            }
            jobs.append((job, indices))
        return self._fresh(jobs, environment)

    def replayed(self, *, in_flight: bool, prefix: str | None = None, shared: bool = False) -> Fresh:
        """Return r′ of an engine in a possible faulty state after weight updates.

        Args:
            in_flight: true if requests continue through the updates in their spans.
            prefix: weight version of the cached prefixes, or None for no cache.
            shared: true to cache only common prefixes, not whole prompts.
        """
        models = self._setup.models
        checkpoints = {version: str(path) for version in models if (path := self._setup.checkpoint(version))}
        jobs = []
        indices = [at for at, sequence in enumerate(self._sequences) if sequence.versions() <= set(checkpoints)]
        if indices:
            chosen = [self._sequences[at] for at in indices]
            used = {str(version) for sequence in chosen for version in sequence.versions()} | (
                {prefix} if prefix else set()
            )
            job: EngineJob = {
                "model": checkpoints[str(chosen[0].rollout_version)],
                "arguments": self._setup.arguments,
                "overrides": _merged(self._setup.overrides, {"enable_prefix_caching": True}),
                "sequences": [{**sequence.job(), "version": str(sequence.rollout_version)} for sequence in chosen],
                "paths": ["decode"],
                "replay": {"in_flight": in_flight, "prefix": prefix, "shared": shared},
                "checkpoints": {version: checkpoints[version] for version in sorted(used)},
                "repeat": 0,
            }
            jobs.append((job, indices))
        return self._fresh(jobs, None)

    def _fresh(self, jobs: Sequence[tuple[EngineJob, list[int]]], environment: Mapping[str, str] | None) -> Fresh:
        """Run engines and combine their answers."""
        answers: dict[str, list[Floats | None]] = {path: [None] * len(self._sequences) for path in PATHS}
        costs, errors = [], []
        variables = {**self._setup.environment, **(environment or {})}
        for job, indices in jobs:
            outcome = self._run(ENGINE, job, seconds=self._setup.seconds, environment=variables)
            if outcome.answer is None:
                errors.append(outcome.error or "no answer")
                continue
            self.settings.update(outcome.answer["settings"])
            costs.append(outcome.answer)
            self._note_speeds(outcome.answer)
            for path in PATHS:
                _put(answers[path], indices, outcome.answer.get(path) or [None] * len(indices))
        self.problems += [f"engine: {error}" for error in errors]
        decode, prefill, alone = (tuple(answers[path]) for path in PATHS)
        return Fresh(decode, prefill, alone, _cost(costs), errors[0] if errors else None)

    def require(self, *scores: Scores) -> None:
        """Raise `ConfigurationError` if neither engine nor reference scored a sequence, as for a checkpoint that
        neither can load.
        """
        if all(values is None for side in scores for values in side):
            raise ConfigurationError(f"nothing could be scored: {'; '.join(self.problems)}")

    def _note_speeds(self, answer: Mapping[str, Any]) -> None:
        for key, name in (("tokens_per_s", "decode"), ("prefill_tokens_per_s", "prefill")):
            if key in answer:
                self.speed[name] = answer[key]

    def reference(self, version: Callable[[TokenSequence], str | None], **settings: Any) -> Scores:
        """Return q of every sequence, with the weights that `version` names."""
        return self.forward(REFERENCE, {"dtype": self._setup.dtype, **settings}, version)

    def forward(
        self,
        function: str,
        settings: Mapping[str, Any],
        version: Callable[[TokenSequence], str | None],
        *,
        at_once: int | None = None,
        repeat: int = 0,
    ) -> Scores:
        """Return the log-probs of a function like the trainer's.

        Args:
            function: ``module:function``.
            settings: keyword arguments of the function.
            version: function that returns the weight version of a sequence.
            at_once: sequences per call, 1 for a few only, or None for all.
            repeat: number of an otherwise equal call.
        """
        values: list[Floats | None] = [None] * len(self._sequences)
        name = "reference" if function == REFERENCE else "trainer"
        for checkpoint, every in self._by_checkpoint(version, name):
            indices = every[:_WATCHED] if at_once == 1 else every
            job = {
                "model": str(checkpoint),
                "function": function,
                "settings": dict(settings),
                **({} if function == REFERENCE else _place(function)),
                "sequences": [self._sequences[index].job() for index in indices],
                "repeat": repeat,
                **({} if at_once is None else {"at_once": at_once}),
            }
            outcome = self._run(FORWARD, job, seconds=self._setup.seconds)
            if outcome.answer is None:
                self.problems.append(f"{name}: {outcome.error}")
                continue
            self.speed[name] = outcome.answer["tokens_per_s"]
            _put(values, indices, outcome.answer["values"])
        return tuple(values)

    def layers(self, side: Compared) -> tuple[tuple[str, float], ...]:
        """Return the relative error of a side's hidden states by layer, on a few sequences, empty if not comparable."""
        by_checkpoint = self._by_checkpoint(lambda sequence: _version(sequence, side), side)
        if not by_checkpoint or (side == "trainer" and self._setup.trainer is None):
            return ()
        checkpoint, indices = by_checkpoint[0]
        answer = self._compared(checkpoint, indices[:_WATCHED], [self._side("reference"), self._side(side)])
        return () if answer is None else tuple((str(name), float(error)) for name, error in answer["layers"])

    def breaks(self, at: int) -> Mapping[str, Any] | None:
        """Return the first operation that differs in a bit between the trainer and a fresh engine, or None if not
        compared.

        Without the trainer's function the reference takes its place.
        """
        sequence = self._sequences[at]
        ours: Compared = "reference" if self._setup.trainer is None else "trainer"
        checkpoint = self._setup.checkpoint(sequence.trainer_version)
        if checkpoint is None or checkpoint != self._setup.checkpoint(sequence.rollout_version):
            self.problems.append(f"operations: {sequence.sample_id} has no checkpoint that both sides have")
            return None
        answer = self._compared(checkpoint, [at], [self._side(ours), self._side("engine")], operations=True)
        scores = {"reference": "q", "trainer": "t_fresh"}
        return answer and {"a": scores[ours], "b": "r_fresh", "sequence": at, **answer["breaks"]}

    def _side(self, side: Compared) -> dict[str, Any]:
        setup = self._setup
        if side == "reference":
            return {"function": REFERENCE, "settings": {"dtype": setup.dtype}}
        return {} if side == "engine" else {"function": setup.trainer, "settings": dict(setup.trainer_settings)}

    def _compared(
        self, checkpoint: Path, indices: Sequence[int], sides: Sequence[Mapping[str, Any]], *, operations: bool = False
    ) -> Mapping[str, Any] | None:
        """Return the answer of the process that runs both sides on these sequences.

        The engine runs eagerly, so that its network can be watched.
        """
        setup = self._setup
        engine = {
            "arguments": setup.arguments,
            "overrides": _merged(setup.overrides, {**COLD, "enforce_eager": True}),
        }
        job = {
            "model": str(checkpoint),
            "sides": sides,
            "operations": operations,
            "sequences": [self._sequences[index].job() for index in indices],
            **({} if setup.trainer is None else _place(setup.trainer)),
            **(engine if {} in sides else {}),
        }
        outcome = self._run(LAYERS, job, seconds=setup.seconds, environment=setup.environment)
        if outcome.answer is None:
            self.problems.append(f"{'operations' if operations else 'layers'}: {outcome.error}")
        return outcome.answer

    def _by_checkpoint(self, version: Callable[[TokenSequence], str | None], who: str) -> list[tuple[Path, list[int]]]:
        indices: dict[Path, list[int]] = {}
        for index, sequence in enumerate(self._sequences):
            checkpoint = self._setup.checkpoint(version(sequence))
            if checkpoint is None:
                self.problems.append(
                    f"{who}: no checkpoint of weight version {version(sequence)!r}; pass --model "
                    f"{version(sequence)}=PATH"
                )
            else:
                indices.setdefault(checkpoint, []).append(index)
        self.problems = list(dict.fromkeys(self.problems))
        return list(indices.items())


def _version(sequence: TokenSequence, side: Compared) -> str | None:
    return sequence.rollout_version if side == "engine" else sequence.trainer_version


def _merged(configured: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, object]:
    """Return the settings with the changes. Other configured overrides of the model stay.

    >>> _merged({"hf_overrides": {"rope_theta": 5.0}}, {"hf_overrides": {"head_dtype": "float32"}, "dtype": "float32"})
    {'hf_overrides': {'rope_theta': 5.0, 'head_dtype': 'float32'}, 'dtype': 'float32'}
    """
    of_model = {**(configured.get("hf_overrides") or {}), **changes.get("hf_overrides", {})}
    return {**configured, **changes, **({"hf_overrides": of_model} if of_model else {})}


def _cost(answers: Sequence[Mapping[str, Any]]) -> Cost:
    """Return the cost over the engines of several checkpoints. Rounds are averaged by their order."""
    rounds = zip(*(answer.get("rates", ()) for answer in answers), strict=False)
    first = answers[0] if answers else {}
    rates = tuple(float(np.mean(rates)) for rates in rounds)
    return Cost(rates, first.get("kv_tokens"))


def _place(function: str) -> dict[str, object]:
    """Return the folder of a trainer's function and the state of its file. An edited file is scored again."""
    module = Path(*function.partition(":")[0].split(".")).with_suffix(".py")
    stat = module.stat() if module.is_file() else None
    return {"folder": str(Path.cwd()), "source": None if stat is None else [stat.st_size, stat.st_mtime_ns]}


def _sampled(job: SequenceJob, changes: Mapping[str, Any]) -> SequenceJob:
    sampling = {name: value for name, value in job["sampling"].items() if name not in changes}
    temperature: float = changes.get("temperature", job["temperature"])
    return {**job, "sampling": sampling, "temperature": temperature}


def _put(places: list[Floats | None], indices: Sequence[int], values: Sequence[Sequence[float | None] | None]) -> None:
    for index, value in zip(indices, values, strict=True):
        if value is not None:
            places[index] = np.array([math.nan if item is None else item for item in value], np.float64)


def aged(sequences: Sequence[TokenSequence]) -> bool:
    """Return whether some sequence was sampled and trained on by different weights."""
    return any(sequence.rollout_version != sequence.trainer_version for sequence in sequences)


def _pairs(scores: Mapping[str, Scores], path: str) -> dict[tuple[str, str], Gap | None]:
    fresh, sampled = _names(scores, path)
    wanted = [("r", "t"), ("r", fresh), (fresh, sampled), ("q", "t"), ("q_rollout", "q"), ("t", "t_fresh")]
    wanted += [("q", "t_fresh"), *(("t_fresh", f"t_fresh_{how}") for how in ("again", "eights", "alone"))]
    wanted += [("r_fresh", "r_fresh_prefill"), ("r_fresh", "r_fresh_alone")] if path == "decode" else []
    available = [(a, b) for a, b in wanted if a in scores and b in scores]
    return {(a, b): gap(a, scores[a], b, scores[b]) for a, b in available}


def _names(scores: Mapping[str, Scores], path: str) -> tuple[str, str]:
    """Return the scores of the sampled tokens by the fresh engine and the reference."""
    fresh = "r_fresh" if path == "decode" else "r_fresh_prefill"
    return fresh, "q_rollout" if "q_rollout" in scores else "q"


def _legs(pairs: Mapping[tuple[str, str], Gap | None], fresh: str, sampled: str) -> dict[Departs, Gap | None]:
    return {
        "engine_state": pairs.get(("r", fresh)),
        "engine": pairs.get((fresh, sampled)),
        "trainer": pairs.get(("q", "t")),
        "policy_age": pairs.get(("q_rollout", "q")),
    }


def _missing(scores: Mapping[str, Scores], setup: Setup) -> list[str]:
    decoded, prefilled = (any(values is not None for values in scores[name]) for name in ("r_fresh", "r_fresh_prefill"))
    unlike = "sampling params other than the temperature apply to sampled tokens only"
    words = {
        f"decode path: {UNREPEATED}": prefilled and not decoded,
        f"prefill path: {unlike}": decoded and not prefilled,
        "trainer t′: pass --trainer module:function to score with the trainer's own code": setup.trainer is None,
    }
    return [text for text, missing in words.items() if missing]


def _mean(values: Scores | None) -> float | None:
    """Return the mean log-prob over all tokens with a log-prob."""
    arrays = [array[np.isfinite(array)] for array in values or () if array is not None]
    flat = np.concatenate(arrays) if arrays else np.empty(0)
    return float(flat.mean()) if len(flat) else None
