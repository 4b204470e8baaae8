"""Runs of other homes: listed with where they are, compared; one that cannot be read is named and holds up nothing."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from processes import service
from segments import RUN, records, trained

from logprobe.app import cli
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.reading.other_places import Known, OtherPlaces
from logprobe.app.ingesting import take
from logprobe.app.processes.stack import Stack
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.compare import Place, compared, history
from logprobe.monitor.elsewhere import Briefly, checked
from logprobe.monitor.home import Home

Places = tuple[Path, Path, Path, Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("elsewhere") / "home"
    writer = SpoolWriter(home, RUN, "w")
    for step in range(3):
        writer.write("training", records("training", *(trained(f"{step}-{i}", step) for i in range(4))))
    take(Home(home))
    return home


@pytest.fixture(scope="module")
def places(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """Ours, another home, a third whose service runs, and a folder that nothing was recorded in."""
    folder = tmp_path_factory.mktemp("places")
    ours, other, served = (Path(shutil.copytree(recorded, folder / name)) for name in ("ours", "other", "served"))
    (empty := folder / "empty").mkdir()
    with service(served):
        yield ours, other, served, empty


def test_runs_are_listed_with_where_they_are_and_compared(places: Places, capsys: pytest.CaptureFixture[str]) -> None:
    ours, other, served, empty = places
    also = ["--also", str(other), "--also", str(served)]
    assert cli.main(["runs", "--home", str(ours), *also, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(line["run"], line["where"], line["steps"]) for line in listed] == [
        (RUN, str(where), 3) for where in (ours, other, served)
    ]
    assert (
        cli.main(["compare", f"{other}:{RUN}", f"{served}:{RUN}", "--baseline", RUN, "--home", str(ours), "--json"])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in document["runs"]] == [f"{other}:{RUN}", f"{served}:{RUN}"]
    assert [run["common"] for run in document["runs"]] == [3, 3]
    assert cli.main(["runs", "--home", str(ours), "--also", str(empty), "--also", str(served)]) == 1
    told = capsys.readouterr()
    assert told.out.count(RUN) >= 2
    assert told.err.startswith(f"logprobe: {empty}: nothing is stored here yet")


def test_the_compare_page_compares_across_them(places: Places) -> None:
    ours, other, served, empty = places
    shown = OtherPlaces.of(Access(also=(str(other), str(served), str(empty))).environment())
    found = shown.look()
    while len(found.runs) < 2 or "nothing is stored here yet" not in found.problems[0]:
        found = shown.look()
    names = [f"{other}:{RUN}", f"{served}:{RUN}"]
    assert sorted(found.runs) == sorted(names)
    assert [name for name, run in found.runs.items() if run.name != name] == []
    first, second = (
        history(shown.place(name) or Place(name, name, Briefly(str(ours))), ("backend.k3_kl",)) for name in names
    )
    made = compared([second], first, axis="step", metrics=("backend.k3_kl",))
    assert made.baseline == names[0]
    assert [pairing.common for pairing in made.pairings] == [3]


def test_a_place_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    rows = pa.table({"run": pa.array([], pa.string())})

    def read(where: str) -> Known:
        if where == "slow":
            answered.wait(60)
        return rows, {}

    monkeypatch.setattr("logprobe.app.dashboard.reading.other_places._PATIENCE", 0.01)
    places = OtherPlaces(["slow", "fast"], read=read)
    try:
        while "fast" not in places._known:
            assert "slow has not answered yet" in places.look().problems
    finally:
        answered.set()


def test_a_place_that_answers_late_is_shown_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long after: an outcome that is old when it is first seen is not thrown away for another slow look."""
    answers = threading.Semaphore(0)
    rows = pa.table({"run": pa.array([], pa.string())})

    def read(_: str) -> Known:
        answers.acquire(timeout=60)
        return rows, {}

    monkeypatch.setattr("logprobe.app.dashboard.reading.other_places._PATIENCE", 0.01)
    monkeypatch.setattr("logprobe.app.dashboard.reading.other_places._FRESH_SECONDS", 0.0)
    places = OtherPlaces(["slow"], read=read)
    try:
        assert places.look().problems == ("slow has not answered yet",)
        answers.release()
        places._reads["slow"].result(60)
        assert places.look().problems == ()
        assert "slow" in places._known
    finally:
        answers.release(9)


def test_what_is_no_home_is_refused_at_once(tmp_path: Path) -> None:
    ours = Home(tmp_path)
    for wrong in (str(tmp_path / "missing"), "grpc+tls://host:1"):
        with pytest.raises(ConfigurationError, match="is not a folder"):
            checked([wrong], ours)
    (other := tmp_path / "b").mkdir()
    assert checked([str(tmp_path), str(other), f"{other}/"], ours) == [str(other)]


def test_the_dashboard_is_told(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    stack = Stack(Home(tmp_path / "a"), port=0, also=[str(tmp_path / "b")])
    assert Access.of(stack._dashboard().environment).also == (str(tmp_path / "b"),)
