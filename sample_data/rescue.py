"""A run that loses what it has learned, and the same run with logprobe: the policy of `rescue_policy.py`, trained for real.

    python sample_data/rescue.py --overwrite    # records rescue-without: nothing corrects it; under a minute
    python sample_data/rescue.py --home DIR     # trains `rescue` in a home that a service watches: what `logprobe demo` does

From step `ONSET` on, batches are one version older every `EVERY` steps, as when sampling falls behind training. Both runs have the same
seed and are the same until a correction applies, but for the last digits, which depend on numpy's linear algebra.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# One thread: the matrices are small, and a service works beside it.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")

import numpy as np  # reads its number of threads when it is imported
from rescue_policy import ANSWERS, LEARNING_RATE, PROMPTS, Batch, Training
from tools.exporting import export_run

from logprobe.collectors.correction import correct
from logprobe.collectors.errors import LogprobeError, ServiceUnavailableError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.switch import CorrectionSwitch
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
_FLUSH_SECONDS: Final = 60.0
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
_STORY: Final = (
    "A healthy run, one version off-policy, whose batches get one version older every 5 steps from step 230 on (objective layer). "
    "Nothing corrects it: K3 explodes and the policy forgets what it has learned. `rescue` is the same run with logprobe armed."
)


def lag_of(step: int) -> int:
    """Versions that a batch is behind: one, as in training that samples one step ahead; more from `ONSET` on."""
    return 1 + max(0, (step - ONSET) // EVERY + 1)


def train(recorder: Recorder, switch: CorrectionSwitch | None, steps: Iterable[int]) -> None:
    """One update after the other; with `switch`, corrected as it says."""
    recorder.config(_ENGINE, kind="engine_config")
    recorder.config(_TRAINER, kind="trainer_config")
    training = Training(SEED)
    training.update(training.batch(0))  # weights 1; from here on batches come from older ones
    for step in steps:
        batch = training.batch(lag_of(step))
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


def record(folder: Path, *, overwrite: bool) -> None:
    """Trains the twin without logprobe, and exports it to `folder`."""
    about = {
        "command": "python sample_data/rescue.py",
        "seed": SEED,
        "versions": {"python": sys.version.split()[0], "numpy": np.__version__},
        "measured": True,
        "story": _STORY,
        "layer": "objective",
        "onset_step": ONSET,
    }
    with tempfile.TemporaryDirectory() as home:
        with Recorder(home, TWIN) as recorder:
            train(recorder, None, range(1, STEPS))
            if not recorder.flush(_FLUSH_SECONDS):
                raise LogprobeError(
                    f"something was lost on the way to {home}, so nothing is exported: {recorder.health}"
                )
        export_run(Path(home), TWIN, folder, about=about, overwrite=overwrite)


def live(home: Path, speed: float) -> None:
    """Trains in a home that a service watches: what leads up to the trouble at once, the rest at `speed` steps per second."""
    with Recorder(home, RUN) as recorder, CorrectionSwitch(home, RUN, poll_seconds=_POLL_SECONDS) as switch:
        train(recorder, switch, _paced(recorder, home, speed))


def _paced(recorder: Recorder, home: Path, speed: float) -> Iterator[int]:
    """Steps at their times, and never more than `PATIENCE` ahead of the judgement: on a busy machine the demo waits, other trainers do not."""
    first = ONSET - LEAD
    yield from range(1, first)
    recorder.flush(_FLUSH_SECONDS)
    judged, due = 0, 0.0
    for step in range(first, STEPS):
        if judged < max(step - PATIENCE, first - 1):
            judged = _await_judged(home, max(step - PATIENCE, first - 1))
        time.sleep(max(0.0, due - time.monotonic()))
        due = time.monotonic() + 1 / speed
        yield step


def _await_judged(home: Path, step: int) -> int:
    """The newest step that the service has judged, once that is `step` or later."""
    while True:
        with suppress(ServiceUnavailableError), connect(Home(home)) as reader:
            rows = reader.query("SELECT judged_step FROM judged_steps WHERE run = $run", {"run": RUN}).to_pylist()
            judged = max((row["judged_step"] or 0 for row in rows), default=0)
            if judged >= step:
                return int(judged)
        time.sleep(_POLL_SECONDS)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="train live in this home, instead of recording the twin")
    parser.add_argument("--speed", type=float, default=2.0, help="live steps per second (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="where the twin's folder goes (default: here)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a twin exported before")
    arguments = parser.parse_args()
    try:
        if arguments.home is None:
            record(arguments.out / TWIN, overwrite=arguments.overwrite)
        else:
            live(arguments.home, arguments.speed)
    except LogprobeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
