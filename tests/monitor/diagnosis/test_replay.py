"""Routing replay, as planted: verified, broken in one way or another, or off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from recorded_home import feed
from segments import sampled, trained

from logprobe.monitor.judging.explain import diagnosed
from logprobe.monitor.judging.gather import gather
from logprobe.monitor.judging.replay import Replay
from logprobe.monitor.store.store import Store

LAYERS, TOKENS, TOOL = 3, 24, 5
RNG = np.random.default_rng(7)
Marks = Any


def routes(tokens: int = TOKENS) -> Marks:
    return RNG.integers(1, 40, (tokens, LAYERS)).astype(np.uint16)


def own(marks: Marks) -> Marks:
    """As a trainer chooses by itself: a few differ, by rounding."""
    return np.where(RNG.random(marks.shape) < 0.04, marks + 1, marks)


def shifted(marks: Marks, by: int = 1) -> Marks:
    return np.concatenate([routes(by), marks[:-by]])


def logprobs(tokens: list[int]) -> list[float]:
    """The same on both sides: nothing but routes is at fault."""
    return [-0.1 - token % 7 for token in tokens]


class Run:
    """Sequences of two turns, with tokens of a tool between; on two ranks."""

    def __init__(self, store: Store, *, parts: bool = False) -> None:
        self.store, self.parts = store, parts

    def replay(self, made: Callable[[Marks, int, int], Marks], *, turns: int = 2, sequences: int = 12) -> Replay:
        """`made`: the trained routes of a turn, from the sampled ones, the turn's number and the rank."""
        training, rollout = [], []
        for number in range(sequences):
            rank, lengths = number % 2, [TOKENS + number % 5] * turns
            theirs = [routes(length) for length in lengths]
            name, ids = f"s{number}", [RNG.integers(2, 500, length).tolist() for length in lengths]
            ours: list[Marks] = []
            tokens: list[int] = []
            mask: list[bool] = []
            for turn, (marks, own_ids) in enumerate(zip(theirs, ids, strict=True)):
                tool = TOOL if turn else 0
                ours += [routes(tool), made(marks, turn, rank)]
                tokens += [900] * tool + own_ids
                mask += [False] * tool + [True] * len(own_ids)
            values = {"token_ids": tokens, "mask": mask, "trainer_logprobs": logprobs(tokens)}
            row = trained(name, rank=rank, n=len(tokens), received=False, **values)
            flat = np.concatenate(ours).reshape(-1).tolist()
            rollout += self.rollouts(name, ids, theirs)
            names = [each["sample_id"] for each in rollout[-turns:]] if self.parts else None
            training.append({**row, "routes": flat, "part_ids": names})
        feed(self.store, rollout=rollout, training=training)
        self.evidence = gather(self.store, "run")
        return self.evidence.replay

    def rollouts(self, name: str, ids: list[list[int]], theirs: list[Marks]) -> list[dict[str, Any]]:
        if not self.parts:
            ids, theirs = [[token for each in ids for token in each]], [np.concatenate(theirs)]
        found, prompt = [], 7
        for number, (own_ids, marks) in enumerate(zip(ids, theirs, strict=True)):
            label = f"{name}/{number}" if self.parts else name
            values = {"token_ids": own_ids, "logprobs": logprobs(own_ids)}
            row = sampled(label, len(own_ids), prompt_length=prompt, **values)
            found.append({**row, "routes": marks.reshape(-1).tolist()})
            prompt += len(own_ids) + TOOL
        return found

    def findings(self) -> dict[str, Any]:
        return {finding["cause"]: finding for finding in diagnosed(self.evidence)["findings"]}


@pytest.fixture(params=[False, True], ids=["one request", "a request per turn"])
def run(request: pytest.FixtureRequest, store: Store) -> Run:
    return Run(store, parts=request.param)


def test_routes_that_are_replayed_are_no_finding(run: Run) -> None:
    replay = run.replay(lambda marks, _turn, _rank: marks)
    assert (replay.agreement, replay.exact, replay.fault, replay.off) == (1.0, True, None, False)
    assert replay.compared == sum((TOKENS + number % 5) * 2 * LAYERS for number in range(12))
    assert not {"replay_broken", "replay_off"} & run.findings().keys()


def test_a_trainer_that_chooses_by_itself_replays_nothing(run: Run) -> None:
    replay = run.replay(lambda marks, _turn, _rank: own(marks))
    assert 0.9 < replay.agreement < 0.99
    found = run.findings()
    assert "replay_broken" not in found
    assert (found["replay_off"]["urgency"], found["replay_off"]["vetoes"]) == ("informational", False)


PLANTED: dict[str, tuple[Callable[[Marks, int, int], Marks], str, int | None]] = {
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


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_of_a_replay_are_found_where_they_are(store: Store, name: str) -> None:
    """Every second one with a request per turn."""
    made, kind, shift = PLANTED[name]
    run = Run(store, parts=list(PLANTED).index(name) % 2 == 1)
    replay = run.replay(made)
    assert replay.fault is not None
    assert (replay.fault.kind, replay.fault.shift) == (kind, shift)
    finding = run.findings()["replay_broken"]
    assert (finding["confidence"], finding["evidence"]["where"]) == (0.99, kind)
    assert replay.fault.where in finding["explanation"]


def test_routes_of_one_side_say_nothing(store: Store) -> None:
    feed(store, rollout=[sampled("a")], training=[{**trained("a"), "routes": [1, 2, 3, 4]}])
    replay = gather(store, "run").replay
    assert (replay.turns, replay.fault, replay.off) == ((), None, False)


def test_an_old_trainer_is_no_broken_replay(store: Store) -> None:
    """Other weights choose other experts for many tokens; they are found nowhere else."""
    replay = Run(store).replay(lambda marks, _turn, _rank: np.where(RNG.random(marks.shape) < 0.4, marks + 1, marks))
    assert replay.off
