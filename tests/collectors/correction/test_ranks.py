"""Weights normalized over ranks are those of one process with all the data: two ranks, gloo."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from correction_batches import LEVELS, batch
from torch import distributed

from logprobe.collectors.correction import CorrectionConfig, Report, correct
from logprobe.collectors.errors import InputError

ROLLOUT, TRAINER, MASK, _ = batch(seed=6, sequences=8)
PARTS = (slice(0, 3), slice(3, 8))  # the second has the sequence without a token; ranks differ in size
CONFIGS = [
    CorrectionConfig(is_level=level, is_mode=mode, is_lower=0.7, is_upper=1.4, normalize=True)
    for level in LEVELS
    for mode in ("truncate", "clip", "mask")
]


def weigh(rank: int, store: distributed.Store) -> list[tuple[torch.Tensor, dict[str, float]]]:
    group = distributed.ProcessGroupGloo(store, rank, 2, timedelta(minutes=9))
    sides = [torch.tensor(values[PARTS[rank]]) for values in (ROLLOUT, TRAINER, MASK)]
    found = []
    for config in CONFIGS:
        mine = correct(config, *sides, group=group)
        found.append((mine.weights, mine.report.sums))
        alone = correct(config, sides[0], sides[1], sides[2] & (rank == 0), group=group)
        found.append((alone.weights, alone.report.sums))
    return found


@pytest.fixture(scope="module")
def ranks() -> list[list[tuple[torch.Tensor, dict[str, float]]]]:
    """Two ranks of gloo in two threads: spawned processes import this file again, and one that ends then says nothing."""
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        return list(threads.map(weigh, (0, 1), [distributed.HashStore()] * 2))


@pytest.mark.parametrize("number", range(len(CONFIGS)), ids=lambda number: f"{CONFIGS[number]}")
def test_two_ranks_weigh_as_one(number: int, ranks: list[list[tuple[torch.Tensor, dict[str, float]]]]) -> None:
    whole = correct(CONFIGS[number], ROLLOUT, TRAINER, MASK)
    together = torch.cat([rank[2 * number][0] for rank in ranks]).numpy()
    assert together == pytest.approx(whole.weights)
    first, second = (Report(rank[2 * number][1]) for rank in ranks)
    assert dict(Report.merge(first, second)) == pytest.approx(dict(whole.report))
    alone = correct(CONFIGS[number], *(side[PARTS[0]] for side in (ROLLOUT, TRAINER, MASK)))
    assert together[PARTS[0]] != pytest.approx(alone.weights)
    # and where the second rank has no token, which takes part
    assert ranks[0][2 * number + 1][0].numpy() == pytest.approx(alone.weights)
    assert not ranks[1][2 * number + 1][0].any()


def test_a_group_needs_tensors() -> None:
    with pytest.raises(InputError, match="sums over ranks need torch tensors"):
        correct(CONFIGS[0], ROLLOUT, TRAINER, MASK, group=object())
