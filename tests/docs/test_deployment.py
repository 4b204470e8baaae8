"""What docs/examples deploys and starts: manifests against Kubernetes' own schemas, units as systemd reads them, commands as logprobe's parser does."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import system_tools
import yaml
from processes import understood

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
MANIFESTS = sorted(EXAMPLES.glob("*.yaml"))
UNITS = sorted(EXAMPLES.glob("*.service"))
SCRIPTS = sorted(EXAMPLES.glob("*.sh"))


def documents(file: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(file.read_text(encoding="utf-8")))


def containers(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    spec = document["spec"].get("template", document)["spec"]
    yield from (*spec.get("initContainers", ()), *spec.get("containers", ()))


@pytest.mark.parametrize("file", MANIFESTS, ids=lambda file: file.name)
def test_manifests_are_what_kubernetes_takes(file: Path) -> None:
    for document in documents(file):
        kubernetes_validate.validate(document, "1.30", strict=True)
        wrong = document | {"spec": document["spec"] | {"nonsense": 1}}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, "1.30", strict=True)


@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.name)
def test_units_are_what_systemd_takes(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = system_tools.path("systemd-analyze")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def complaints(unit: Path) -> str:
        manager = "--system" if "multi-user.target" in unit.read_text() else "--user"
        done = subprocess.run([program, "verify", manager, unit], capture_output=True, text=True, check=False)
        return done.stderr if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    assert complaints(file) == ""
    (broken := tmp_path / file.name).write_text(file.read_text().replace("Restart=", "Restrat="))
    assert "Restrat" in complaints(broken), "it looks at what is written"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each `logprobe …` of the examples, and where."""
    for file in MANIFESTS:
        for document in documents(file):
            for container in containers(document) if "containers" in str(document) else ():
                words = [str(word) for word in (*container.get("command", ()), *container.get("args", ()))]
                if "logprobe" in (*words[:1], container["image"].rpartition("/")[2]):
                    yield file.name, words[words[:1] == ["logprobe"] :]
    for file in UNITS:
        for found in re.findall(r"^ExecStart=/usr/bin/env logprobe (.*)$", file.read_text(), re.MULTILINE):
            yield file.name, shlex.split(found, comments=True)
    for file in SCRIPTS:
        text = re.sub(r"\\\n\s*", " ", file.read_text(encoding="utf-8"))
        for found in re.findall(r"^[^#\n]*?\blogprobe ((?:ship|run|up|runs|import)\b[^&\n]*)", text, re.MULTILINE):
            yield file.name, shlex.split(found, comments=True)


def test_commands_are_understood() -> None:
    seen = set()
    for name, words in commands():
        understood(words)  # raises when it does not
        seen.add(name)
    assert seen == {file.name for file in (*MANIFESTS, *UNITS, *SCRIPTS)}


def test_options_of_frameworks_exist(repository: Path) -> None:
    """As their own parsers and configurations of the versions named in the file have them."""
    known = json.loads((repository / "tests" / "data" / "job_options.json").read_text(encoding="utf-8"))
    for name in ("verl.sh", "openrlhf.sh", "nemo_rl.sh"):
        text = (EXAMPLES / name).read_text(encoding="utf-8")
        job = re.split(r"main_ppo|train_ppo_ray|run_grpo\.py", text)[1].partition("CONTAINER=")[0]
        used = re.findall(r"(?<=\s)(--[\w.]+|[a-z_]+(?:\.\w+)+(?==))", job)
        assert len(used) >= 5
        assert set(used) <= set(known[name]), set(used) - set(known[name])


def test_scripts_are_bash() -> None:
    for file in SCRIPTS:
        done = subprocess.run(["bash", "-n", file], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), file.name


def test_the_workflow_runs_what_exists(tmp_path: Path) -> None:
    """Its commands as logprobe's parser takes them; what it does with the exit codes as a shell does it."""
    (job,) = yaml.safe_load((EXAMPLES / "github" / "preflight.yml").read_text(encoding="utf-8"))["jobs"].values()
    (script,) = [step["run"] for step in job["steps"] if step.get("name") == "preflight"]
    (command,) = re.findall(r"^logprobe (.*?) > preflight.json", script, re.MULTILINE)
    assert shlex.split(command)[0] == "preflight"
    understood(shlex.split(command))
    for code, ends in ((0, 0), (1, 1), (2, 0), (127, 1), (137, 1)):
        stub = f"logprobe() {{ return {code}; }}\n"
        done = subprocess.run(["bash", "-ec", stub + script], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert (done.returncode, "unknown" in done.stdout) == (ends, code == 2)


def test_every_example_is_linked(repository: Path) -> None:
    pages = "".join(file.read_text(encoding="utf-8") for file in (repository / "docs").glob("*.md"))
    workflows = EXAMPLES.glob("github/*.yml")
    for file in (*MANIFESTS, *UNITS, *SCRIPTS, *workflows, EXAMPLES / "Dockerfile"):
        assert f"](examples/{file.relative_to(EXAMPLES)})" in pages, file.name
