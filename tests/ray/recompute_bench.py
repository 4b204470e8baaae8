"""`logprobe recompute` on a Ray of two raylets with one processor each, over the time of this machine's threads on the same two.

    python tests/ray/recompute_bench.py [--tokens N] [--folder DIR] [--rounds N]

Exit code 1 above 1.3, or when a digit differs. Each way runs `--rounds` times, in turns; the best of each counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from recompute_home import RUN, content, make_home, spoil

from logprobe.monitor.home import Home
from logprobe.monitor.parallel.pool import LocalPool, Pool
from logprobe.monitor.parallel.ray_pool import RayPool
from logprobe.monitor.recompute.recomputing import recompute, writer_of

NODES = 2
MOST = 1.3


def main() -> int:
    """Prints times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        return _measure(Path(folder) / "home", arguments.tokens, arguments.rounds)


def _measure(path: Path, tokens: int, rounds: int) -> int:
    steps = make_home(path, tokens)
    whole = content(path)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(NODES):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ways: dict[str, Callable[[], Pool]] = {"local": lambda: LocalPool(NODES), "ray": lambda: RayPool(cluster.address)}
    best: dict[str, float] = {}
    same = True
    try:
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        ray.get([ray.remote(num_cpus=1)(_import).remote() for _ in range(4 * NODES)])  # workers outlive a command
        for _ in range(rounds):
            for name, pool in ways.items():
                seconds = _time(path, pool)
                best[name] = min(seconds, best.get(name, seconds))
                same = same and all(a.equals(b) for a, b in zip(content(path), whole, strict=True))
                print(f"{name}: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    ratio = best["ray"] / best["local"]
    print(
        f"{steps} steps, {tokens:,} tokens: local {best['local']:.1f} s, Ray {best['ray']:.1f} s, ratio {ratio:.2f} "
        f"(at most {MOST}), {'equal to the last bit' if same else 'DIGITS DIFFER'}"
    )
    return 0 if ratio <= MOST and same else 1


def _import() -> None:
    import logprobe.monitor.recompute.partition  # noqa: F401

    time.sleep(0.5)


def _time(path: Path, pool: Callable[[], Pool]) -> float:
    spoil(path)
    home = Home(path)
    with writer_of(home) as writer, pool() as workers:
        began = time.perf_counter()
        recompute(home, writer, RUN, steps=(None, None), pool=workers, show=lambda _: None)
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
