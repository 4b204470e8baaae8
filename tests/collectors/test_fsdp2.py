"""A tensor that is sharded over ranks, as of FSDP2, is one rank's part of it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed.device_mesh
import torch.distributed.tensor
from torch import distributed

from logprobe.collectors import Recorder


def test_a_shard_does_not_pass_for_the_whole(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        sharded = distributed.tensor.distribute_tensor(torch.zeros(2, 3), mesh, [distributed.tensor.Shard(0)])
        whole = torch.ones(2, 3, dtype=torch.long)
        with Recorder(home=tmp_path / "home", run="run") as recorder:
            taken = recorder.training(
                step=1, sample_ids=["a", "b"], token_ids=whole, mask=whole, trainer_logprobs=sharded
            )
            assert not taken
            assert (
                "trainer_logprobs: sharded over ranks (DTensor); pass its full_tensor()"
                in recorder.health["last_error"]
            )
            assert recorder.health["dropped"]["bad_input"]["calls"] == 1
    finally:
        distributed.destroy_process_group()
