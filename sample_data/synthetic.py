"""SYNTHETIC records for load tests: `python sample_data/synthetic.py --home HOME --steps 100`. No engine and no model ran.

The numbers come from a seeded generator, are of plausible shape (log-normal answer lengths, exponential log-probs, a gap that
widens) and mean nothing. So that nobody takes them for a measurement, the run's name starts with ``synthetic-``, its
configuration says so, and every sequence carries the tag ``synthetic``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.recorder.recorder import Recorder

PREFIX: Final = "synthetic-"
TAGS: Final = {"synthetic": "yes"}
LOWEST: Final = -30.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much to make, and from which seed.

    Attributes:
        steps: of the run.
        sequences: per step.
        tokens: of a sequence, on average.
        gap: standard deviation of t − r in the first step.
        growth: by which factor the gap is larger in the last step.
        seed: of everything.
    """

    steps: int = 100
    sequences: int = 256
    tokens: int = 512
    gap: float = 0.01
    growth: float = 4.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's sequences, packed: arrays are flat over tokens, `cu_seqlens` says where a sequence starts."""

    step: int
    cu_seqlens: NDArray[np.int32]
    token_ids: NDArray[np.int32]
    rollout_logprobs: NDArray[np.float32]
    trainer_logprobs: NDArray[np.float32]
    current_logprobs: NDArray[np.float32]
    rewards: NDArray[np.float64]


def batches(load: Load) -> Iterator[Batch]:
    """The steps of a run, the same ones for the same `load`."""
    rng = np.random.default_rng(load.seed)
    for step in range(load.steps):
        lengths = np.maximum(1, rng.lognormal(np.log(load.tokens) - 0.125, 0.5, load.sequences)).astype(np.int32)
        total = int(lengths.sum())
        gap = load.gap * load.growth ** (step / max(load.steps - 1, 1))
        rollout = np.maximum(-rng.exponential(0.7, total), LOWEST)
        trainer = _shifted(rollout, gap, rng)
        yield Batch(
            step=step,
            cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            token_ids=rng.integers(0, 32_000, total, dtype=np.int32),
            rollout_logprobs=rollout.astype(np.float32),
            trainer_logprobs=trainer.astype(np.float32),
            current_logprobs=_shifted(trainer, 0.02, rng).astype(np.float32),
            rewards=rng.integers(0, 2, load.sequences).astype(np.float64),
        )


def write(load: Load, recorder: Recorder) -> Iterator[int]:
    """Records `load` step by step; yields the tokens of each step once they are durable.

    Raises:
        LogprobeError: the recorder lost something; a load test on half a load would be worth nothing.
    """
    recorder.config({"synthetic": True, "load": asdict(load)}, kind="run")
    for batch in batches(load):
        names = [f"{batch.step}.{index}" for index in range(load.sequences)]
        recorder.weights(batch.step, step=batch.step - 1)
        recorder.rollout(
            sample_ids=names,
            token_ids=batch.token_ids,
            logprobs=batch.rollout_logprobs,
            cu_seqlens=batch.cu_seqlens,
            weight_version=batch.step,
        )
        recorder.training(
            step=batch.step,
            sample_ids=names,
            token_ids=batch.token_ids,
            trainer_logprobs=batch.trainer_logprobs,
            current_logprobs=batch.current_logprobs,
            rewards=batch.rewards,
            weight_version=batch.step,
            tags=TAGS,
            cu_seqlens=batch.cu_seqlens,
        )
        recorder.step(batch.step, reward=float(batch.rewards.mean()))
        if not recorder.flush():  # also keeps the generator from outrunning the disk
            raise LogprobeError(f"step {batch.step} was not written completely: {recorder.health}")
        yield len(batch.token_ids)


def _shifted(logprobs: NDArray[np.float64], gap: float, rng: np.random.Generator) -> NDArray[np.float64]:
    return np.clip(logprobs + gap * rng.normal(size=len(logprobs)), LOWEST, -1e-7)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True, help="a logprobe home")
    parser.add_argument("--name", default="load", help=f"the run is called {PREFIX}NAME (default: %(default)s)")
    for field, default in asdict(Load()).items():
        parser.add_argument(f"--{field}", type=type(default), default=default, help="(default: %(default)s)")
    arguments = vars(parser.parse_args())
    home, name = arguments.pop("home"), arguments.pop("name")
    tokens = 0
    try:
        with Recorder(home, PREFIX + name, component="synthetic") as recorder:
            for number, made in enumerate(write(Load(**arguments), recorder), start=1):
                tokens += made
                print(f"\rstep {number}/{arguments['steps']}: {tokens} tokens", end="", file=sys.stderr, flush=True)
    except LogprobeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
