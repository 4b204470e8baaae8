"""What adapters share: looking at a framework's methods without the framework noticing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spool_contents import health_events, rows

from logprobe.collectors import Recorder
from logprobe.collectors.integrations.wrapping import Process, Wrapper, missing_keys, unknown_methods


class Host:
    def double(self, number: int, *, times: int = 1) -> int:
        if number < 0:
            raise ValueError("negative")
        return 2 * number * times


def test_what_fails_in_our_part_is_counted_and_the_host_goes_on(home: Path) -> None:
    host = Host()

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    with Recorder(home, "run") as recorder:
        wrapper = Wrapper(recorder, "host")
        wrapper.after(host, "double", fail)
        wrapper.around(host, "double", fail, fail)
        assert host.double(3, times=2) == 12
        with pytest.raises(ValueError, match="negative"):
            host.double(-1)
        assert recorder.health["dropped"]["internal_error"]["calls"] == 4


def test_arguments_by_name_reach_the_host_once(home: Path) -> None:
    """A wrapper that names other arguments must not hand one over twice, however the framework passed it."""
    host = Host()
    with Recorder(home, "run") as recorder:
        Wrapper(recorder, "host").around(host, "double", lambda number: (number + 1,), lambda *_: None)
        assert host.double(3) == host.double(number=3) == 8
        assert host.double(number=3, times=2) == 16


def test_an_unknown_signature_is_named() -> None:
    assert unknown_methods(Host(), {"double": ("number",)}) == []
    assert unknown_methods(Host(), {"double": ("batch",)}) == ["Host.double has no parameter batch"]
    assert unknown_methods(Host(), {"halve": ()}) == ["Host has no method halve"]


class Passing(Host):
    """A subclass that passes on whatever comes, as people write them."""

    def double(self, *args: Any, **kwargs: Any) -> int:
        return super().double(*args, **kwargs)


def test_a_subclass_that_passes_on_whatever_comes_is_known_by_what_it_overrides(home: Path) -> None:
    host, seen = Passing(), []
    assert unknown_methods(host, {"double": ("number", "times")}) == []
    assert unknown_methods(Passing, {"double": ("number",)}) == []
    assert unknown_methods(SimpleNamespace(log=lambda *args, **kwargs: None), {"log": ("logs",)}) == []
    with Recorder(home, "run") as recorder:
        Wrapper(recorder, "host").around(host, "double", lambda number: (number + 1,), lambda r, n: seen.append((r, n)))
        assert host.double(number=3) == 8
        assert recorder.health["dropped"] == {}
    assert seen == [(8, 4)]


def test_missing_keys_of_mappings_and_objects() -> None:
    assert missing_keys({"a": 1}, ("a", "b")) == ["b"]
    assert missing_keys(SimpleNamespace(a=None), ("a", "b")) == ["b"]


def test_a_part_that_is_unknown_costs_neither_the_configuration_nor_the_word_that_the_rest_is_recorded(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGPROBE_HOME", str(home))
    process = Process("framework")
    assert not process.knows(Host(), {"halve": ()})
    for _ in range(2):
        recorder = process.begin("run", config=lambda: {"temperature": 0.7})
    assert recorder is not None
    assert recorder.close()
    assert len(rows(home, "config")) == 1
    said = [event["message"] for event in health_events(home)["self_test"]]
    assert said == [
        "framework is unknown: Host has no method halve; this part of it is not recorded",
        "framework is recorded",
    ]
