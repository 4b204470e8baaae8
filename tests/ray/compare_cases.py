"""`logprobe compare --ray` and `report --ray` on a real Ray: runs in files, a worker killed in the middle. Run by `make campaign NAME=ray`."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray.cluster_utils import Cluster
from ray_workers import kill_worker
from recorded_home import SAMPLE_DATA

from logprobe.app import cli
from logprobe.app.commands import compare

FAULTS = SAMPLE_DATA / "faults"
RUNS = ("staleness", "raw_logprobs", "shifted_logprobs", "late_growth", "truncated_top_k", "sentinel_eos")


def test_a_killed_worker_changes_no_digit_of_a_comparison(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []

    def show(read: int, runs: int) -> None:
        assert runs == len(RUNS) + 1
        if read > 1 and not killed:
            killed.append(kill_worker("_from_files"))

    monkeypatch.setattr(compare, "_show", show)
    words = ["compare", *(str(FAULTS / run) for run in RUNS), "--baseline", str(FAULTS / "healthy")]
    theirs = _out(capsys, [*words, "--ray", cluster.address])
    assert killed
    assert theirs == _out(capsys, words)
    assert theirs.startswith("staleness: ")


def test_reports_are_those_of_this_machine(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["report", *(str(FAULTS / run) for run in RUNS[:3])]
    for name, more in (("theirs", ["--ray", cluster.address]), ("ours", [])):
        (tmp_path / name).mkdir()
        _out(capsys, [*words, "--html", str(tmp_path / name), *more])
    theirs, ours = (
        {file.name: file.read_text() for file in (tmp_path / name).iterdir()} for name in ("theirs", "ours")
    )
    assert sorted(theirs) == sorted(f"{run}.html" for run in RUNS[:3])
    assert theirs == ours


def _out(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    capsys.readouterr()
    assert cli.main(words) == 0
    return capsys.readouterr().out
