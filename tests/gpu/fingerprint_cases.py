"""Fingerprints of weights that lie on a real device: those of the host, read without a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_fingerprint import Engine, Worker, by_key, checkpoint, reader

from logprobe.collectors.fingerprint import fingerprint, places

WAIT_SECONDS = 0.2


def on(device: torch.device, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in state.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_it_is_that_of_the_host(device: torch.device, dtype: torch.dtype) -> None:
    state = {name: tensor.to(dtype) for name, tensor in checkpoint().items()}
    there, here = fingerprint(on(device, state)), fingerprint(state)
    assert there.keys == here.keys
    assert there.digest == here.digest


def test_one_changed_value_is_another_hash(device: torch.device) -> None:
    state = on(device, checkpoint())
    before = by_key(fingerprint(state))
    name = "model.o_proj.weight"
    start, step, _ = places(name, state[name].shape)
    state[name].view(-1)[start + 3 * step] += 1e-3
    after = by_key(fingerprint(state))
    changed = {key.split(" ")[0] for key in before if before[key] != after[key]}
    assert changed == {name}


def test_a_worker_reads_beside_its_steps(tmp_path: Path, device: torch.device, busy: Callable[[], Any]) -> None:
    state = checkpoint()
    worker = Worker(Engine(state).to(device))
    watched = reader(worker, tmp_path)
    end = busy()
    watched._wanted.append("load")
    began = time.monotonic()
    watched.after_step()
    watched.after_step()
    waited = time.monotonic() - began
    assert not end.query()
    assert waited < WAIT_SECONDS
    assert watched.due, "what was copied has not arrived"
    torch.cuda.synchronize()
    watched.after_step()
    assert not watched.due
    assert len(watched._samples) == 1
    watched._report()
    watched._wanted.clear()
    watched._wanted.append("again")
    watched.after_step()
    torch.cuda.synchronize()
    watched.after_step()
    watched._report()
    trainer = by_key(fingerprint(state))
    [(_, answer)] = watched_answers(watched)
    engine = dict(zip(answer["keys"], answer["hashes"], strict=True))
    assert engine == {name: trainer[name] for name in engine}
    assert len(engine) == len(state)


def watched_answers(watched: Any) -> list[Any]:
    from logprobe.collectors.vllm.weights.exchange import Exchange

    return Exchange(watched._exchange.folder).new_answers()
