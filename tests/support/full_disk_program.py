"""Records onto a disk that is full and later is not; run in a mount namespace of its own. Prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from logprobe.collectors import Recorder

LENGTHS = (300, 0, 700, 41)


def arrays(step: int) -> dict:
    random = np.random.default_rng(step)
    shape = (len(LENGTHS), max(LENGTHS))
    return {
        "token_ids": random.integers(0, 50_000, shape),
        "rollout_logprobs": -random.random(shape, np.float32),
        "trainer_logprobs": -random.random(shape, np.float32),
        "mask": np.arange(shape[1]) < np.array(LENGTHS)[:, None],
    }


def fill(path: Path) -> None:
    """Write until nothing goes any more."""
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue


def record(recorder: Recorder, step: int) -> bool:
    names = [f"{step}/{row}" for row in range(len(LENGTHS))]
    rollout = recorder.rollout(sample_ids=[f"{step}/r"], token_ids=[[1, 2]], logprobs=[[-1.0, -2.0]])
    return rollout and recorder.training(step=step, sample_ids=names, rewards=[1.0, 0.0, None, 1.0], **arrays(step))


def temporary(home: Path) -> list[str]:
    return [path.name for path in (home / "spool").rglob("*.tmp")]


def main(home: Path) -> dict:
    home.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", home], check=True)
    filler = home / "filler"
    seen: dict = {}
    recorder = Recorder(home, "run", flush_interval=0.05)
    seen["flush while there was room"] = recorder.flush()
    fill(filler)
    for step in (1, 2, 3):
        seen[f"accepted {step}"] = record(recorder, step)
        seen[f"flush {step}"] = recorder.flush()
    seen["health while full"] = recorder.health
    deadline = time.monotonic() + 60
    while temporary(home) and time.monotonic() < deadline:  # there is one while a further attempt fails
        time.sleep(0.01)
    seen["temporary files while full"] = temporary(home)
    filler.unlink()
    deadline = time.monotonic() + 60
    while recorder.health["disk"] != "ok" and time.monotonic() < deadline:
        time.sleep(0.05)
    seen["accepted 4"] = record(recorder, 4)
    seen["flush 4"] = recorder.flush()
    seen["close"] = recorder.close()
    seen["health"] = recorder.health
    # The mount ends with this namespace; hand over what lies on it.
    subprocess.run(["cp", "-a", home / "spool", os.environ["COPY_TO"]], check=True)
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
