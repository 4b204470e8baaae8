"""Copies among the answers to a prompt are counted where chance gives none."""

from __future__ import annotations

from typing import Any

import pytest
from recorded_home import feed
from segments import RUN, sampled, trained

from logprobe.monitor.store.store import Store

RARE = {"rollout_logprobs": [-4.0] * 4, "trainer_logprobs": [-4.1] * 4}  # e^-16 = 1e-7
LIKELY = {"rollout_logprobs": [-3.0] * 4, "trainer_logprobs": [-3.1] * 4}  # e^-12 = 6e-6


def counts(store: Store, rows: list[dict[str, Any]], **kinds: list[dict[str, Any]]) -> tuple[int, int]:
    feed(store, training=rows, **kinds)
    (found,) = store.query("SELECT grouped, copies FROM step_summaries WHERE run = ?", [RUN]).to_pylist()
    return found["grouped"], found["copies"]


def answers(count: int, group: str | None = "p", **fields: Any) -> list[dict[str, Any]]:
    return [trained(f"{group}{index}", group_id=group, **{**RARE, **fields}) for index in range(count)]


def ids(*values: int) -> dict[str, Any]:
    return {"token_ids": list(values)}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (answers(8), (8, 7)),
        (answers(8, **LIKELY), (8, 0)),
        (answers(8, trainer_logprobs=[-0.1] * 4), (8, 0)),  # the trainer scales by a temperature, the engine does not
        (answers(4) + answers(4, "q", **ids(5, 6, 7, 8)), (8, 6)),
        (answers(1) + answers(1, "q"), (0, 0)),
        (answers(3, None), (0, 0)),
        ([*answers(1), trained("x", group_id="p", **RARE, **ids(0, 1, 2, 9))], (2, 0)),
        ([*answers(1), *answers(1, rank=1)], (0, 0)),  # one sequence, recorded by two ranks
        ([*answers(2), trained("x", group_id="p", **{**RARE, "rollout_logprobs": [-4.0] * 3 + [float("nan")]})], (2, 1)),
        (answers(2, mask=[False] * 4), (0, 0)),
        (
            [trained(f"m{n}", 0, 5, group_id="p", mask=[True] * 4 + [False], token_ids=[0, 1, 2, 3, n],
                     rollout_logprobs=[-4.0] * 5, trainer_logprobs=[-4.0] * 5) for n in range(2)],
            (2, 1),
        ),
    ],
)  # fmt: skip
def test_copies_of_a_step(store: Store, rows: list[dict[str, Any]], expected: tuple[int, int]) -> None:
    assert counts(store, rows) == expected


def test_the_engine_knows_the_prompt_where_the_trainer_does_not(store: Store) -> None:
    rows = [trained(f"s{n}", received=False, trainer_logprobs=[-4.1] * 4) for n in range(3)]
    engine = [sampled(f"s{n}", logprobs=[-4.0] * 4, prompt_hash="a" if n else "b") for n in range(3)]
    assert counts(store, rows, rollout=engine) == (2, 1)
