"""PipelineRL's own trainer, recorded through `logprobe run` alone: `make campaign NAME=pipelinerl`.

Its loop, loss, preparation of samples, weight updates and logging are its own; GPUs are replaced (see `pipelinerl_program.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training import Trained, agree
from training import train as train_with

from logprobe.app.commands.run import environment

PROGRAM = Path(__file__).with_name("pipelinerl_program.py")
SOURCE = Path(sys.prefix) / "src"
# PipelineRL's name → that of its view. It averages the tokens of each sequence, then sequences.
SAME = {name: name for name in ("rl/kl_new_old", "rl/mean_abs_log_ratio_new_old", "rl/ratio_new_old", "rl/ess")}


@pytest.fixture
def train(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Trains below `logprobe run`, or without it."""

    def run(name: str, *, watch: bool = True, **options: Any) -> Trained:
        with monkeypatch.context() as patch:
            for key, value in environment(os.environ, str(tmp_path / "home"), None).items() if watch else ():
                patch.setenv(key, value)
            return train_with(PROGRAM, tmp_path, model, name, plugin=watch, source=str(SOURCE), **options)

    return run


def test_every_number_that_pipelinerl_logs(train: Any, capsys: Any) -> None:
    options = {"engine": "bfloat16", "temperature": 0.8}
    bare, seen = train("bare", watch=False, **options), train("seen", **options)
    timed = ("throughput/", "stats/time")
    plain = [
        [{k: v for k, v in step.items() if not k.startswith(timed)} for step in r["history"]] for r in (bare, seen)
    ]
    assert plain[0] == plain[1]
    assert (bare["weights"], bare["random_state"]) == (seen["weights"], seen["random_state"])
    ours = seen.steps(capsys)
    assert sorted(ours) == [1, 2, 3]
    assert agree(ours, seen["history"], {"rl/reward": "reward"}) == 3
    assert agree(seen.peer(capsys, "pipelinerl"), seen["history"], SAME) >= 9
    for values in ours.values():
        assert values["sequences"] == 8
        assert values["backend.coverage"] == 1
        assert values["backend.k3_kl"] > 1e-7
    assert "pipelinerl" in seen.logprobe(capsys, "doctor")


def test_an_engine_that_missed_updates_is_found(train: Any, capsys: Any) -> None:
    healthy = train("healthy", steps=12)
    stale = train("stale", steps=12, syncs=2)
    assert max(values["backend.k3_kl"] for values in healthy.steps(capsys).values()) < 1e-9
    assert healthy.diagnosed(capsys)["layer"] == "none"
    ours = stale.steps(capsys)
    assert ours[1]["backend.k3_kl"] < 1e-9
    assert ours[12]["backend.k3_kl"] > 1e-4
    found = stale.diagnosed(capsys)
    assert found["layer"] != "none"
    assert found["correction"]["advice"] == "do_not_enable"


def test_its_launcher_hands_the_hooks_on(tmp_path: Path) -> None:
    """`pipelinerl.launch` replaces `PYTHONPATH` before it starts the trainer: the first thing that its `main` makes brings our folder back."""
    words = (
        "import sys, os, types, contextlib\n"
        "from pipelinerl.world import WorldMap\n"
        "os.environ['PYTHONPATH'] = '/home/toolkit/TapeAgents'  # as the launcher does\n"
        "with contextlib.suppress(Exception): WorldMap(types.SimpleNamespace())\n"
        "print(os.environ['PYTHONPATH'])"
    )
    paths = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    variables = environment({**os.environ, "PYTHONPATH": paths}, str(tmp_path / "home"), "run")
    done = subprocess.run([sys.executable, "-c", words], env=variables, check=True, capture_output=True, text=True)
    first, _, rest = done.stdout.strip().splitlines()[-1].partition(os.pathsep)
    assert (Path(first).parts[-2:], rest) == (("integrations", "site"), "/home/toolkit/TapeAgents")
