"""Routing replay, as planted: verified, broken in one way or another, or off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from judging.worlds import World
from recorded_home import feed
from segments import sampled, trained

from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.replay import Replay, from_rows
from logprobe.monitor.store.store import Store

LAYERS, TOKENS, TOOL = 3, 24, 5
RNG = np.random.default_rng(7)
Marks = Any
Made = Callable[[Marks, int, int], Marks]  # trained routes of a turn, from the sampled ones, the turn's number and rank


def routes(tokens: int = TOKENS) -> Marks:
    return RNG.integers(1, 40, (tokens, LAYERS)).astype(np.uint16)


def own(marks: Marks) -> Marks:
    """As a trainer chooses by itself: a few differ, by rounding."""
    return np.where(RNG.random(marks.shape) < 0.04, marks + 1, marks)


def shifted(marks: Marks, by: int = 1) -> Marks:
    return np.concatenate([routes(by), marks[:-by]])


def planted(made: Made, *, parts: bool) -> list[dict[str, Any]]:
    """Twelve sequences of two turns, with tokens of a tool between, on two ranks, as rows of ``diagnosis_routes``.

    `parts`: each turn is a request of its own.
    """
    rows = []
    for number in range(12):
        rank, length = number % 2, TOKENS + number % 5
        theirs, ids = [routes(length) for _ in range(2)], RNG.integers(2, 500, (2, length))
        ours = [made(marks, turn, rank) for turn, marks in enumerate(theirs)]
        trainer = {
            "rank": rank, "token_ids": [*ids[0], *[900] * TOOL, *ids[1]],
            "mask": [*[True] * length, *[False] * TOOL, *[True] * length],
            "routes": np.concatenate([ours[0], routes(TOOL), ours[1]]).reshape(-1).tolist(),
        }  # fmt: skip
        for turn in range(2) if parts else (slice(None),):
            tokens = np.ravel(ids[turn])
            at = (
                {"turn": turn, "start": turn * length, "end": (turn + 1) * length}
                if parts
                else {"turn": 0, "start": None, "end": None}
            )
            engine = {"rollout_token_ids": tokens, "rollout_routes": np.ravel(np.array(theirs)[turn])}
            rows.append({**trainer, **at, **engine})
    return rows


HEALTHY = World(steps=12).frame()


def findings(replay: Replay) -> dict[str, Any]:
    return {finding["cause"]: finding for finding in diagnosed(replace(HEALTHY, replay=replay))["findings"]}


@pytest.mark.parametrize("parts", [False, True], ids=["one request", "a request per turn"])
def test_routes_that_are_replayed_are_no_finding(parts: bool) -> None:
    replay = from_rows(planted(lambda marks, _turn, _rank: marks, parts=parts))
    assert (replay.agreement, replay.exact, replay.fault, replay.off) == (1.0, True, None, False)
    assert replay.compared == sum((TOKENS + number % 5) * 2 * LAYERS for number in range(12))
    assert not {"replay_broken", "replay_off"} & findings(replay).keys()


@pytest.mark.parametrize("parts", [False, True], ids=["one request", "a request per turn"])
def test_a_trainer_that_chooses_by_itself_replays_nothing(parts: bool) -> None:
    replay = from_rows(planted(lambda marks, _turn, _rank: own(marks), parts=parts))
    assert 0.9 < replay.agreement < 0.99
    found = findings(replay)
    assert "replay_broken" not in found
    assert (found["replay_off"]["urgency"], found["replay_off"]["vetoes"]) == ("informational", False)


PLANTED: dict[str, tuple[Made, str, int | None]] = {
    "shifted by one": (lambda marks, _turn, _rank: shifted(marks), "shift", -1),
    "shifted by three": (lambda marks, _turn, _rank: shifted(marks, 3), "shift", -3),
    "shifted on one rank": (lambda marks, _turn, rank: shifted(marks) if rank else marks, "rank", -1),
    "dropped on one rank": (lambda marks, _turn, rank: own(marks) if rank else marks, "rank", None),
    "misaligned from the second turn on": (lambda marks, turn, _rank: shifted(marks, TOOL) if turn else marks, "turn", None),
    "lost from the second turn on": (lambda marks, turn, _rank: routes(len(marks)) if turn else marks, "turn", None),
    "padded rows": (lambda marks, _turn, _rank: np.concatenate([marks[:-9], np.repeat(marks[:1], 9, axis=0)]), "padding", None),
    "empty rows": (lambda marks, _turn, _rank: np.concatenate([marks[:-9], np.zeros((9, LAYERS), np.uint16)]), "padding", None),
    "padded on the other side": (lambda marks, _turn, _rank: shifted(marks, TOKENS + 5 - len(marks)) if len(marks) < TOKENS + 5 else marks, "padding", None),
}  # fmt: skip


@pytest.mark.parametrize("parts", [False, True], ids=["one request", "a request per turn"])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_of_a_replay_are_found_where_they_are(name: str, parts: bool) -> None:
    made, kind, shift = PLANTED[name]
    replay = from_rows(planted(made, parts=parts))
    assert replay.fault is not None
    assert (replay.fault.kind, replay.fault.shift) == (kind, shift)
    finding = findings(replay)["replay_broken"]
    assert (finding["confidence"], finding["evidence"]["where"]) == (0.99, kind)
    assert replay.fault.where in finding["explanation"]


def test_an_old_trainer_is_no_broken_replay() -> None:
    """Other weights choose other experts for many tokens; they are found nowhere else."""
    made = lambda marks, _turn, _rank: np.where(RNG.random(marks.shape) < 0.4, marks + 1, marks)
    assert from_rows(planted(made, parts=False)).off


@pytest.mark.parametrize("parts", [False, True], ids=["one request", "a request per turn"])
def test_routes_are_read_from_the_records_of_both_sides(store: Store, parts: bool) -> None:
    """Routes of the first turn are those of the engine, of the second turn another's; a sequence without them says nothing."""
    rows = planted(lambda marks, turn, _rank: routes(len(marks)) if turn else marks, parts=parts)
    training, rollout = [trained("a"), {**trained("b"), "routes": [1, 2, 3, 4]}], [sampled("b")]
    for number, row in enumerate(rows):
        name = f"s{number // (1 + parts)}"
        ids = [int(token) for token in row["rollout_token_ids"]]
        prompt = 7 + (row["turn"] * (len(ids) + TOOL) if parts else 0)
        label = f"{name}/{row['turn']}" if parts else name
        engine = sampled(label, len(ids), token_ids=ids, logprobs=[-1.0] * len(ids), prompt_length=prompt)
        rollout.append({**engine, "routes": [int(route) for route in row["rollout_routes"]]})
        if not (parts and row["turn"]):
            tokens = [int(token) for token in row["token_ids"]]
            values = {"token_ids": tokens, "mask": row["mask"], "trainer_logprobs": [-1.0] * len(tokens)}
            record = trained(name, rank=row["rank"], n=len(tokens), received=False, **values)
            names = [f"{name}/0", f"{name}/1"] if parts else None
            training.append({**record, "routes": row["routes"], "part_ids": names})
    feed(store, rollout=rollout, training=training)
    replay = gather(store, "run").replay
    assert sorted(replay.turns, key=repr) == sorted(from_rows(rows).turns, key=repr)
    assert replay.fault is not None
    assert replay.fault.kind == "turn"
