"""The memory of a recorder's copies: no piece is given twice, and a peak does not stay with the process."""

from __future__ import annotations

import errno
import mmap
import random
import resource
from pathlib import Path

import numpy as np
import pytest
from spool_contents import by_sample

from logprobe.collectors import Recorder
from logprobe.collectors.recorder.ring import Claim, Ring


@pytest.mark.parametrize("seed", range(20))
def test_no_two_claims_share_a_byte_in_whatever_order_they_are_given_back(seed: int):
    chance, ring = random.Random(seed), Ring(1000)
    held: list[tuple[Claim, int]] = []
    taken = 0
    for number in range(600):
        nbytes = chance.choice((0, 1, 7, 100, 260, 999))
        if chance.random() < 0.55 and (claim := ring.claim(nbytes, chance.choice((0, 5)))) is not None:
            ring.memory[claim.start : claim.start + nbytes] = number % 251
            held.append((claim, number % 251))
            taken += 1
        elif held:
            ring.give_back(held.pop(chance.choice((0, 0, chance.randrange(len(held)))))[0])
        for claim, mark in held:
            assert (ring.memory[claim.start : claim.start + claim.nbytes] == mark).all()
        assert ring.in_use == sum(claim.nbytes + claim.elsewhere for claim, _ in held) <= ring.limit
    assert taken > 100
    for claim, _ in held:
        ring.give_back(claim)
    whole = ring.claim(1000)
    assert whole is not None, "an empty ring has all its memory in one piece"
    assert whole.start == 0


def test_a_system_without_huge_pages_has_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)
    assert Ring(4096).claim(4096) is not None


def test_a_system_without_memory_costs_the_calls_and_raises_nothing(home: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with Recorder(home, "run") as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(mmap, "mmap", refuse)
            assert not recorder.rollout(sample_ids=["lost"], token_ids=[[1]], logprobs=[[-1.0]])
        assert recorder.rollout(sample_ids=["kept"], token_ids=[[1]], logprobs=[[-1.0]])
    assert recorder.health["dropped"]["internal_error"] == {"calls": 1, "sequences": 1, "tokens": 1}
    assert set(by_sample(home, "rollout")) == {"kept"}


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def test_the_memory_of_a_peak_goes_back_to_the_system():
    ring, before = Ring(128 << 20), resident()
    claim = ring.claim(100 << 20)
    assert claim is not None
    ring.memory[: 100 << 20] = np.uint8(1)
    assert resident() > before + 90
    ring.tend()
    assert ring.memory[(100 << 20) - 1] == 1, "what is in use stays"
    ring.give_back(claim)
    for _ in range(60):
        ring.tend()
    assert resident() < before + 30
