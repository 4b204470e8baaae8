"""`logprobe run`: hooks reach the command and its children, in real processes; without it they are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spool_contents import by_sample, health_events

from logprobe.app import doctor
from logprobe.app.cli import main
from logprobe.collectors.integrations import frameworks

SITE = frameworks.SITE
# AReaL's module by name and signature; numpy arrays would not do, so the child needs torch.
ACTOR = """
class PPOActor:
    def __init__(self, engine): self.engine = engine
    def compute_advantages(self, data): return data
"""
CHILD = """
import types, torch
from areal.trainer.ppo.actor import PPOActor
engine = types.SimpleNamespace(is_data_parallel_head=lambda: True, get_version=lambda: 4, data_parallel_rank=0)
ones = torch.ones(1, 3)
PPOActor(engine).compute_advantages([{"input_ids": ones.long() * 7, "loss_mask": ones, "logprobs": -ones, "prox_logp": -ones}])
"""
PARENT = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {CHILD!r}]))"


@pytest.fixture
def framework(tmp_path: Path) -> Path:
    """A folder with a package `areal`, and a `sitecustomize` of the environment."""
    folder = tmp_path / "packages"
    (folder / "areal/trainer/ppo").mkdir(parents=True)
    for part in ("areal", "areal/trainer", "areal/trainer/ppo"):
        (folder / part / "__init__.py").touch()
    (folder / "areal/trainer/ppo/actor.py").write_text(ACTOR)
    (folder / "sitecustomize.py").write_text("import os\nos.environ['HIDDEN_RAN'] = 'yes'\n")
    return folder


def start(framework: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(framework), **variables}
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=200)


def test_children_of_the_command_are_recorded(framework: Path, home: Path) -> None:
    cli = (sys.executable, "-m", "logprobe.app.cli", "run", "--home", str(home), "--run", "run", "--")
    done = start(framework, *cli, sys.executable, "-c", PARENT)
    assert done.returncode == 0, done.stderr
    (row,) = by_sample(home, "training").values()
    assert (row["step"], row["token_ids"], row["trainer_logprobs"]) == (4, [7, 7, 7], [-1.0, -1.0, -1.0])
    assert "is recorded" in health_events(home)["self_test"][0]["message"]
    ended = start(
        framework, *cli, sys.executable, "-c", "import os, sys; sys.exit(3 if os.environ['HIDDEN_RAN'] else 1)"
    )
    assert ended.returncode == 3


def test_without_a_home_nothing_of_logprobe_is_loaded(framework: Path, home: Path) -> None:
    words = "import os, sys; print(os.environ['HIDDEN_RAN'], any(m.startswith('logprobe.') for m in sys.modules))"
    path = f"{SITE}{os.pathsep}{framework}"
    for loaded, variables in (
        (False, {}),
        (True, {"LOGPROBE_HOME": str(home)}),
    ):
        done = start(framework, sys.executable, "-c", words, PYTHONPATH=path, **variables)
        assert done.stdout == f"yes {loaded}\n", done.stderr


def test_a_command_that_is_none_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--home", str(home)]) != 0
    assert "no command" in capsys.readouterr().err
    assert main(["run", "--home", str(home), "--", "no-such-program"]) != 0
    assert "'no-such-program' is not a program" in capsys.readouterr().err


def test_doctor_says_how_each_framework_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"trl": "1.16.0", "verl": "0.10.0", "pipelinerl": "0.1", "sglang": "0.5.23"}
    monkeypatch.setattr(
        doctor, "_installed_as", lambda names: next(((n, installed[n]) for n in names if n in installed), None)
    )
    points = {"verl.plugins": [], "sglang.srt.plugins": [type("Point", (), {"name": "logprobe"})]}
    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda group: points[group])
    said = {text.split(":")[0]: (level, text, remedy) for level, text, remedy in doctor.framework_lines({})}
    assert set(said) == {"TRL 1.16.0", "verl 0.10.0", "PipelineRL 0.1", "SGLang 0.5.23"}
    assert "logprobe run" in said["TRL 1.16.0"][2]
    assert said["verl 0.10.0"][0] == "problem"
    assert "not a verified version (0.9)" in said["verl 0.10.0"][1]
    assert said["PipelineRL 0.1"][2] == "start it with `logprobe run -- …`"
    live = {
        text.split(":")[0]: (level, text)
        for level, text, _ in doctor.framework_lines({"LOGPROBE_HOME": "/x", "PYTHONPATH": SITE})
    }
    assert live["SGLang 0.5.23"] == ("ok", "SGLang 0.5.23: live: it loads logprobe's plugin by itself")
    assert live["TRL 1.16.0"][0] == "ok"
    kept_out = {text.split(":")[0]: level for level, text, _ in doctor.framework_lines({"SGLANG_PLUGINS": "other"})}
    assert kept_out["SGLang 0.5.23"] == "problem"
