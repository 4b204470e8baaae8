"""Fingerprints of weights: the same on both sides, whatever dtype, fusion or device the weights are in; read without waiting."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from accelerator import Accelerator, Event
from torch import nn

from logprobe.collectors.fingerprint import Fingerprint, fingerprint, hashes, on_the_way, rounded, rounding
from logprobe.collectors.recorder.torch_bridge import Block
from logprobe.collectors.vllm.weights.exchange import Exchange
from logprobe.collectors.vllm.weights.pieces import pieces
from logprobe.collectors.vllm.weights.worker import WeightReader

HIDDEN, VOCABULARY, PADDED = 24, 50, 64


def by_key(found: Fingerprint) -> dict[str, int]:
    return dict(zip(found.keys, found.hashes.tolist(), strict=True))


def checkpoint(seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights as a trainer has them."""
    made = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made) * 0.05

    projections = {"q_proj": 32, "k_proj": 16, "v_proj": 16, "gate_proj": 40, "up_proj": 40}
    return {
        "model.embed_tokens.weight": random(VOCABULARY, HIDDEN),
        **{f"model.{name}.weight": random(rows, HIDDEN) for name, rows in projections.items()},
        "model.o_proj.weight": random(HIDDEN, 32),
        "model.norm.weight": 1 + random(HIDDEN),
    }


class Engine(nn.Module):
    """The same weights as vLLM keeps them: fused, padded, in bfloat16."""

    packed_modules_mapping: ClassVar = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }

    def __init__(self, state: dict[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.model = nn.Module()
        self.model.embed_tokens = self._layer(
            torch.cat([state["model.embed_tokens.weight"], torch.zeros(PADDED - VOCABULARY, HIDDEN)]), dtype
        )
        self.model.embed_tokens.org_vocab_size = VOCABULARY
        for fused, names in self.packed_modules_mapping.items():
            parts = [state[f"model.{name}.weight"] for name in names]
            layer = self._layer(torch.cat(parts), dtype)
            layer.output_partition_sizes = [len(part) for part in parts]
            setattr(self.model, fused, layer)
        self.model.o_proj = self._layer(state["model.o_proj.weight"], dtype)
        self.model.norm = self._layer(state["model.norm.weight"], dtype)
        self.lm_head = self.model.embed_tokens  # tied

    @staticmethod
    def _layer(weight: torch.Tensor, dtype: torch.dtype) -> nn.Module:
        layer = nn.Module()
        layer.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
        return layer


class Worker:
    """As much of vLLM's worker as is read."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def get_model(self) -> Any:
        return self.model


def reader(worker: Worker, folder: Path) -> WeightReader:
    return WeightReader(worker, Exchange(folder), None)


def read(of: WeightReader, worker: Worker) -> dict[str, int]:
    """What a reader says of its worker after two steps, without its thread."""
    for _ in range(2):
        of._wanted.append("check")
        of.after_step()
        of._report()
    of._wanted.clear()
    [(_, answer)] = Exchange(of._exchange.folder).new_answers()[-1:]
    return dict(zip(answer["keys"], answer["hashes"], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_engine_that_fuses_pads_and_rounds_has_the_trainers_fingerprint(dtype: torch.dtype, tmp_path: Path) -> None:
    state = checkpoint()
    trainer = by_key(fingerprint(state))
    worker = Worker(Engine(state, dtype))
    engine = read(reader(worker, tmp_path), worker)
    assert len(engine) == len(state), "q, k, v, gate and up are tensors of their own; the tied head is none"
    assert {name: trainer[name] for name in engine} == engine


def test_one_changed_value_in_sixty_four_is_another_hash() -> None:
    values = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    before = hashes(rounded(values, "float32"))
    values[1, 63] = np.nextafter(values[1, 63], np.float32(9))
    after = hashes(rounded(values, "float32"))
    assert (before != after).tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_that_of_torch(dtype: str) -> None:
    bits = np.random.default_rng(2).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    values = np.concatenate([bits.view(np.float32), np.array([np.inf, -np.inf, 0.0, -0.0, 65520.0], np.float32)])
    values = values[~np.isnan(values)]
    theirs = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.int16).numpy().view(np.uint16)
    assert np.array_equal(rounded(values, dtype), theirs)
    assert rounded(np.array([np.nan], np.float32), "bfloat16").tolist() == [0x7FC0]


def test_only_tensors_that_changed_have_other_hashes(tmp_path: Path) -> None:
    worker = Worker(Engine(checkpoint()))
    watched = reader(worker, tmp_path)
    before = read(watched, worker)
    with torch.no_grad():
        worker.model.model.qkv_proj.weight[32:48] *= 1.5  # k_proj
    after = dict(zip(before, _answers(watched)[-1]["hashes"], strict=True)) if read_again(watched) else {}
    assert {name.split(" ")[0] for name in before if before[name] != after[name]} == {"model.k_proj.weight"}


def read_again(of: WeightReader) -> bool:
    for _ in range(2):
        of._wanted.append("check")
        of.after_step()
        of._report()
    return True


def _answers(of: WeightReader) -> list[dict[str, Any]]:
    return [answer for _, answer in Exchange(of._exchange.folder).new_answers()]


def test_what_cannot_be_compared_is_left_out() -> None:
    class Sharded(torch.Tensor):
        def to_local(self) -> torch.Tensor:
            return self

    state = {
        "module._orig_mod.model.norm.weight": torch.ones(64),
        "sharded": torch.ones(64).as_subclass(Sharded),
        "meta": torch.ones(64, device="meta"),
        "ids": torch.arange(64),
        "scale": torch.ones(1),
        "transposed": torch.ones(8, 16).t(),
        "numpy": np.ones((8, 8), np.float32),
        "double": torch.ones(64, dtype=torch.float64),
    }
    names = {key.split(" ")[0] for key in fingerprint(state).keys}
    assert names == {"model.norm.weight", "numpy", "double"}
    assert fingerprint({}).keys == ()


def test_a_reading_in_the_middle_of_a_write_is_not_reported(tmp_path: Path) -> None:
    worker = Worker(Engine(checkpoint()))
    watched = reader(worker, tmp_path)
    read(watched, worker)
    told = len(_answers(watched))
    for _ in range(4):  # somebody writes all the time
        with torch.no_grad():
            worker.model.model.norm.weight += 0.25
        watched._wanted.append("check")
        watched.after_step()
        watched._report()
    assert len(_answers(watched)) == told
    watched.after_step()  # it asked for another look itself
    watched._report()
    assert len(_answers(watched)) == told + 1


# --- Beside the step's stream ---


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """In place of the GPU that is not there."""
    made = Accelerator()
    monkeypatch.setattr("logprobe.collectors.recorder.torch_bridge._backend", lambda _: made)
    monkeypatch.setattr("logprobe.collectors.recorder.torch_bridge.pinned_block", _block)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    return made


def _block(size: int) -> Block:
    memory = torch.empty(size, dtype=torch.uint8)
    return Block(memory.numpy(), memory)


def on_accelerator(model: Engine, accelerator: Accelerator) -> Engine:
    for module in model.modules():
        for name, weight in module._parameters.items():
            module._parameters[name] = accelerator.on(weight)
    return model


def test_on_an_accelerator_a_step_never_waits_for_its_reading(
    tmp_path: Path, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = checkpoint()
    worker = Worker(on_accelerator(Engine(state), accelerator))
    watched = reader(worker, tmp_path)
    monkeypatch.setattr(Event, "seen", False)
    watched._wanted.append("load")
    watched.after_step()
    assert watched.due, "what was copied has not arrived"
    watched.after_step()
    assert not watched._samples
    assert accelerator.bytes_to_host <= 4 * 64 * len(state), "a few values of each tensor"
    monkeypatch.setattr(Event, "seen", True)
    watched.after_step()
    assert not watched.due
    watched._report()
    trainer = by_key(fingerprint(state))
    engine = read(watched, worker)
    assert {name: trainer[name] for name in engine} == engine


def test_before_memory_goes_away_what_is_being_read_is_finished(tmp_path: Path, accelerator: Accelerator) -> None:
    worker = Worker(on_accelerator(Engine(checkpoint()), accelerator))
    watched = reader(worker, tmp_path)
    watched._wanted.append("load")
    watched.after_step()
    watched.sleeps()
    assert watched._copy is None
    assert len(watched._samples) == 1


def test_a_model_that_is_gone_is_not_kept(tmp_path: Path) -> None:
    worker = Worker(Engine(checkpoint()))
    plan = pieces(worker.model)
    assert all(piece.tensor() is not None for piece in plan)
    worker.model = None
    assert all(piece.tensor() is None for piece in plan)


def test_experts_of_several_ranks_and_those_that_move_are_told_apart() -> None:
    model = nn.Module()
    for name, more in {"spread": {"ep_size": 4, "ep_rank": 2}, "moving": {"enable_eplb": True}}.items():
        layer = nn.Module()
        layer.w2_weight = nn.Parameter(torch.ones(2, 8, 8))
        vars(layer).update(more)
        setattr(model, name, layer)
    assert [piece.key for piece in pieces(model)] == ["spread.w2_weight@ep2/4 float32[2,8,8]"]


def test_a_thousandth_of_the_time_is_never_exceeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)  # this thread has done other things
    worker = Worker(SimpleNamespace())
    watched = reader(worker, tmp_path)
    now = time.monotonic()
    watched._once = 0.0
    assert watched._affordable(now)
    watched.spent = 0.2
    assert not watched._affordable(now + 10)
    assert watched._affordable(now + 1000)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_engine_in_float32_that_got_rounded_weights_is_known(dtype: torch.dtype) -> None:
    state = checkpoint()
    trainer = by_key(fingerprint(state))
    engine = by_key(fingerprint({name: weight.to(dtype).float() for name, weight in state.items()}))
    name = "model.norm.weight float32[24]"
    assert engine[name] == trainer[on_the_way(name, str(dtype).removeprefix("torch."))] != trainer[name]


def test_rounding_counts_what_changes_and_what_still_does() -> None:
    """By hand: 1 + k/128 are all that bfloat16 has between 1 and 2, and float16 has 8 times as many."""
    before, after = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
    after.flat[:3] = 1 + 1 / 128, 1 + 1 / 512, 1 + 1 / 8192
    first, second = fingerprint({"w": before, "few": np.ones(3, np.float32)}), fingerprint({"w": after})
    assert rounding(first, None) == {"sampled": 16, "exact bfloat16": 16, "exact float16": 16}
    told = rounding(second, first)
    assert told == {
        "sampled": 16, "exact bfloat16": 14, "exact float16": 15,
        "changed": 3, "changed bfloat16": 1, "changed float16": 2,
    }  # fmt: skip
    assert "changed" not in rounding(fingerprint({"v": after}), first), "other tensors are not compared"
    assert rounding(Fingerprint(("w float32[16]",), np.zeros(1, np.uint32)), first) == {}, "an engine's has no values"
