"""Corrections on a real device: the numbers of the host, and no wait for the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from correction_batches import EVERYTHING, batch
from moving import moved

from logprobe.collectors.correction import CorrectionConfig, correct

WAIT_SECONDS = 0.2
CONFIGS = {
    "everything": EVERYTHING,
    "truncate": CorrectionConfig(is_level="token"),
    "mask": CorrectionConfig(is_level="token", is_mode="mask", is_lower=0.5, is_upper=2.0),
    "sequence": CorrectionConfig(is_level="sequence", normalize=True),
    "max": CorrectionConfig(rs_level="max", rs_lower=0.4, rs_upper=3.0),
    "binary KL": CorrectionConfig(rs_level="token", rs_measure="binary_kl", rs_upper=0.1),
}


def named(dtype: torch.dtype, sequences: int = 64, time: int = 300) -> dict[str, Any]:
    names = ("rollout", "trainer", "mask", "advantages")
    found = dict(zip(names, map(torch.from_numpy, batch(5, sequences, time, 0.2)), strict=True))
    return {name: value if name == "mask" else value.to(dtype) for name, value in found.items()}


def corrected(config: CorrectionConfig, given: dict[str, Any]) -> Any:
    return correct(
        config,
        given["rollout"],
        given["trainer"],
        given["mask"],
        advantages=given["advantages"],
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_weights_and_masks_are_those_of_the_host(device: torch.device, name: str, dtype: torch.dtype) -> None:
    host = corrected(CONFIGS[name], named(dtype))
    there = corrected(CONFIGS[name], moved(named(dtype), device))
    assert there.weights.device == there.mask.device == device
    assert torch.equal(there.mask.cpu(), host.mask)
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    torch.testing.assert_close(there.weights.cpu(), host.weights, rtol=tolerance, atol=tolerance)
    ours, theirs = there.deferred()(), host.deferred()()
    assert ours["fingerprint"] == theirs["fingerprint"]
    assert ours["report"] == pytest.approx(theirs["report"], rel=tolerance, abs=tolerance, nan_ok=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_nobody_waits_for_the_device(device: torch.device, busy: Callable[[], Any], name: str) -> None:
    given = moved(named(torch.float32), device)
    corrected(CONFIGS[name], given).deferred()()  # kernels are loaded once
    end = busy()
    began = time.monotonic()
    found = corrected(CONFIGS[name], given)
    later = found.deferred()
    waited = time.monotonic() - began
    assert not end.query()
    assert waited < WAIT_SECONDS
    assert later()["report"]
