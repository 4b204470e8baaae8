"""A small labelled-synthetic run: seeded arrays through the real Recorder. For tests of what lies behind it, never shown to users."""

from __future__ import annotations

import time

import numpy as np

from logprobe.collectors.recorder.recorder import Recorder

SEQUENCES, TOKENS = 8, 24


class SyntheticRun:
    """Records steps whose mismatch grows after step `onset`; `full` also records what an update pair, lag and entropy need."""

    def __init__(self, recorder: Recorder, *, full: bool = True, onset: int = 20, seed: int = 7) -> None:
        self._recorder = recorder
        self._full = full
        self._onset = onset
        self._rng = np.random.default_rng(seed)
        self.next_step = 0

    def record(self, steps: int, *, seconds_apart: float = 0.0) -> None:
        """The next `steps` steps; flushed, so that they lie in the spool on return."""
        for _ in range(steps):
            self._step(self.next_step)
            self.next_step += 1
            if seconds_apart:
                assert self._recorder.flush(120)
                time.sleep(seconds_apart)
        assert self._recorder.flush(120)

    def _step(self, step: int) -> None:
        rng, shape = self._rng, (SEQUENCES, TOKENS)
        gap = 0.01 * (1 + max(0, step - self._onset) / 4)
        rollout = -rng.exponential(1.0, shape)
        trainer = np.minimum(rollout + gap * rng.normal(size=shape), -1e-9)
        more = {}
        if self._full:
            more = {
                "current_logprobs": np.minimum(trainer + 0.003 * rng.normal(size=shape), -1e-9),
                "entropy": np.full(shape, 2.0 * 0.99**step),
                "weight_version": str(step),
            }
            self._recorder.weights(step, step=step, cache_cleared=True)
        samples = [f"{step}-{index}" for index in range(SEQUENCES)]
        tokens = rng.integers(0, 100, shape)
        if self._full:
            self._recorder.rollout(
                sample_ids=samples, token_ids=tokens, logprobs=rollout.astype(np.float32),
                lengths=[TOKENS] * SEQUENCES, weight_version=[str(max(0, step - 1))] * SEQUENCES,
            )  # fmt: skip
        self._recorder.training(
            step=step,
            sample_ids=samples,
            token_ids=tokens,
            rollout_logprobs=rollout.astype(np.float32),
            trainer_logprobs=trainer.astype(np.float32),
            mask=np.ones(shape, dtype=bool),
            rewards=rng.normal(min(1.0, step / 50), 0.1, SEQUENCES),
            **more,
        )
