"""One run of the soak: a real Recorder that records steps at a steady pace until SIGTERM.

python tests/soak/recording.py HOME RUN STEPS_PER_SECOND SEQUENCES TOKENS
"""

from __future__ import annotations

import signal
import sys
import threading
import time

import numpy as np

from logprobe.collectors.recorder.recorder import Recorder

WEIGHTS_EVERY = 10  # steps; a run that publishes weights twenty times a second there is not


class Trainer:
    """Records what an asynchronous trainer and its engine know: both sides, three log-probs, lag, rewards, tags."""

    def __init__(self, recorder: Recorder, sequences: int, tokens: int) -> None:
        self._recorder = recorder
        self._shape = (sequences, tokens)
        self._rng = np.random.default_rng(7)

    def record(self, step: int) -> None:
        rng, shape = self._rng, self._shape
        rollout = -rng.exponential(0.7, shape)
        trainer = np.minimum(rollout + 0.01 * rng.normal(size=shape), -1e-9)
        current = np.minimum(trainer + 0.003 * rng.normal(size=shape), -1e-9)
        samples = [f"{step}-{index}" for index in range(shape[0])]
        ids = rng.integers(0, 30_000, shape)
        version = step // WEIGHTS_EVERY
        if step % WEIGHTS_EVERY == 0:
            self._recorder.weights(version, step=step, cache_cleared=True)
        self._recorder.rollout(
            sample_ids=samples, token_ids=ids, logprobs=rollout.astype(np.float32),
            lengths=[shape[1]] * shape[0], weight_version=[str(max(0, version - 1))] * shape[0],
        )  # fmt: skip
        self._recorder.training(
            step=step,
            sample_ids=samples,
            token_ids=ids,
            rollout_logprobs=rollout.astype(np.float32),
            trainer_logprobs=trainer.astype(np.float32),
            current_logprobs=current.astype(np.float32),
            mask=np.ones(shape, dtype=bool),
            entropy=np.full(shape, 1.5),
            rewards=rng.normal(0.5, 0.1, shape[0]),
            weight_version=str(version),
            prompt_ids=[f"{step}-{index // 4}" for index in range(shape[0])],
            tags=[{"environment": ("math", "code")[index % 2]} for index in range(shape[0])],
        )
        self._recorder.step(step, loss=0.5, grad_norm=1.0, lr=1e-6)


def main(home: str, run: str, pace: float, sequences: int, tokens: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    recorder = Recorder(home, run, rank=0)
    trainer = Trainer(recorder, sequences, tokens)
    begun, step = time.monotonic(), 0
    while not ended.wait(max(0.0, begun + step / pace - time.monotonic())):
        trainer.record(step)
        step += 1
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
