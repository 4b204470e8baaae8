"""Runs of other homes and services: listed with where they are, compared; one that does not answer is named and holds up nothing."""

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
from logprobe.app.commands.ingest import take
from logprobe.app.dashboard.access.settings import Access
from logprobe.app.dashboard.data.comparing import Comparer
from logprobe.app.dashboard.data.other_places import Known, OtherPlaces
from logprobe.app.processes.stack import Stack
from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.compare import Place
from logprobe.monitor.elsewhere import Briefly, RemoteService, checked, reader_at
from logprobe.monitor.home import Home

TOKEN = "0123456789abcdef0123456789abcdef"
NOWHERE = "grpc://127.0.0.1:9"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("elsewhere") / "home"
    writer = SpoolWriter(home, RUN, "w")
    for step in range(3):
        writer.write("training", records("training", *(trained(f"{step}-{i}", step) for i in range(4))))
    take(Home(home))
    return home


@pytest.fixture(scope="module")
def places(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, str]]:
    """Ours, another home, and the address of a service of a third."""
    folder = tmp_path_factory.mktemp("places")
    ours, other, third = (Path(shutil.copytree(recorded, folder / name)) for name in ("ours", "other", "third"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGPROBE_TOKEN", TOKEN)
        with service(third):
            info = Home(third).service_info()
            assert info is not None
            yield ours, other, f"grpc://{info.address}"


@pytest.fixture
def homes(places: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, str]:
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN)
    return places


def test_runs_are_listed_with_where_they_are_and_compared(
    homes: tuple[Path, Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other, address = homes
    also = ["--also", str(other), "--also", address]
    assert cli.main(["runs", "--home", str(ours), *also, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(line["run"], line["where"], line["steps"]) for line in listed] == [
        (RUN, where, 3) for where in (str(ours), str(other), address)
    ]
    assert (
        cli.main(["compare", f"{other}:{RUN}", f"{address}/{RUN}", "--baseline", RUN, "--home", str(ours), "--json"])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in document["runs"]] == [f"{other}:{RUN}", f"{address}/{RUN}"]
    assert [run["common"] for run in document["runs"]] == [3, 3]
    assert cli.main(["runs", "--home", str(ours), "--also", NOWHERE, "--also", address]) == 1
    told = capsys.readouterr()
    assert told.out.count(RUN) >= 2
    assert told.err == f"logprobe: the service of {NOWHERE} is not responding; check its address and LOGPROBE_TOKEN\n"
    monkeypatch.setenv("LOGPROBE_TOKEN", TOKEN[::-1])
    with (
        reader_at(address) as reader,
        pytest.raises(ServiceUnavailableError, match="refuses the token; set LOGPROBE_TOKEN"),
    ):
        reader.read("app_runs")


def test_the_compare_page_compares_across_them(homes: tuple[Path, Path, str]) -> None:
    ours, other, address = homes
    places = OtherPlaces.of(Access(also=(str(other), address, NOWHERE)).environment())
    found = places.look()
    while len(found.runs) < 2 or not found.problems[0].startswith("the service"):
        found = places.look()
    names = [f"{other}:{RUN}", f"{address}/{RUN}"]
    assert sorted(found.runs) == sorted(names)
    assert [name for name, run in found.runs.items() if run.name != name] == []
    comparer = Comparer(lambda name: places.place(name) or Place(name, name, Briefly(str(ours))))
    made = comparer.compare((found.runs[names[1]],), found.runs[names[0]], axis="step", metrics=("backend.k3_kl",))
    assert made.value.baseline == names[0]
    assert [pairing.common for pairing in made.value.pairings] == [3]


def test_a_place_that_hangs_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    rows = pa.table({"run": pa.array([], pa.string())})

    def read(where: str) -> Known:
        if where == "slow":
            answered.wait(60)
        return rows, {}

    monkeypatch.setattr("logprobe.app.dashboard.data.other_places._PATIENCE", 0.01)
    places = OtherPlaces(["slow", "fast"], read=read)
    try:
        while "fast" not in places._known:
            assert "slow has not answered yet" in places.look().problems
    finally:
        answered.set()


def test_what_is_no_place_is_refused_at_once(tmp_path: Path) -> None:
    ours = Home(tmp_path)
    for wrong in ("grpc://host", "grpc+tls://host", "grpc://host:1/path", "grpc://host:port", "http://host:1"):
        with pytest.raises(ConfigurationError, match="is not the address of a service"):
            checked([wrong], ours)
    with pytest.raises(ConfigurationError, match="is not a folder"):
        checked([str(tmp_path / "missing")], ours)
    (tmp_path / "b").mkdir()
    assert checked([str(tmp_path), str(tmp_path / "b"), "grpc://h:1", "grpc://h:1"], ours) == [
        str(tmp_path / "b"),
        "grpc://h:1",
    ]
    with pytest.raises(ConfigurationError, match="asks for a token: set LOGPROBE_TOKEN"):
        RemoteService("grpc://h:1", {}).service_info()


def test_the_dashboard_is_told(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    stack = Stack(Home(tmp_path / "a"), port=0, also=[str(tmp_path / "b")])
    assert Access.of(stack._dashboard().environment).also == (str(tmp_path / "b"),)
