"""Weight versions by time: the file of marks and the timeline."""

from __future__ import annotations

import doctest
import json
import threading
from pathlib import Path

import pytest

from logprobe.collectors import versions
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.versions import Mark, MarkFile, Timeline, home_and_run, spans_of


def test_examples() -> None:
    assert doctest.testmod(versions).failed == 0


def timeline_of(*changes: tuple[float, str | None]) -> Timeline:
    timeline = Timeline()
    for time, version in changes:
        timeline.set(time, version)
    return timeline


@pytest.mark.parametrize(
    ("changes", "times", "expected"),
    [
        ([], [1.0, 2.0], [(0, 2, None)]),
        ([(5.0, "1")], [], []),
        ([(5.0, "1")], [1.0, 2.0], [(0, 2, None)]),
        ([(5.0, "1")], [5.0, 6.0], [(0, 2, "1")]),
        ([(5.0, "1")], [4.0, 5.0, 6.0], [(0, 1, None), (1, 3, "1")]),
        ([(1.0, "1"), (5.0, "2")], [2.0, 3.0, 6.0], [(0, 2, "1"), (2, 3, "2")]),
        # two updates between two steps: only the last one sampled anything
        ([(1.0, "1"), (5.0, "2"), (5.5, "3")], [2.0, 6.0], [(0, 1, "1"), (1, 2, "3")]),
        # an unlabelled load, then its label before the next step
        ([(1.0, "1"), (5.0, None), (5.5, "2")], [2.0, 6.0], [(0, 1, "1"), (1, 2, "2")]),
        # and without a label: unknown, not the old version
        ([(1.0, "1"), (5.0, None)], [2.0, 6.0, 7.0], [(0, 1, "1"), (1, 3, None)]),
        # told the same twice: one span
        ([(1.0, "1"), (5.0, "1")], [2.0, 6.0], [(0, 2, "1")]),
        # marks may be read late and out of order
        ([(5.0, "2"), (1.0, "1")], [2.0, 6.0], [(0, 1, "1"), (1, 2, "2")]),
        # of two changes at one moment the later call counts
        ([(5.0, None), (5.0, "2")], [5.0], [(0, 1, "2")]),
    ],
)
def test_spans(changes: list[tuple[float, str | None]], times: list[float], expected: list[versions.Span]) -> None:
    assert spans_of(timeline_of(*changes).runs(times)) == expected


def test_version_at() -> None:
    timeline = timeline_of((1.0, "1"), (5.0, "2"))
    assert [timeline.at(time) for time in (0.5, 1.0, 4.9, 5.0)] == [None, "1", "1", "2"]


def test_timeline_is_bounded() -> None:
    timeline = timeline_of(*((float(n), str(n)) for n in range(5000)))
    assert spans_of(timeline.runs([0.5, 4999.0])) == [(0, 1, None), (1, 2, "4999")]


def test_marks_come_back_once(home: Path) -> None:
    writer, reader = MarkFile(home, "a run"), MarkFile(home, "a run")
    assert reader.read_new() == []
    first, second = Mark("1", 10.5, 3, "east", "style", 4.5, "here"), Mark("2", 11.5)
    writer.append(first)
    assert reader.read_new() == [first]
    writer.append(second)
    assert reader.read_new() == [second]
    assert reader.read_new() == []
    assert MarkFile(home, "a run").read_new() == [first, second]
    assert MarkFile(home, "another").read_new() == []


def test_a_line_on_its_way_is_read_when_it_is_whole(home: Path) -> None:
    reader = MarkFile(home, "r")
    reader.append(Mark("1", 1.0))
    line = json.dumps({"version": "2", "applied_at": 2.0}).encode()
    with reader.path.open("ab") as file:
        file.write(line[:9])
    assert [mark.version for mark in reader.read_new()] == ["1"]
    with reader.path.open("ab") as file:
        file.write(line[9:] + b"\n")
    assert [mark.version for mark in reader.read_new()] == ["2"]


def test_lines_that_are_no_marks_are_passed_over(home: Path) -> None:
    reader = MarkFile(home, "r")
    reader.append(Mark("1", 1.0))
    with reader.path.open("ab") as file:
        file.write(b'nonsense\n{"version": "2"}\n[1]\n{"version": "3", "applied_at": "soon"}\n\xff\n')
    reader.append(Mark("4", 4.0))
    assert [mark.version for mark in reader.read_new()] == ["1", "4"]


def test_a_replaced_file_is_read_anew(home: Path) -> None:
    reader = MarkFile(home, "r")
    reader.append(Mark("a-long-version-name", 1.0))
    reader.read_new()
    reader.path.unlink()
    reader.append(Mark("2", 2.0))
    assert [mark.version for mark in reader.read_new()] == ["2"]


def test_many_writers(home: Path) -> None:
    threads = [
        threading.Thread(target=lambda n=n: [MarkFile(home, "r").append(Mark(f"{n}-{i}", float(i))) for i in range(50)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = MarkFile(home, "r").read_new()
    assert {mark.version for mark in found} == {f"{n}-{i}" for n in range(8) for i in range(50)}
    assert len(found) == 400


def test_home_and_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="LOGPROBE_HOME"):
        home_and_run()
    monkeypatch.setenv("LOGPROBE_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="LOGPROBE_RUN"):
        home_and_run()
    monkeypatch.setenv("LOGPROBE_RUN", "r")
    assert home_and_run() == (tmp_path, "r")
    assert home_and_run("/elsewhere", "s") == (Path("/elsewhere"), "s")
