"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# Sources are compiled once, also where the environment says otherwise: tests start hundreds of processes.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples every time: nobody's change fails by an example that its author never saw. Exploring is done on purpose.
# No example has a time limit: a busy machine is no fault.
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", derandomize=True, **_PATIENT)
settings.register_profile("explore", **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with an engine, a browser or many services come first: they take longest, and one that begins last keeps one worker alone."""
    marks, folders = ("engine", "browser"), {"shipping", "scenarios"}
    long = {item.path for item in items if any(map(item.get_closest_marker, marks)) or item.path.parent.name in folders}
    items.sort(key=lambda item: item.path not in long)


# One worker runs files that share what is long to start: a process with engines (tests/e2e/engine_host.py), or the import of transformers.
_TOGETHER = {
    **dict.fromkeys(
        ("test_vllm_engine.py", "test_attribution.py", "test_real_engine.py", "test_experts.py"), "engines"
    ),
    **dict.fromkeys(("test_score.py", "test_preflight.py", "test_layers.py", "test_trainers.py"), "transformers"),
}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What `--dist=loadfile` does, but that a worker may have several files at once."""
    from xdist.scheduler import LoadFileScheduling

    class ByNeighbour(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return _TOGETHER.get(file.rpartition("/")[2], file)

    return ByNeighbour(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """What is collected is no garbage: Python looked through it again and again, which took as long as collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout under test."""
    return ROOT


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home."""
    return tmp_path / "home"


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The store of an empty home."""
    from logprobe.monitor.home import Home
    from logprobe.monitor.store.store import Store

    if "home" in request.fixturenames:
        home = Home(request.getfixturevalue("home")).create()
    else:
        home = _empty_home(tmp_path_factory.getbasetemp() / "empty")
    with Store.open(home) as opened:
        yield opened


def _empty_home(folder: Path) -> Any:
    """A home with a store that nothing was written to. Views name their home: at one place it can be put back instead of made again."""
    from logprobe.monitor.home import Home
    from logprobe.monitor.store.store import Store

    home, kept = folder / "home", folder / "kept"
    if not kept.exists():
        Store.open(Home(home).create()).close()
        home.rename(kept)
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(kept, home)
    return Home(home)


@pytest.fixture(scope="session", autouse=True)
def _made_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Workers share what takes long to make."""
    import made_once

    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made"
    shared.mkdir(exist_ok=True)
    made_once.keep_in(shared)


@pytest.fixture(scope="session")
def recorded_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with all shipped runs and their metrics, for tests that only read; no service runs."""
    from recorded_home import RECORDED, ingest_recorded

    folder = tmp_path_factory.mktemp("recorded") / "home"
    ingest_recorded(folder, *RECORDED)
    return folder


@pytest.fixture(scope="session")
def first_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the first steps of three of them, for tests to which a step is as good as a hundred."""
    from recorded_home import ingest_recorded

    folder = tmp_path_factory.mktemp("first") / "home"
    ingest_recorded(folder, "v0-reference", "v1-initial", "v1-fixed", before_step=20)
    return folder


@pytest.fixture(autouse=True)
def _no_ambient_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests say themselves where they record to; a developer's own environment must not leak in."""
    for name in [name for name in os.environ if name.startswith("LOGPROBE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.getbasetemp() / "data"))  # what has no home records there
    monkeypatch.setenv("LOGPROBE_RECORD", "quiet")  # no line of its own on a stderr that a test looks at
    monkeypatch.setenv("COLUMNS", "1000")  # words stay in their line; narrow terminals have their own tests


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium."""
    import system_tools

    return system_tools.path("chromium-headless-shell")


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """Where screenshots go: inside the checkout, outside the repository."""
    folder = ROOT / ".artifacts"
    folder.mkdir(exist_ok=True)
    return folder
