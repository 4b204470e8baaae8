"""FSDP2 on two CPU ranks: a model in shards, sequences that each rank has whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.device_mesh
import torch.distributed.tensor
from spool_contents import by_sample, health_events
from torch import distributed

from logprobe.collectors import Recorder

PROGRAM = Path(__file__).with_name("fsdp2_program.py")


@pytest.mark.long
def test_ranks_of_a_sharded_model_record_what_the_whole_model_says(tmp_path: Path) -> None:
    """Log-probs that are themselves in shards are refused by name: their memory is one rank's part."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node=2",
        str(PROGRAM),
        str(tmp_path / "home"),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = {}
    for rank in range(2):
        expected |= json.loads((tmp_path / f"home-{rank}.json").read_text())
    found = by_sample(tmp_path / "home", "training")
    assert len(found) == 12
    assert {name: row["trainer_logprobs"] for name, row in found.items()} == {
        name: pytest.approx(values, abs=1e-6) for name, values in expected.items()
    }
    assert "internal_error" not in health_events(tmp_path / "home")


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
