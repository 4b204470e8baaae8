"""`logprobe recompute` on a Ray of two raylets with one processor each, over the time of this machine's threads on the same two.

    python tests/ray/recompute_bench.py [--tokens N] [--folder DIR] [--rounds N] [--kill-node]

Exit code 1 above 1.3, or when a digit differs. Each way runs `--rounds` times, in turns; the best of each counts. With `--kill-node` the
last run on Ray, which is not among those that are timed, loses one of its two nodes when half of the steps are written.
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
from logprobe.monitor.recompute.recomputing import Progress, recompute, writer_of

NODES = 2
MOST = 1.3


def main() -> int:
    """Prints times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kill-node", action="store_true", help="once more, with a node removed in the middle")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        return _measure(Path(folder) / "home", arguments.tokens, arguments.rounds, kill_node=arguments.kill_node)


def _measure(path: Path, tokens: int, rounds: int, *, kill_node: bool) -> int:
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
                same = same and content(path) == whole
                print(f"{name}: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
        if kill_node:
            same = _lose_a_node(path, cluster, steps) and content(path) == whole and same
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


def _time(path: Path, pool: Callable[[], Pool], show: Callable[[Progress], None] = lambda _: None) -> float:
    spoil(path)
    home = Home(path)
    with writer_of(home) as writer, pool() as workers:
        began = time.perf_counter()
        done = recompute(home, writer, RUN, steps=(None, None), pool=workers, show=show)
        assert (done.steps, done.kept) == (done.of_steps, {}), "not every step was recomputed"
        return time.perf_counter() - began


def _lose_a_node(path: Path, cluster: Cluster, steps: int) -> bool:
    """Recomputes once more, and removes a node without warning when half of the steps are written; whether that was in the middle."""
    lost: list[int] = []

    def show(progress: Progress) -> None:
        if not lost and 2 * progress.steps >= steps:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            lost.append(progress.steps)

    seconds = _time(path, lambda: RayPool(cluster.address), show)
    print(
        f"ray, a node removed after {lost} of {steps} steps: {seconds:.1f} s, load {os.getloadavg()[0]:.1f}",
        file=sys.stderr,
        flush=True,
    )
    return bool(lost) and lost[0] < steps


if __name__ == "__main__":
    sys.exit(main())
