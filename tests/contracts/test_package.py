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
    options = ["--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    command = [sys.executable, "-m", "pip", "wheel", *options, str(source)]
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


def test_collectors_come_from_the_wheel_and_load_nothing_heavy(installed: Path) -> None:
    """Run where `logprobe` can only be the unpacked wheel (-P: not the current directory)."""
    program = f"""
import sys
sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in repr(finder)]
sys.path.insert(0, {str(installed)!r})
import logprobe.collectors as collectors
print([name for name in {HEAVY!r} if name in sys.modules], collectors.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, cwd=installed, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"[] {installed}")


def test_the_service_starts_without_the_extras_that_it_can_do_without() -> None:
    """As installed by `pip install '.[serve]'`: no bucket, no loggers, no apprise."""
    absent = ("obstore", "apprise", "wandb", "trackio", "tensorboard", "torch", "vllm")
    code = f"import sys; sys.modules.update(dict.fromkeys({absent!r})); import logprobe.app.processes.service"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
