"""`logprobe recompute --ray` on a real Ray: a worker and a node are killed in the middle, and no digit changes. Run by `make campaign NAME=ray`."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from ray_workers import kill_worker
from recompute_home import LENGTH, RUN, SEQUENCES, content, make_home, spoil

from logprobe.app import cli
from logprobe.monitor.home import Home
from logprobe.monitor.parallel.ray_pool import RayPool
from logprobe.monitor.recompute import recomputing
from logprobe.monitor.recompute.recomputing import Progress, recompute, writer_of

STEPS = 24
KILLS = (2, 8)  # steps done when a worker, and then a node, is killed


def test_a_killed_worker_and_a_lost_node_change_no_digit(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputing, "TOKENS_PER_PARTITION", SEQUENCES * LENGTH)
    path = tmp_path / "home"
    assert make_home(path, STEPS * SEQUENCES * LENGTH) == STEPS
    whole = spoil(path)
    assert content(path)[1] != whole[1]
    killed: list[int] = []

    def show(progress: Progress) -> None:
        if len(killed) < 1 and progress.steps >= KILLS[0]:
            killed.append(kill_worker("compute"))
        elif len(killed) < len(KILLS) and progress.steps >= KILLS[1]:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            killed.append(0)

    with writer_of(Home(path)) as writer, RayPool(cluster.address) as pool:
        done = recompute(Home(path), writer, RUN, steps=(None, None), pool=pool, show=show)
    assert len(killed) == len(KILLS)
    assert (done.steps, done.kept) == (STEPS, {})
    assert content(path) == whole


def test_the_command_on_a_cluster(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "home"
    steps = make_home(path, 2 * SEQUENCES * LENGTH)
    whole = spoil(path)
    capsys.readouterr()
    assert cli.main(["recompute", RUN, "--home", str(path), "--ray", cluster.address]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        f"{steps} steps of {RUN} recomputed from {2 * SEQUENCES * LENGTH:,} tokens of {2 * SEQUENCES} sequences"
    )
    assert content(path) == whole
