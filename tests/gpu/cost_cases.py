"""What recording costs a training loop on a real device: steps with and without a recorder, in turns; printed, not judged."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from logprobe.collectors import Recorder

ROWS, TIME, VOCABULARY, WIDTH, LAYERS = 32, 512, 32_000, 1024, 8
TURNS, STEPS = 6, 8


class Policy(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCABULARY, WIDTH)
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, batch_first=True, dropout=0.0)
        self.layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(self.table(ids)))
        chosen = logits.gather(-1, ids[..., None])[..., 0].float()
        return chosen - logits.float().logsumexp(-1)


@pytest.mark.parametrize("raw_fraction", [1.0, 0.05])
def test_steps_with_and_without(tmp_path: Path, device: torch.device, raw_fraction: float) -> None:
    torch.manual_seed(0)
    policy = Policy().to(device, torch.bfloat16)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, VOCABULARY, (ROWS, TIME), device=device)
    mask = torch.ones(ROWS, TIME, dtype=torch.bool, device=device)
    advantages = torch.randn(ROWS, TIME, device=device)
    seconds: dict[str, list[float]] = {"without": [], "with": []}

    def train(recorder: Recorder | None, first: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        for step in range(first, first + STEPS):
            logprobs = policy(ids)
            (-(logprobs * advantages).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if recorder is not None:
                old = logprobs.detach()
                recorder.training(
                    step=step,
                    sample_ids=[f"{step}/{row}" for row in range(ROWS)],
                    token_ids=ids,
                    rollout_logprobs=old + 0.01,
                    trainer_logprobs=old,
                    mask=mask,
                    advantages=advantages,
                )
        torch.cuda.synchronize()
        return time.perf_counter() - began

    train(None, 0)
    with Recorder(tmp_path, "run", raw_fraction=raw_fraction) as recorder:
        train(recorder, 0)
        for turn in range(1, TURNS + 1):
            seconds["without"].append(train(None, 0))
            seconds["with"].append(train(recorder, turn * STEPS))
        assert recorder.flush()
    assert recorder.health["dropped"] == {}
    medians: dict[str, Any] = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["with"] / medians["without"]
    step = {name: round(1e3 * value / STEPS, 2) for name, value in medians.items()}
    cost = recorder.health["cost"]
    print(
        json.dumps(
            {"raw": raw_fraction, "tokens a step": ROWS * TIME, "ms a step": step, "ratio": round(ratio, 4), **cost}
        )
    )
