"""Copies among the answers to a prompt are counted where chance gives none."""

from __future__ import annotations

from typing import Any

from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor.store.store import Store

Rows = list[dict[str, Any]]
RARE = {"rollout_logprobs": [-4.0] * 4, "trainer_logprobs": [-4.1] * 4}  # e^-16 = 1e-7
LIKELY = {"rollout_logprobs": [-3.0] * 4, "trainer_logprobs": [-3.1] * 4}  # e^-12 = 6e-6
BROKEN = {"rollout_logprobs": [-4.0] * 3 + [float("nan")]}
FIVE = {"mask": [True] * 4 + [False], "rollout_logprobs": [-4.0] * 5, "trainer_logprobs": [-4.0] * 5}


def answers(count: int, group: str | None = "p", **fields: Any) -> Rows:
    return [trained(f"{group}{index}", group_id=group, **{**RARE, **fields}) for index in range(count)]


def other(**fields: Any) -> Rows:
    return [trained("x", group_id="p", **{**RARE, **fields})]


# Answers of a step; how many have siblings, and how many are copies of one of these.
CASES: list[tuple[Rows, tuple[int, int]]] = [
    (answers(8), (8, 7)),
    (answers(8, **LIKELY), (8, 0)),
    (answers(8, trainer_logprobs=[-0.1] * 4), (8, 0)),  # the trainer scales by a temperature, the engine does not
    (answers(4) + answers(4, "q", token_ids=[5, 6, 7, 8]), (8, 6)),
    (answers(1) + answers(1, "q"), (0, 0)),
    (answers(3, None), (0, 0)),
    (answers(1) + other(token_ids=[0, 1, 2, 9]), (2, 0)),
    (answers(1) + answers(1, rank=1), (0, 0)),  # one sequence, recorded by two ranks
    (answers(2) + other(**BROKEN), (2, 1)),
    (answers(2, mask=[False] * 4), (0, 0)),
    ([trained(f"m{n}", 0, 5, group_id="p", token_ids=[0, 1, 2, 3, n], **FIVE) for n in range(2)], (2, 1)),
]


def test_copies_of_a_step(store: Store) -> None:
    for step, (rows, _) in enumerate(CASES):
        feed(store, training=[row | {"step": step, "sample_id": f"{step}/{row['sample_id']}"} for row in rows])
    # The engine knows the prompt where the trainer does not.
    feed(store, training=[trained(f"s{n}", 99, received=False, trainer_logprobs=[-4.1] * 4) for n in range(3)])
    hashes = [{"logprobs": [-4.0] * 4, "prompt_hash": "a" if n else "b"} for n in range(3)]
    feed(store, rollout=[sampled(f"s{n}", **each) for n, each in enumerate(hashes)])
    found = store.query("SELECT grouped, copies FROM step_summaries WHERE run = ? ORDER BY step", [RUN]).to_pylist()
    assert [(row["grouped"], row["copies"]) for row in found] == [*(expected for _, expected in CASES), (2, 1)]
