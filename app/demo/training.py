"""The run of the demo: real training that collapses without a correction.

From step `ONSET` on, batches become one version older every `EVERY` steps, as in asynchronous training that falls
behind. Two runs with the same seed are equal until a correction applies, except for rounding in numpy's linear
algebra.

    python -m logprobe.app.demo.training --home DIR [--speed STEPS_PER_S]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

# One thread: the matrices are small, and a service works beside it.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np  # reads its number of threads when it is imported

from logprobe.app.demo.policy import ANSWERS, LEARNING_RATE, PROMPTS, Batch, Training
from logprobe.collectors.correction import correct
from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.collectors.plain_text import complain
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor import judgement
from logprobe.monitor.home import Home
from logprobe.monitor.reader import connect

RUN: Final = "rescue"
TWIN: Final = "rescue-without"
SEED: Final = 0
STEPS: Final = 520
ONSET: Final = 230
EVERY: Final = 5  # steps from one version of lag to the next
LEAD: Final = 20  # steps before the onset that are shown as they are made; earlier ones are made at once
PATIENCE: Final = 10  # steps that the demo is ahead of the judgement at most
FLUSH_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2
_ENGINE: Final = {"summary": {"dtype": "bfloat16"}}
_SAMPLING: Final = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
_TRAINER: Final = {"dtype": "float32", "learning_rate": LEARNING_RATE, "prompts": PROMPTS, "answers": ANSWERS}


def lag_of(step: int) -> int:
    """Return the lag of a batch in versions: 1 before `ONSET`, then growing."""
    return 1 + max(0, (step - ONSET) // EVERY + 1)


def train(recorder: Recorder, switch: CorrectionSwitch | None, steps: Iterable[int]) -> None:
    """Train step by step, corrected by `switch` if one is given."""
    recorder.config(_ENGINE, kind="engine_config")
    recorder.config(_TRAINER, kind="trainer_config")
    training = Training(SEED)
    training.update(training.batch(0))  # weights 1; from here on batches come from older ones
    sampling = -1
    for step in steps:
        recorder.weights(step, step=step)
        batch = training.batch(lag_of(step))
        if step - batch.lag != sampling:
            sampling = step - batch.lag
            recorder.weights(sampling, step=step, source="engine")
        config = None if switch is None else switch.current(step)
        correction = None
        if config is not None:
            everywhere = np.ones_like(batch.rollout)
            correction = correct(config, batch.rollout, batch.trainer, everywhere, advantages=batch.advantages)
        norm = training.update(batch, None if correction is None else correction.weights * correction.mask)
        _record(recorder, step, batch)
        recorder.step(step, grad_norm=norm, learning_rate=LEARNING_RATE, correction=correction)


def _record(recorder: Recorder, step: int, batch: Batch) -> None:
    names = [f"{step}-{index}" for index in range(len(batch.answers))]
    tokens = list(batch.answers)
    recorder.rollout(
        sample_ids=names,
        token_ids=tokens,
        logprobs=list(batch.rollout),
        weight_version=step - batch.lag,
        sampling=_SAMPLING,
    )
    recorder.training(
        step=step,
        sample_ids=names,
        token_ids=tokens,
        trainer_logprobs=list(batch.trainer),
        weight_version=step,
        advantages=batch.advantages,
        rewards=batch.rewards,
        prompt_ids=[f"{step}-{index // ANSWERS}" for index in range(len(names))],
    )


def live(home: Path, speed: float) -> None:
    """Train in a data directory that a service watches. Steps before the onset run at full speed, later ones at
    `speed` steps/s.
    """
    with Recorder(home, RUN) as recorder, CorrectionSwitch(home, RUN, poll_seconds=_POLL_SECONDS) as switch:
        train(recorder, switch, _paced(recorder, home, speed))


def _paced(recorder: Recorder, home: Path, speed: float) -> Iterator[int]:
    """Yield steps at their times, and never more than `PATIENCE` ahead of the judgement.

    On a busy machine, the demo waits, unlike other trainers.
    """
    first = ONSET - LEAD
    yield from range(1, first)
    recorder.flush(FLUSH_SECONDS)
    judged, due = 0, 0.0
    for step in range(first, STEPS):
        if judged < max(step - PATIENCE, first - 1):
            judged = _await_judged(home, max(step - PATIENCE, first - 1))
        time.sleep(max(0.0, due - time.monotonic()))
        due = time.monotonic() + 1 / speed
        yield step


def _await_judged(home: Path, step: int) -> int:
    """Return the newest step that the service has judged, once that is `step` or later."""
    while True:
        with suppress(ServiceUnavailableError), connect(Home(home)) as reader:
            judged = judgement.read(reader, [RUN], datetime.now(UTC))[RUN].step or 0
            if judged >= step:
                return judged
        time.sleep(_POLL_SECONDS)


def main() -> int:
    """Run the command line. Return the exit code."""
    parser = argparse.ArgumentParser(description="Train the demo's run in a data directory that a service watches.")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--speed", type=float, default=2.0, help="steps per second (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        live(arguments.home, arguments.speed)
    except LogprobeError as error:
        complain(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
