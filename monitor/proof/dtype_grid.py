"""`logprobe score --dtypes`: the gap of every dtype of the engine to every dtype of the trainer, on the same
weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from logprobe.monitor.proof.paired import gap
from logprobe.monitor.proof.sample import Scores, TokenSequence
from logprobe.monitor.proof.scorers.running import run_scorer
from logprobe.monitor.proof.scoring import COLD, REFERENCE, Run, Scorers, Setup


@dataclass(frozen=True, slots=True)
class DtypePair:
    """An engine in one dtype beside a trainer in another; null: one of the two did not run in it.

    Attributes:
        engine: its dtype.
        trainer: its dtype.
        k3: from the engine to the trainer.
        interval: 95 % of it, by sequence.
        abs_diff_mean: mean absolute difference of the log-probs.
        tokens_per_s: of the engine.
    """

    engine: str
    trainer: str
    k3: float | None
    interval: tuple[float, float] | None
    abs_diff_mean: float | None
    tokens_per_s: float | None

    def document(self) -> dict[str, object]:
        """JSON-ready form."""
        return {**asdict(self), "interval": self.interval and list(self.interval)}


def dtype_grid(
    sequences: Sequence[TokenSequence], setup: Setup, dtypes: Sequence[str], *, run: Run = run_scorer
) -> tuple[tuple[DtypePair, ...], tuple[str, ...]]:
    """Every pair, and what could not be measured.

    The trainer is the function of `setup`, or the reference; both sides have the weights that sampled.
    """
    problems: list[str] = []
    engines: dict[str, tuple[Scores, float | None]] = {}
    trainers: dict[str, Scores] = {}
    for dtype in dtypes:
        scorers = Scorers(sequences, setup, run)
        fresh = scorers.engine({**COLD, "dtype": dtype})
        engines[dtype] = fresh.decode, fresh.cost.tokens_per_s
        settings = {**setup.trainer_settings, "dtype": dtype}
        trainers[dtype] = scorers.forward(
            setup.trainer or REFERENCE, settings, lambda sequence: sequence.rollout_version
        )
        problems += [f"in {dtype}: {why}" for why in scorers.problems]
    return tuple(
        _pair(engine, trainer, decoded, values, speed)
        for engine, (decoded, speed) in engines.items()
        for trainer, values in trainers.items()
    ), tuple(problems)


def _pair(engine: str, trainer: str, decoded: Scores, values: Scores, speed: float | None) -> DtypePair:
    dtype_gap = gap("r_fresh", decoded, "t_fresh", values)
    if dtype_gap is None:
        return DtypePair(engine, trainer, None, None, None, speed)
    return DtypePair(engine, trainer, dtype_gap.k3, dtype_gap.interval, dtype_gap.abs_diff_mean, speed)
