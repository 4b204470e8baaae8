"""Who has which weights: engines that fall behind, updates that are unusual, and what a comparison says."""

from __future__ import annotations

from typing import Any

from recorded_home import feed
from segments import RUN, at

from logprobe.monitor.analysis.weight_updates import Lane, lanes
from logprobe.monitor.store.store import Store


def update(version: str | None, second: float, replica: str | None = None, **known: Any) -> dict[str, Any]:
    """An engine's record: the weights of step `version` − 1 were in place at `second`."""
    step = int(version) - 1 if version is not None and version.isdecimal() else None
    return {
        "time": at(second),
        "version": version,
        "source": "engine",
        "replica": replica,
        "step": step,
        "applied_at": at(second),
    } | known


def published(*versions: int) -> list[dict[str, Any]]:
    return [update(str(version), 10 * version, source="trainer") for version in versions]


def found(store: Store, *rows: dict[str, Any], run: str = RUN) -> dict[str, Lane]:
    feed(store, run, weights=rows)
    return {lane.replica or lane.source: lane for lane in lanes(store, run)}


def test_each_engine_has_a_lane(store: Store) -> None:
    engine = [
        update(
            "1",
            10.2,
            "a",
            requested_at=at(9),
            started_at=at(10),
            resumed_at=at(10.5),
            pause_mode="keep",
            cache_cleared=False,
        ),
        update("2", 21, "a", started_at=at(20), cache_cleared=True),
    ]
    known = found(store, *published(1, 2), *engine)
    assert list(known) == ["trainer", "a"]
    lane = known["a"]
    assert (lane.state, lane.behind, lane.kept, lane.cleared, lane.pauses) == ("current", 0, 1, 1, ["keep"])
    assert (lane.usual_delay, lane.longest_delay, lane.usual_pause) == (1.1, 1.2, 1.5)


def test_versions_skipped_taken_back_and_loaded_again_are_counted(store: Store) -> None:
    engine = [
        update(version, second)
        for version, second in (("1", 11), ("2", 21), ("5", 51), ("4", 52), ("6", 61), ("6", 62), ("10", 101))
    ]
    lane = found(store, *published(*range(1, 11)), *engine)["engine"]
    assert lane.all_skipped == 3  # one before 5, two before 10
    assert (lane.all_backwards, lane.all_reloads, lane.usual_stride, lane.all_unloaded) == (1, 1, 2, 0)


def test_a_version_that_was_named_and_not_loaded_is_counted_where_loads_are_seen(store: Store) -> None:
    engine = [update("1", 11), update("2", 21, started_at=at(20)), update("3", 31)]
    lane = found(store, *published(1, 2, 3), *engine)["engine"]
    assert lane.all_unloaded == 1  # the first was there before anybody looked


def test_an_engine_is_late_by_its_own_stride(store: Store) -> None:
    for name, (taken, later, state, behind) in {
        "all": (range(1, 41), 1, "current", 0),
        "all but two": (range(1, 39), 1, "current", 2),
        "all but four": (range(1, 37), 1, "behind", 4),
        "three": (range(1, 4), 1, "stopped", 37),
        "every eighth: the next is not due yet": (range(1, 34, 8), 1, "current", 7),
        "one": ((1,), 1, "stopped", 39),
        "still those of long ago": (range(1, 11), 300, "behind", 30),
    }.items():
        updates = [update(str(version), 10 * version + later) for version in taken]
        lane = found(store, *published(*range(1, 41)), *updates, run=name)["engine"]
        assert (lane.state, lane.behind) == (state, behind), name
    assert lane.missed == 0


def test_names_stand_in_the_order_of_publication_and_unknown_versions_are_counted(store: Store) -> None:
    rows = [
        update("warm", 1, source="trainer"),
        update("hot", 2, source="trainer"),
        update("hot", 3, "a"),
        update("warm", 1.5, "a"),
        update(None, 5, "a"),
    ]
    known = found(store, *rows)
    assert (known["a"].unknown, known["a"].newest_version, known["a"].behind) == (1, "hot", 0)


def test_an_engine_that_never_said_a_version_is_there_and_unknown(store: Store) -> None:
    assert lanes(store, RUN) == (), "nobody recorded anything"
    lane = found(store, *published(1, 2), update(None, 11, "a"), update(None, 21, "a"))["a"]
    assert (lane.state, lane.behind, lane.newest_version, lane.unknown, lane.updates) == ("unknown", None, None, 2, 0)
