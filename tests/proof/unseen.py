"""Situations that nobody looked at while the rules of a bisection were written: run once, at the end, by trainers.py and engine_faults.py.

    python tests/proof/trainers.py FOLDER unseen
    python tests/proof/engine_faults.py FOLDER --unseen

Written on 2026-11-25, before any of them was run. Whoever changes a rule because of one has seen it: it moves to the others, and a new one comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import engine_faults
import trainers
from trainers import Rows, Scored, changed, given, on_some

# --- Trainers outside the list of knobs ---


def _one_head(model: Any) -> None:
    """One attention head of one layer contributes nothing."""
    layer = model.model.layers[2].self_attn
    layer.o_proj.weight[:, : layer.head_dim] = 0


def _bias(model: Any) -> None:
    """The head has a bias that the checkpoint does not."""
    import torch

    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(0.1 * torch.randn(head.weight.shape[0]))


def _swapped(model: Any) -> None:
    """Two layers in each other's place."""
    first, second = model.model.layers[0], model.model.layers[1]
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)


def _four_bits(model: Any) -> None:
    """The feed-forward weights in 4 bits per row."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "self_attn" not in name and "layers" in name:
            scale = weight.abs().amax(1, keepdim=True) / 7
            weight.copy_((weight / scale).round() * scale)


def _stepped(model: Any) -> None:
    """Weights one small optimizer step further."""
    import torch

    for weight in model.parameters():
        weight.add_(1e-3 * torch.sign(torch.randn_like(weight)))


def _bfloat16_norms(model: Any) -> None:
    """Norms in bfloat16, the rest in float32."""
    for name, module in model.named_modules():
        if name.endswith("norm"):
            module.register_forward_hook(lambda *args: args[-1].bfloat16().float())


def _bfloat16_attention(model: Any) -> None:
    """What attention returns goes through bfloat16."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, args: (args[0].bfloat16().float(),))


def _gap_in_positions(model: Any, ids: list[int]) -> Any:
    """Positions jump by 7 in the middle of the sequence."""
    import torch

    places = torch.arange(len(ids))
    places[len(ids) // 2 :] += 7
    return model(torch.tensor([ids]), position_ids=places[None]).logits[0]


def _blocks(model: Any, ids: list[int]) -> Any:
    """Attention within blocks of 32 tokens, as a packing that cuts long sequences makes it."""
    import torch

    at = torch.arange(len(ids))
    right = (at[:, None] >= at[None]) & (at[:, None] // 32 == at[None] // 32)
    mask = torch.zeros(right.shape).masked_fill(~right, -1e9)
    return model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]


def _first_masked(model: Any, ids: list[int]) -> Any:
    """The first token is taken for padding."""
    import torch

    at = torch.arange(len(ids))
    wrong = (at[:, None] < at[None]) | ((at[None] == 0) & (at[:, None] > 0))
    mask = torch.zeros(wrong.shape).masked_fill(wrong, -1e9)
    return model(torch.tensor([ids]), attention_mask=mask[None, None]).logits[0]


def _unlikely_floor(folder: Path, rows: Rows) -> Scored:
    """Log-probs are clamped at -4."""
    return [[max(one, -4.0) for one in row] for row in given()(folder, rows)]


def _scaled(folder: Path, rows: Rows) -> Scored:
    """Log-probs divided by the temperature after the softmax instead of logits before it."""
    return [[one / trainers.TEMPERATURE for one in row] for row in given(temperature=1.0)(folder, rows)]


def _late(wrong: Callable[[Path, Rows], Scored]) -> Callable[[Path, Rows], Scored]:
    """The second half of each response alone has the fault."""

    def score(folder: Path, rows: Rows) -> Scored:
        right, other = given()(folder, rows), wrong(folder, rows)
        return [[*a[: len(a) // 2], *b[len(a) // 2 :]] for a, b in zip(right, other, strict=True)]

    return score


def _mixed(folder: Path, rows: Rows) -> Scored:
    """Half of a mean over two trainers, one in bfloat16: an average of log-probs."""
    right, other = given()(folder, rows), given(dtype="bfloat16")(folder, rows)
    return [[(x + y) / 2 for x, y in zip(a, b, strict=True)] for a, b in zip(right, other, strict=True)]


def _repeated(folder: Path, rows: Rows) -> Scored:
    """Padding on the right was cut one token short: the last value is that of the token before it."""
    return [[*row[:-1], row[-2]] for row in given()(folder, rows)]


TRAINERS: Mapping[str, trainers.Fault] = {
    "one_head": trainers.Fault("an attention head of one layer is zero", changed(weights=_one_head)),
    "bias": trainers.Fault("a bias in the head", changed(weights=_bias)),
    "swapped": trainers.Fault("two layers in each other's place", changed(weights=_swapped)),
    "four_bits": trainers.Fault("feed-forward weights in 4 bits", changed(weights=_four_bits)),
    "stepped": trainers.Fault("weights one optimizer step further", changed(weights=_stepped)),
    "bf16_norms": trainers.Fault("norms in bfloat16", changed(weights=_bfloat16_norms)),
    "bf16_attention": trainers.Fault("attention in bfloat16", changed(weights=_bfloat16_attention)),
    "position_gap": trainers.Fault("positions that jump by 7", changed(passes=_gap_in_positions)),
    "blocks": trainers.Fault("attention within blocks of 32", changed(passes=_blocks)),
    "first_masked": trainers.Fault("the first token taken for padding", changed(passes=_first_masked)),
    "floor": trainers.Fault("log-probs clamped at -4", _unlikely_floor),
    "scaled": trainers.Fault("log-probs divided by the temperature, not logits", _scaled),
    "late_temperature": trainers.Fault("no temperature in the second half of responses", _late(given(temperature=1.0))),
    "late_shift": trainers.Fault("logits shifted in the second half of responses", _late(given(shift=1))),
    "some_temperature": trainers.Fault("no temperature on one rank of three", on_some(given(temperature=1.0), 3)),
    "some_mask": trainers.Fault("mask shifted on one rank of six", on_some(given(mask_shift=1), 6)),
    "mixed": trainers.Fault("a mean of a trainer in bfloat16 and one in float32", _mixed),
    "repeated": trainers.Fault("the last token has its neighbour's value", _repeated),
    "mask_two": trainers.Fault("mask shifted by two", given(mask_shift=-2)),
    # With a knob.
    "mask_temperature": trainers.Fault(
        "mask shifted, without the temperature",
        given(mask_shift=1, temperature=1.0),
        ("trainer.mask_shift", "trainer.temperature"),
    ),
    "head_shift": trainers.Fault(
        "head in bfloat16, logits one early",
        given(head_dtype="bfloat16", shift=-1),
        ("trainer.shift", "trainer.head_dtype"),
    ),
    "packed_bf16": trainers.Fault(
        "packed, in bfloat16", given(packing=True, dtype="bfloat16"), ("trainer.packing", "trainer.dtype")
    ),
    "fp16_shift": trainers.Fault(
        "float16, shifted", given(dtype="float16", shift=1), ("trainer.shift", "trainer.dtype")
    ),
    "three": trainers.Fault(
        "mask shifted, packed, in float16",
        given(mask_shift=-1, packing=True, dtype="float16"),
        ("trainer.mask_shift", "trainer.packing", "trainer.dtype"),
    ),
    "sdpa": trainers.Fault(
        "other attention kernels, in float32", given(attn_implementation="sdpa"), sides=("unknown",)
    ),
}

# --- Engines ---

_Fault = engine_faults.Fault
_UNSURE = engine_faults.UNSURE

ENGINES: Mapping[str, engine_faults.Fault] = {
    # Outside the list of knobs.
    "experts-epsilon": _Fault("a norm epsilon of 0.02, recorded", "experts", ("engine",), engine={"hf_overrides": {"rms_norm_eps": 0.02}}),
    "experts-layer": _Fault("one layer's weights perturbed in the engine", "experts", _UNSURE, weights="layer"),
    "window-adapter": _Fault("an adapter missing in the engine", "window", _UNSURE, weights="adapter"),
    "llama-stale": _Fault("a stale prefix cache, its weights are not there", "llama", _UNSURE, engine={"enable_prefix_caching": True}, warm="adapter"),
    "tied-penalty": _Fault("a presence penalty that the sample does not name", "tied", _UNSURE, sampling={"presence_penalty": 0.9}, noted={}),
    "window-unscaled": _Fault("rope scaling that the checkpoint lacks, recorded", "window", ("engine",), engine=engine_faults.SCALED),
    # With a knob, or healthy.
    "experts-raw": _Fault("raw log-probs", "experts", ("engine",), engine={"logprobs_mode": "raw_logprobs"}, knobs=("logprobs_mode",)),
    "window-bf16-min-p": _Fault("bfloat16, and min-p that the trainer does not apply", "window", ("engine",), engine={"dtype": "bfloat16"}, sampling={"min_p": 0.1}, knobs=("min_p", "dtype")),
    "llama-head": _Fault("the head in bfloat16", "llama", ("engine",), engine={"hf_overrides": {"head_dtype": "bfloat16"}}, knobs=("head_dtype",)),
    "healthy-experts": _Fault("nothing", "experts", ("none",)),
}  # fmt: skip
