"""The scripts of docs/examples, run as the documentation says, and what they record."""

import json
import os
import re
import subprocess
import sys

import pytest

from logprobe.app.cli import main
from logprobe.monitor.reader import open_reader

# Their packages are not in the development environment: `make campaign NAME=patterns` runs them.
WITH_FRAMEWORKS = {"hf_trainer.py", "lightning_module.py", "trl_grpo.py"}


def recorded(repository, tmp_path, capsys, name):
    """Step → metrics and scalars that a script records."""
    home = tmp_path / "home"
    environment = {**os.environ, "LOGPROBE_HOME": str(home), "LOGPROBE_RUN": "r"}
    script = repository / "docs" / "examples" / name
    done = subprocess.run([sys.executable, str(script)], env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert main(["up", "--once", "--home", str(home)]) == 0
    capsys.readouterr()
    assert main(["show", "--metrics", "r", "--json", "--home", str(home)]) == 0
    found = {step["step"]: step["metrics"] for step in json.loads(capsys.readouterr().out)["steps"]}
    with open_reader(home) as reader:
        for row in reader.query("SELECT step, name, value FROM scalars").to_pylist():
            found[row["step"]][f"scalar {row['name']}"] = row["value"]
    return found


def test_a_plain_torch_loop(repository, tmp_path, capsys):
    found = recorded(repository, tmp_path, capsys, "plain_torch.py")
    assert sorted(found) == list(range(6))
    for step, metrics in found.items():
        assert metrics["backend.k3_kl"] == pytest.approx(metrics["scalar my_k3"], rel=1e-6), step
        assert metrics["backend.k3_kl"] > 1e-7
        assert metrics["backend.coverage"] == 1
        assert metrics["weight_lag_mean"] == 0
        assert metrics["entropy"] > 0
        assert metrics["update.k3_kl"] == 0 if step % 2 == 0 else metrics["update.k3_kl"] > 0


def test_every_example_is_documented_and_run(repository):
    scripts = {file.name for file in (repository / "docs" / "examples").glob("*.py")}
    pages = "".join(file.read_text() for file in (repository / "docs").glob("*.md"))
    assert scripts == set(re.findall(r"\]\(examples/(\w+\.py)\)", pages))
    assert scripts == WITH_FRAMEWORKS | {"plain_torch.py", "raw_tokens.py"}  # the last one: test_raw_layout.py
