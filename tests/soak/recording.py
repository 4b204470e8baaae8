"""One run of the soak: a real Recorder that records steps at a steady pace until SIGTERM.

python tests/soak/recording.py HOME RUN STEPS_PER_SECOND SEQUENCES
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

from training_calls import call

from logprobe.collectors.recorder.recorder import Recorder

WEIGHTS_EVERY = 10  # steps; a run that publishes weights twenty times a second there is not


def record(recorder: Recorder, step: int, sequences: int) -> None:
    """What an asynchronous trainer and its engine know of a step."""
    known = call(step, sequences, weight_version=str(step // WEIGHTS_EVERY))
    if step % WEIGHTS_EVERY == 0:
        recorder.weights(step // WEIGHTS_EVERY, step=step, cache_cleared=True)
    sides = {name: known[name] for name in ("sample_ids", "token_ids", "cu_seqlens")}
    older = [str(max(0, step // WEIGHTS_EVERY - 1))] * sequences
    recorder.rollout(logprobs=known["rollout_logprobs"], weight_version=older, **sides)
    recorder.training(**known)
    recorder.step(step, loss=0.5, grad_norm=1.0, lr=1e-6)


def main(home: str, run: str, pace: float, sequences: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with Recorder(home, run, rank=0) as recorder:
        begun, step = time.monotonic(), 0
        while not ended.wait(max(0.0, begun + step / pace - time.monotonic())):
            record(recorder, step, sequences)
            step += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
