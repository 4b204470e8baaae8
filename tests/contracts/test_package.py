"""What is installed: the built wheel, not the checkout."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HEAVY = ("duckdb", "polars", "streamlit", "plotly", "vllm", "transformers", "torch", "pandas", "apscheduler", "obstore")


@pytest.fixture(scope="session")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tracked files: setuptools leaves build/ and egg-info where it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    archive = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in filter(None, archive.stdout.split("\0")):
        if name.split("/")[0] in {"sample_data", "tests", "docs"} or not (repository / name).is_file():
            continue
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((repository / name).read_bytes())
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        str(source),
    ]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, unpacked into a directory of its own."""
    target = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run_isolated(installed: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs `code` where `logprobe` can only be the unpacked wheel (-P: not the current directory)."""
    program = f"import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]; sys.path.insert(0, {str(installed)!r})\n"
    return subprocess.run(
        [sys.executable, "-P", "-c", program + code], capture_output=True, text=True, cwd=installed, check=False
    )


def test_wheel_has_only_the_namespace_and_no_top_level_modules(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"logprobe"}
    assert "logprobe/__init__.py" not in names
    for part in ("collectors", "monitor", "alerts", "app"):
        assert f"logprobe/{part}/py.typed" in names


def test_wheel_has_every_module_and_data_file_of_the_checkout(wheel: Path, repository: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "collectors", "monitor", "alerts", "app"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    missing = [name for name in tracked if (repository / name).exists() and f"logprobe/{name}" not in shipped]
    assert missing == [], "list the sub-package or the file type in pyproject.toml"


def test_base_install_needs_little(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    requires = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist")
    base = sorted(re.split("[<>]", line)[0] for line in requires if "extra ==" not in line)
    assert base == ["array-api-compat", "click", "numpy", "pyarrow"]  # click: the command alone, no collector


def test_collectors_load_nothing_heavy(installed: Path) -> None:
    code = f"import logprobe.collectors; print([m for m in {HEAVY!r} if m in sys.modules])"
    result = run_isolated(installed, code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_the_service_starts_without_the_extras_that_it_can_do_without() -> None:
    """As installed by `pip install '.[serve]'`: no bucket, no loggers, no apprise."""
    absent = ("obstore", "apprise", "wandb", "trackio", "tensorboard", "torch", "vllm")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import logprobe.app.processes.service"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_installed_modules_come_from_the_wheel(installed: Path) -> None:
    result = run_isolated(installed, "import logprobe.collectors as c; print(c.__file__)")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(str(installed))
