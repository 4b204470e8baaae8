"""How much an engine would lose if it were killed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from logprobe.collectors.vllm.unwritten import Unwritten


def sequence(tokens: int, limit: int | None, *, finished: bool = False) -> SimpleNamespace:
    params = SimpleNamespace(max_tokens=limit)
    return SimpleNamespace(tokens=[0] * tokens, params=params, finish_reason="length" if finished else None)


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([], (0, 0)),
        ([sequence(3, 10), sequence(10, 10, finished=True), sequence(2, 9, finished=True)], (3, 22)),
        ([sequence(3, 10), sequence(3, None)], (2, None)),
    ],
)
def test_what_is_not_written(sequences: list[SimpleNamespace], expected: tuple[int, int | None]) -> None:
    found = Unwritten.of(sequences)
    assert (found.sequences, found.tokens) == expected


@pytest.mark.parametrize(
    ("known", "now", "said"),
    [
        ((0, 0), (0, 0), None),
        ((0, 0), (8, 80), (8, 80)),
        ((8, 80), (7, 70), None),
        ((8, 80), (10, 80), (12, 96)),  # with room to grow
        ((8, 80), (8, 90), (9, 108)),
        ((8, 80), (8, None), (9, None)),
        ((9, None), (8, 80), None),
        ((8, 80), (3, 30), (3, 30)),
        ((8, 80), (0, 0), (0, 0)),
    ],
)
def test_what_is_said(
    known: tuple[int, int | None], now: tuple[int, int | None], said: tuple[int, int | None] | None
) -> None:
    assert Unwritten(*now).instead_of(Unwritten(*known)) == (None if said is None else Unwritten(*said))
