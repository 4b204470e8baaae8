"""The patterns of docs/recording.md for the Hugging Face `Trainer` and Lightning, run as they are: `make campaign NAME=patterns`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from training import Trained

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def recorded(name: str, tmp_path: Path, capsys: Any) -> dict[int, dict[str, Any]]:
    """Step → metrics that an example records."""
    home = tmp_path / "home"
    environment = {**os.environ, "LOGPROBE_HOME": str(home), "LOGPROBE_RUN": name}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    return Trained({"home": home, "run": name}).steps(capsys)


def test_trl(tmp_path: Path, capsys: Any) -> None:
    """docs/frameworks.md: two lines."""
    found = recorded("trl_grpo", tmp_path, capsys)
    assert sorted(found) == list(range(1, 13))
    assert {values["sequences"] for values in found.values()} == {8}
    assert found[1]["reward"] is not None
    assert found[2]["update.k3_kl"] > 0


@pytest.mark.parametrize(("name", "steps"), [("hf_trainer", [1, 2, 3, 4]), ("lightning_module", [0, 1, 2, 3])])
def test_a_pattern(name: str, steps: list[int], tmp_path: Path, capsys: Any) -> None:
    """Both halves of an accumulated gradient are in one step, which has the number of the framework's own log."""
    found = recorded(name, tmp_path, capsys)
    assert sorted(found) == steps
    for values in found.values():
        assert values["sequences"] == 16
        assert values["backend.coverage"] == 1
        assert 0 < values["backend.k3_kl"] < 1e-4
    assert found[steps[-1]]["update.k3_kl"] > found[steps[0]]["update.k3_kl"]
