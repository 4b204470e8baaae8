"""Copies of relayed segments in a real object store: what a lost home had acknowledged is had from there, and nothing that was never copied is taken for whole."""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from object_server import ObjectServer
from processes import eventually, record
from relay_processes import port_of, prepare, receiver, relay, waiting
from store_work import METRICS, bring_in

from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.spool.segments import SegmentPath
from logprobe.monitor.deletion import part as deletion
from logprobe.monitor.fleet import handover, lost
from logprobe.monitor.fleet.lost import Uncopied
from logprobe.monitor.fleet.moved import Moved, MovedRuns
from logprobe.monitor.fleet.table import Fleet, Row
from logprobe.monitor.home import Home
from logprobe.monitor.objects.moving import Mover
from logprobe.monitor.objects.segments import Copier
from logprobe.monitor.objects.settings import load
from logprobe.monitor.objects.store import ObjectStore
from logprobe.monitor.store.retention import Retention
from logprobe.monitor.store.store import Store

RUN, OTHER = "runs/ü 1", "later"


def settings(home: Path, server: ObjectServer) -> None:
    home.mkdir(exist_ok=True)
    lines = [f"segments: {server.place}/segments", f"endpoint: {server.endpoint}", "region: us-east-1"]
    (home / "logprobe.yaml").write_text("storage:\n" + "".join(f"  {line}\n" for line in lines))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`empty`: a home; `full`: one with a run; `sent`: the segments of it."""
    folder = tmp_path_factory.mktemp("homes")
    record(folder / "sent", RUN)
    shutil.copytree(folder / "sent" / "spool", folder / "full" / "spool")
    for name in ("empty", "full"):
        with Store.open(Home(folder / name).create()) as store:
            bring_in(store)
    return folder


@pytest.fixture
def fleet(tmp_path: Path, server: ObjectServer, made: Path) -> Fleet:
    """Three homes with one place for copies; `a` has a run that came through a relay, all of it copied."""
    homes = {name: tmp_path / name for name in ("a", "b", "c")}
    for name, home in homes.items():
        shutil.copytree(made / ("full" if name == "a" else "empty"), home)
        settings(home, server)
    copy(homes["a"], made / "sent")
    services = {name: {"home": str(home)} for name, home in homes.items()}
    (tmp_path / "fleet.yaml").write_text(json.dumps({"services": services}))
    found = Fleet(tmp_path)
    with found.changing() as rows:
        rows[RUN] = Row("a", "now")
    return found


def copy(home: Path, sent: Path) -> None:
    """As the receiver of a home does with what a node has sent."""
    found = {SegmentPath.parse(path): path for path in waiting(sent)}
    Copier(Home(home)).keep(found, lambda _: False)


def test_a_mistake_in_the_settings_leaves_copying_as_it_was(tmp_path: Path, server: ObjectServer, made: Path) -> None:
    home = tmp_path / "home"
    settings(home, server)
    found = {SegmentPath.parse(path): path for path in waiting(made / "sent")}
    copier = Copier(Home(home))
    copier.keep(found, lambda _: False)
    with (home / "logprobe.yaml").open("a") as file:
        file.write("chanels: {}\n")
    copier.keep(found, lambda _: False)
    with pytest.raises(ConfigurationError, match="unknown key 'chanels'"):
        copy(home, made / "sent")


def metrics(home: Path) -> list[tuple[int, str, str | None]]:
    with Store.open(Home(home)) as store:
        bring_in(store)
        return [
            (row["step"], row["metric"], None if row["value"] is None else row["value"].hex())
            for row in store.query(METRICS).to_pylist()
        ]


def taken_over(fleet: Fleet, name: str = "a") -> list[lost.TakenOver]:
    """Of a service, as if the others ran."""
    standings = {
        service: replace(each, problem=each.problem if each.runs is None else None)
        for service, each in fleet.standings().items()
    }
    return list(lost.take_over(fleet, name, standings, "ada"))


def audit(home: Path, action: str) -> list[str]:
    with Store.open(Home(home)) as store:
        found = store.query("SELECT words FROM alert_audit WHERE action = $action", {"action": action})
    return [str(words) for words in found["words"].to_pylist()]


def test_a_lost_home_is_had_from_copies_with_the_numbers_that_it_had(fleet: Fleet, tmp_path: Path) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    before = metrics(a)
    assert len(before) > 30
    for home, at in ((b, a), (c, tmp_path / "elsewhere")):  # it was at b and at c before
        MovedRuns(Home(home)).write(Moved(RUN, "m", "a", str(at), "then"))
    shutil.rmtree(a)
    (done,) = taken_over(fleet)
    to = tmp_path / str(done["to"])
    assert (done["run"], done["missing"], done["problem"]) == (RUN, 0, None)
    assert done["segments"] == len(waiting(to)) > 3
    assert fleet.rows()[RUN].service == done["to"]
    assert MovedRuns(Home(to)).find(RUN) is None
    other = MovedRuns(Home(b if to == c else c)).find(RUN)
    assert other is not None
    assert (other.to, other.home) == (done["to"], str(to)), "what still arrives there goes to the new one"
    assert metrics(to) == before
    assert audit(to, "run taken over") == [f"from a, whose home is lost: {done['segments']} copied segments"]
    assert taken_over(fleet) == [], "nothing is left to do"


def test_a_takeover_that_was_killed_goes_on_where_it_was_and_counts_once(fleet: Fleet, tmp_path: Path) -> None:
    before = metrics(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    first = taken_over(fleet)
    metrics(tmp_path / str(first[0]["to"]))  # ingested
    with fleet.changing() as rows:  # killed before this was written down
        rows[RUN] = Row("a", "now")
    (again,) = taken_over(fleet)
    assert again == first[0]
    assert metrics(tmp_path / str(again["to"])) == before
    with Store.open(Home(tmp_path / str(again["to"]))) as store:
        assert store.query("SELECT count(*) AS n FROM training_sequences")["n"].to_pylist() == [12]


@pytest.mark.parametrize(
    ("reached", "gone", "left", "copied"),
    [
        (handover.PACK, "b", "a", False),  # its package is there yet
        pytest.param(handover.UNPACK, "b", "a", False, marks=pytest.mark.long),
        (handover.SETTLE, "b", None, True),
        pytest.param(handover.PACK, "a", None, True, marks=pytest.mark.long),
        (handover.UNPACK, "a", "b", False),
        pytest.param(handover.SETTLE, "a", "b", False, marks=pytest.mark.long),
    ],
)
def test_a_move_that_was_under_way_when_one_of_the_two_was_lost(
    fleet: Fleet, tmp_path: Path, reached: str, gone: str, left: str | None, *, copied: bool
) -> None:
    before = metrics(tmp_path / "a")
    move = fleet._begin(RUN, "b").move
    asked = {"run": RUN, "move": move, "to": "b", "home": str(tmp_path / "b"), "author": "ada"}
    packed = handover.perform(Home(tmp_path / "a"), handover.PACK, asked)
    if reached != handover.PACK:
        proven = handover.perform(Home(tmp_path / "b"), handover.UNPACK, {**asked, "package": packed["package"]})
        if reached == handover.SETTLE:
            handover.perform(Home(tmp_path / "a"), handover.SETTLE, {**asked, "sha256": proven["sha256"]})
    shutil.rmtree(tmp_path / gone)
    (done,) = taken_over(fleet, gone)
    assert done["problem"] is None
    assert (done["segments"] is not None) is copied
    assert left is None or done["to"] == left
    row = fleet.rows()[RUN]
    assert (row.service, row.to) == (done["to"], None)
    assert metrics(tmp_path / str(done["to"])) == before


def test_a_run_that_only_the_copies_name_is_taken_over_too(fleet: Fleet, tmp_path: Path) -> None:
    with fleet.changing() as rows:
        rows.clear()
    shutil.rmtree(tmp_path / "a")
    assert [(each["run"], each["problem"]) for each in taken_over(fleet)] == [(RUN, None)]


def test_a_run_with_records_that_were_never_copied_is_not_taken_for_whole(fleet: Fleet, tmp_path: Path) -> None:
    a = tmp_path / "a"
    record(a, OTHER)
    copy(a, a)
    with Store.open(Home(a)) as store:
        bring_in(store)
        assert Uncopied(store).run_once() == {"partial_runs": 0}
        record(a, OTHER, steps=range(3, 5))  # by a collector beside the service, without a relay
        bring_in(store)
        look = Uncopied(store)
        assert look.run_once() == {"partial_runs": 1}
        assert look.run_once() == {"partial_runs": 0}
    with fleet.changing() as rows:
        rows[OTHER] = Row("a", "now")
    shutil.rmtree(a)
    refused, taken = taken_over(fleet)
    assert (refused["run"], refused["to"], taken["run"], taken["problem"]) == (OTHER, None, RUN, None)
    assert "never copied" in str(refused["problem"])
    assert fleet.rows()[OTHER].service == "a"


def test_numbers_that_have_no_copy_are_counted_and_a_changed_one_is_refused(
    fleet: Fleet, tmp_path: Path, server: ObjectServer
) -> None:
    names = [name for name in server.objects() if name.endswith(".arrow")]
    objects = ObjectStore(load(Home(tmp_path / "b")))
    objects.remove(f"{server.place}/{names[1]}")
    shutil.rmtree(tmp_path / "a")
    (done,) = taken_over(fleet)
    assert done["missing"] == 1
    with fleet.changing() as rows:
        rows[RUN] = Row("a", "now")
    content = bytearray(objects.content(f"{server.place}/{names[0]}") or b"")
    content[len(content) // 2] ^= 1
    objects.write(bytes(content), f"{server.place}/{names[0]}")
    (done,) = taken_over(fleet)
    assert "is not the segment that its name says" in str(done["problem"])


def test_a_home_that_is_there_or_another_that_is_not_ends_it_before_anything(fleet: Fleet, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="without --lost"):
        taken_over(fleet)
    for name in ("a", "b"):
        shutil.rmtree(tmp_path / name)
    with pytest.raises(ConfigurationError, match="b: "):
        taken_over(fleet)
    assert fleet.rows()[RUN].service == "a"


def test_a_deleted_run_has_no_copies_and_its_name_is_not_free_before(
    fleet: Fleet, tmp_path: Path, server: ObjectServer
) -> None:
    a = tmp_path / "a"
    server.kill()
    with Store.open(Home(a)) as store:
        done = deletion.part(store, threading.Event()).actions[deletion.DELETE].run({"run": RUN, "author": "ada"})
        assert done["objects"]["waiting"] == 1  # type: ignore[index]
        with pytest.raises(ConfigurationError, match="not finished"):
            deletion.part(store, threading.Event()).actions[deletion.RELEASE].run({"run": RUN, "author": "ada"})
        server.start()
        Mover(store, Retention(store), threading.Event()).run_once()
        assert server.objects() == []
        deletion.part(store, threading.Event()).actions[deletion.RELEASE].run({"run": RUN, "author": "ada"})


def test_segments_of_a_run_that_is_deleted_while_they_are_copied_leave_none(
    fleet: Fleet, tmp_path: Path, server: ObjectServer
) -> None:
    record(tmp_path / "node", OTHER)
    found = {SegmentPath.parse(path): path for path in waiting(tmp_path / "node")}
    asked = iter([*[False] * len(found), *[True] * len(found)])
    before = server.objects()
    Copier(Home(tmp_path / "b")).keep(found, lambda _: next(asked))
    assert server.objects() == before


def test_relays_are_told_that_segments_are_safe_when_their_copies_are(tmp_path: Path, server: ObjectServer) -> None:
    home, node = tmp_path / "home", tmp_path / "node"
    settings(home, server)
    token = prepare(home)
    record(node, RUN)
    mine = waiting(node)
    server.kill()
    listening = receiver(home).start()
    sending = relay(node, port_of(listening), home, token).start()
    try:
        eventually(lambda: "its copy: s3://" in sending.words, "the relay is told why it is to wait", 120)
        assert waiting(home) == [], "nothing counts here that is not there"
        assert {*mine} <= {*waiting(node)}
        server.start()
        eventually(lambda: not waiting(node), "all of it is sent", 120)
    finally:
        sending.end()
        listening.end()
    assert {name.partition("/")[2] for name in server.objects()} == {
        str(path.relative_to(home / "spool")) for path in waiting(home)
    }
