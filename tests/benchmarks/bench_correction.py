"""What a correction costs: `correct` against the forward pass of a plain PPO loss on the same tensors, taking turns."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from figure import Figure

from logprobe.collectors.correction import Correction, CorrectionConfig, correct
from logprobe.collectors.correction.presets import preset

BATCH, TIME = 256, 2048
ROUNDS = 15
THREADS = 2
CONFIGS = {
    "TIS, token": preset("tis"),
    "MIS, token": preset("mis"),
    "MIS, geometric": preset("sequence-mis"),
    "TIS, token, normalized, rejection and veto (slime)": preset("slime/tis-rs"),
}

Tensors = dict[str, torch.Tensor]


def measure() -> list[Figure]:
    """All figures of this module."""
    torch.set_num_threads(THREADS)
    tensors = batch()
    calls: dict[str, Callable[[], object]] = {"ppo": lambda: ppo_loss(**tensors)}
    for name, config in CONFIGS.items():
        calls[name] = lambda config=config: corrected(config, tensors)  # type: ignore[misc]
    calls["report"] = lambda: dict(corrected(CONFIGS["MIS, token"], tensors).report)
    with torch.no_grad():
        seconds = fastest(calls)
    note = f"{BATCH} × {TIME} tokens, a quarter of it padding, float32, {THREADS} threads"
    figures = [
        Figure(
            f"correct: {name}",
            seconds[name] * 1e3,
            "ms",
            "",
            None,
            "plain PPO loss, forward",
            seconds["ppo"] * 1e3,
            note,
        )
        for name in CONFIGS
    ]
    words = "correct and its report: MIS, token"
    return [
        *figures,
        Figure(words, seconds["report"] * 1e3, "ms", "", None, "plain PPO loss, forward", seconds["ppo"] * 1e3, note),
    ]


def batch() -> Tensors:
    """One batch as a trainer holds it [batch, time]."""
    torch.manual_seed(0)
    rollout = -torch.rand(BATCH, TIME).exponential_(2.0) - 1e-3
    old = (rollout + 0.05 * torch.randn_like(rollout)).clamp(max=0)
    return {
        "rollout": rollout,
        "old": old,
        "current": (old + 0.02 * torch.randn_like(old)).clamp(max=0),
        "advantages": torch.randn(BATCH, 1).expand(BATCH, TIME).contiguous(),
        "mask": (torch.arange(TIME) < torch.randint(TIME // 2, TIME, (BATCH, 1))).float(),
    }


def corrected(config: CorrectionConfig, tensors: Tensors) -> Correction:
    return correct(config, tensors["rollout"], tensors["old"], tensors["mask"], advantages=tensors["advantages"])


def ppo_loss(
    rollout: torch.Tensor, old: torch.Tensor, current: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The clipped objective as trainers write it, with its clip fraction; `rollout` is not used."""
    del rollout
    ratio = torch.exp(torch.clamp(current - old, -20.0, 20.0))
    plain, clipped = -advantages * ratio, -advantages * torch.clamp(ratio, 0.8, 1.2)
    fraction = ((clipped > plain).float() * mask).sum() / mask.sum()
    return (torch.maximum(plain, clipped) * mask).sum() / mask.sum() + 0.0 * fraction


def fastest(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Fewest seconds of each call in rounds that take turns: what a machine can do when nobody else uses it."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
    return best
