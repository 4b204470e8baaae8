"""Publish delay: from the trainer's request to every engine's weights, and what is left of it when a time is missing."""

from __future__ import annotations

from typing import Any

import pytest
from recorded_home import take_in
from segments import RUN, at, records, trained

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.metrics import KEYS
from logprobe.monitor.store.store import Store

KINDS = ("publish_delay", "publish_resume", "update_pause")
NAMES = [f"{kind}_seconds_{suffix}" for kind in KINDS for suffix in ("mean", "max")] + ["publish_replicas"]
NOTHING = [None] * 7


def update(
    version: str | None, source: str, replica: str | None = None, step: int | None = None, **times: float
) -> dict:
    row: dict[str, Any] = {"time": at(0), "version": version, "source": source, "replica": replica, "step": step}
    return row | {f"{name}_at": at(seconds) for name, seconds in times.items()}


def measure(store: Store, *rows: dict[str, Any], steps: int = 2) -> dict[int, list[float | None]]:
    """Values of `NAMES` by step; the weights arrive before, the tokens after."""
    writer = SpoolWriter(store.home.path, RUN, "w")
    if rows:
        writer.write("weights", records("weights", *rows))
    writer.write("training", records("training", *(trained(f"s{step}", step) for step in range(steps))))
    take_in(store)
    return stored(store)


def stored(store: Store) -> dict[int, list[float | None]]:
    rows = store.query("SELECT step, metric, value FROM step_metrics").to_pylist()
    values = {(row["step"], row["metric"]): row["value"] for row in rows}
    return {step: [values[step, name] for name in NAMES] for step in sorted({step for step, _ in values})}


def test_every_name_is_in_the_catalog() -> None:
    assert set(NAMES) <= set(KEYS)


def test_from_the_trainers_request_to_each_replica(store: Store) -> None:
    found = measure(
        store,
        update("7", "trainer", step=1, requested=10, started=11, applied=12),
        update("7", "engine", "east", requested=13, started=13.5, applied=14, resumed=15),
        update("7", "engine", "west", requested=12, started=14, applied=18, resumed=20),
    )
    assert found == {0: NOTHING, 1: [6.0, 8.0, 7.5, 10.0, 5.0, 8.0, 2.0]}


def test_an_engine_alone_says_when_its_own_load_began(store: Store) -> None:
    assert measure(store, update("1", "engine", step=0, started=3, applied=5))[0] == [2.0, 2.0, *[None] * 4, 1.0]


def test_a_trainer_alone_says_when_they_were_in_place(store: Store) -> None:
    assert measure(store, update("1", "trainer", step=0, requested=3, applied=5))[0] == [2.0, 2.0, *[None] * 4, 1.0]


def test_a_reload_is_no_delay(store: Store) -> None:
    first = update("1", "engine", "east", started=3, applied=4)
    again = update("1", "engine", "east", started=7200, applied=7201)
    assert measure(store, update("1", "trainer", step=0, requested=2, applied=2), again, first)[0][:2] == [2.0, 2.0]


def test_a_trainer_that_speaks_of_one_replica(store: Store) -> None:
    found = measure(
        store,
        update("1", "trainer", "east", step=0, requested=1),
        update("1", "trainer", "west", step=0, requested=5),
        update("1", "engine", "east", applied=6),
        update("1", "engine", "west", applied=6),
    )
    assert found[0][:2] == [3.0, 5.0]


FAULTS: dict[str, tuple[list[dict[str, Any]], list[float | None]]] = {
    "nobody recorded anything": ([], NOTHING),
    "no beginning": ([update("1", "engine", step=0, applied=5)], [*[None] * 6, 0.0]),
    "no end": ([update("1", "trainer", step=0, requested=5)], [*[None] * 6, 0.0]),
    "a replica without its end": (
        [
            update("1", "trainer", step=0, requested=1),
            update("1", "engine", "east", applied=4),
            update("1", "engine", "west", started=2),
        ],
        [3.0, 3.0, *[None] * 4, 1.0],
    ),
    "a clock set back": ([update("1", "engine", step=0, requested=9, applied=5, resumed=6)], [*[None] * 6, 0.0]),
    "weights of no step": ([update("1", "engine", requested=1, applied=5)], NOTHING),
    "weights of unknown version": ([update(None, "engine", step=0, requested=1, applied=5)], NOTHING),
    "weights of a step without data": ([update("1", "engine", step=9, requested=1, applied=5)], NOTHING),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_not_known_is_null(store: Store, fault: str) -> None:
    rows, expected = FAULTS[fault]
    assert measure(store, *rows) == {0: expected, 1: NOTHING}


def test_weights_that_arrive_later_compute_their_step_again(store: Store) -> None:
    """The trainer says of which step they are; the engine, later, when they were there."""
    measure(store, update("1", "trainer", step=1, requested=1))
    writer = SpoolWriter(store.home.path, RUN, "engine")
    writer.write("weights", records("weights", update("1", "engine", applied=4)))
    Ingester(store).run_once()
    assert stored(store)[1][:2] == [3.0, 3.0]
    assert sorted(stored(store)) == [0, 1]
