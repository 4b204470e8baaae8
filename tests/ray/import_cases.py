"""`logprobe import --ray` on a real Ray: a worker and a node are killed in the middle, and the ledger is the same to the last bit.

Run by `make campaign NAME=ray`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from importing_files import nemo_row, write_lines
from ray.cluster_utils import Cluster
from ray_workers import kill_worker

from logprobe.app import cli
from logprobe.app.commands import import_
from logprobe.monitor.home import Home
from logprobe.monitor.importers import importing
from logprobe.monitor.importers.importing import ImportReport
from logprobe.monitor.store.store import Store

FILES = 40
ROWS = 300  # two pieces
KILLS = (3, 12)  # files imported when a worker, and then a node, is killed


def test_a_killed_worker_and_a_lost_node_change_no_bit(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(FILES):
        write_lines(tmp_path / f"in/train_data_step{step}.jsonl", [nemo_row(number) for number in range(ROWS)])
    monkeypatch.setattr(importing, "BATCH_FILES", 1)
    killed: list[int] = []

    def progress(report: ImportReport, _: str, files: int) -> None:
        assert files == FILES
        if len(killed) < 1 and report.files >= KILLS[0]:
            killed.append(kill_worker("prepare"))
        elif len(killed) < len(KILLS) and report.files >= KILLS[1]:
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
            killed.append(0)

    monkeypatch.setattr(import_, "_progress", progress)
    assert _imported(tmp_path, "theirs", capsys, "--ray", cluster.address) == FILES * ROWS
    assert len(killed) == len(KILLS)
    monkeypatch.undo()
    assert _imported(tmp_path, "ours", capsys) == FILES * ROWS
    assert _content(tmp_path / "theirs") == _content(tmp_path / "ours")
    assert _imported(tmp_path, "theirs", capsys, "--ray", cluster.address) == 0


def _imported(folder: Path, home: str, capsys: pytest.CaptureFixture[str], *more: str) -> int:
    """New units."""
    capsys.readouterr()
    given = ["import", "nemo-rl", str(folder / "in"), "--run=r", f"--home={folder / home}", "--json"]
    assert cli.main([*given, *more]) == 0
    return int(json.loads(capsys.readouterr().out)["units"])


def _content(home: Path) -> tuple[int, list[str]]:
    """How many segments there are, and the ids, with checksums, of those with rows; those of markers hold the time."""
    with Store.open(Home(home), read_only=True) as store:
        found = store.query("SELECT segment_id, kind FROM segments ORDER BY segment_id").to_pylist()
    return len(found), [row["segment_id"] for row in found if row["kind"] != "health"]
