"""Two ranks of plain torch with FSDP2 (`fully_shard`) on the CPU: `torchrun --nproc-per-node=2 fsdp2_program.py HOME`.

Each rank trains on sequences of its own, and writes to `HOME-<rank>.json` the log-probs that a whole copy of the model gives to them.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from logprobe.collectors import Recorder

VOCABULARY, WIDTH, BATCH, TIME = 16, 8, 2, 5


def scored(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """[batch, time − 1]: log-probs of all but the first token."""
    found: torch.Tensor = model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1)
    return found


def main(home: str) -> None:
    """Three steps, then one with log-probs of which no rank has all."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)]
    model = torch.nn.Sequential(*layers)
    whole = copy.deepcopy(model)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    assert all(hasattr(parameter, "full_tensor") for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(rank + 1)
    expected: dict[str, list[float]] = {}
    with Recorder(home=home, run="fsdp2", rank=rank) as recorder:
        for step in range(3):
            tokens = torch.randint(VOCABULARY, (BATCH, TIME))
            for parameter, sharded in zip(whole.parameters(), model.parameters(), strict=True):
                parameter.data = sharded.full_tensor().detach().clone()
            current = scored(model, tokens)
            names = [f"{step}/{rank}/{row}" for row in range(BATCH)]
            ids, mask = tokens[:, 1:], torch.ones(BATCH, TIME - 1)
            recorder.training(step=step, sample_ids=names, token_ids=ids, mask=mask, trainer_logprobs=current)
            expected |= dict(zip(names, scored(whole, tokens).tolist(), strict=True))
            optimizer.zero_grad()
            (-current.mean()).backward()
            optimizer.step()
        wanted = next(model.parameters())  # [vocabulary, width], of which each rank has half of the rows
        ids = torch.ones(VOCABULARY, WIDTH, dtype=torch.long)
        names = [f"sharded/{rank}/{row}" for row in range(VOCABULARY)]
        assert not recorder.training(step=3, sample_ids=names, token_ids=ids, mask=ids, trainer_logprobs=wanted)
        assert "trainer_logprobs: sharded over ranks" in recorder.health["last_error"], recorder.health
    Path(f"{home}-{rank}.json").write_text(json.dumps(expected), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
