"""Fits the zoo's noise model to recordings of a real engine: `PYTHONPATH=tests:tests/support python -m zoo.fit [NAME=FOLDER …] > tests/zoo/recorded_noise.json`.

Without arguments: the shipped recordings of vLLM 0.32 on a CPU in bfloat16, with a float32 trainer (`low_precision`), a bfloat16 one
(`batch_variance`) and a mixture of experts (`moe_routing`). Only tokens of the trainer's own weights are looked at.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from recorded_home import ingest_recorded

from logprobe.monitor.home import Home
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.measures import clustered
from logprobe.monitor.judging.tokens import Tokens
from logprobe.monitor.store.store import Store

NAMES = ("low_precision", "batch_variance", "moe_routing")
LOG_NORMAL_SPREAD = np.pi**2 / 8  # variance of log|x| of a standard normal
ODD = 20.0  # times the usual size: further than a normal tail goes
LEAST = 0.01  # of 1 − p: closer to certainty float32 rounding is as large


def fitted(tokens: Tokens) -> dict[str, float]:
    """Parameters of `zoo.rollouts.Noise` by moments of log|d| over what the softmax does by itself."""
    rest = -np.expm1(tokens.r)
    usable = (rest > LEAST) & (np.abs(tokens.d) > 1e-7) & ~(tokens.lag > 0)
    size = np.log(np.abs(tokens.d[usable]) / (np.sqrt(2) * rest[usable]))
    drivers = np.stack([np.ones(len(size)), np.log(rest[usable]), np.log1p(tokens.place[usable])], axis=1)
    slopes, *_ = np.linalg.lstsq(drivers, size, rcond=None)
    left = size - drivers @ slopes
    odd = left > np.median(left) + np.log(ODD)
    spread = float(np.var(left[~odd])) - LOG_NORMAL_SPREAD
    found = {"tail": np.sqrt(max(spread, 0.0)), "rerouted": odd.mean(), "length": slopes[2], "peaked": slopes[1]}
    return {name: round(float(value), 4) for name, value in found.items()} | {
        "k3": float(f"{tokens.k3.mean():.3g}"),
        "ratio_z": round(clustered(np.expm1(tokens.d), tokens.sequence).z, 2),
        "tokens": int(usable.sum()),
    }


def main() -> None:
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        ingest_recorded(home, *(named.values() or [f"faults/{name}" for name in NAMES]))
        with Store.open(Home(home)) as store:
            runs = named or {name: f"faults/{name}" for name in NAMES}
            print(json.dumps({n: fitted(gather(store, run).tokens) for n, run in runs.items()}, indent=2))


if __name__ == "__main__":
    main()
