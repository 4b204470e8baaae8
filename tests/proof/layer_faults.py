"""A trainer one of whose layers is wrong: ``--trainer layer_faults:score``; and whether the first layer that drifts is named, and the operation.

    PYTHONPATH=tests/proof:tests/e2e python tests/proof/layer_faults.py FOLDER

As a program, the same of a real engine.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

LAYERS = 6
FAULTS = (
    ("q_proj", 0), ("k_proj", 5), ("v_proj", 1), ("o_proj", 3), ("gate_proj", 2), ("down_proj", 4),
    ("rope", 1), ("rope", 4), ("epsilon", 2), ("scaling", 3), ("norm", 0), ("nothing", 0),
)  # fmt: skip


def score(
    sequences: Sequence[Mapping[str, Any]],
    model: Path,
    *,
    fault: str,
    layer: int,
    dtype: str = "float32",
    attention: str = "sdpa",
) -> list[list[float]]:
    """Log-probs by all sequences in one padded batch, as trainers compute them."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation=attention)
    with torch.no_grad():
        _spoil(network, network.model.layers[layer], fault)
        ids = [[*one["prompt_ids"], *one["response_ids"]] for one in sequences]
        longest = max(map(len, ids))
        batch = torch.tensor([one + [0] * (longest - len(one)) for one in ids])
        logits = network(batch).logits.float()
    answers = []
    for row, one in zip(logits, sequences, strict=True):
        start, response = len(one["prompt_ids"]), torch.tensor(one["response_ids"])
        scaled = (row[start - 1 : start - 1 + len(response)] / one["temperature"]).log_softmax(-1)
        answers.append(scaled.gather(1, response[:, None])[:, 0].tolist())
    return answers


def _spoil(network: Any, layer: Any, fault: str) -> None:
    import torch

    torch.manual_seed(1)
    if fault.endswith("_proj"):
        weight = layer.get_submodule(("mlp." if fault in ("gate_proj", "down_proj") else "self_attn.") + fault).weight
        weight.add_(0.05 * weight.std() * torch.randn_like(weight))
    elif fault == "rope":
        forward = layer.self_attn.forward

        def doubled(*args: Any, position_embeddings: Any = None, **kwargs: Any) -> Any:
            cos, sin = position_embeddings
            return forward(
                *args, position_embeddings=(cos.roll(1, dims=1), sin.roll(1, dims=1)[..., :] * 0.9), **kwargs
            )

        layer.self_attn.forward = doubled
    elif fault == "epsilon":
        layer.input_layernorm.variance_epsilon = 1e-2
    elif fault == "scaling":
        layer.self_attn.scaling *= 0.9
    elif fault == "norm":
        layer.post_attention_layernorm.weight.mul_(1.02)


# The operation that each fault is first seen at, where both sides compute the same numbers until then.
_GIVEN = "what layer {} self_attn.o_proj is given"
OPERATIONS = {
    **{f"{name}_proj": f"layer {{}} self_attn.{name}_proj" for name in "qkvo"},
    **{f"{name}_proj": f"layer {{}} mlp.{name}_proj" for name in ("gate", "down")},
    "rope": _GIVEN, "scaling": _GIVEN, "epsilon": "layer {} input_layernorm", "norm": "layer {} post_attention_layernorm",
}  # fmt: skip
# An engine fuses products, and its attention is a module.
OF_ENGINE = {
    **OPERATIONS, **{f"{name}_proj": "layer {} self_attn.qkv_proj" for name in "qkv"}, "gate_proj": "layer {} mlp.gate_up_proj",
    **dict.fromkeys(("rope", "scaling"), "layer {} self_attn.attn"),
}  # fmt: skip


def model(folder: Path) -> list[dict[str, Any]]:
    """Makes the right checkpoint; returns what is scored."""
    import torch
    from trainers import _config, sampled
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = _config("llama")
    config.num_hidden_layers = LAYERS
    config.hidden_size, config.head_dim = 128, 32  # vLLM's CPU attention takes no smaller heads
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return [{**row, "sampling": {}, "spans": []} for row in sampled(folder)[:3]]


def judge(folder: Path) -> dict[str, Any]:
    """Layers and the operation named for each fault of a trainer, in float32."""
    from logprobe.monitor.proof.experiments.bisecting import jumps
    from logprobe.monitor.proof.scorers import layers_process

    rows = model(folder)
    reference = {"function": "logprobe.monitor.proof.forward:score", "settings": {"dtype": "float32"}}
    found = {}
    for fault, layer in FAULTS:
        settings = {"fault": fault, "layer": layer}
        trainer, alike = (
            {"function": "layer_faults:score", "settings": more}
            for more in (settings, {**settings, "attention": "eager"})
        )
        job = {"model": str(folder), "folder": str(Path(__file__).parent), "sequences": rows}
        errors = layers_process.main({**job, "sides": [reference, trainer]}, folder)["layers"]
        breaks = layers_process.main({**job, "sides": [reference, alike], "operations": True}, folder)["breaks"]
        found[f"{fault} of layer {layer}"] = {
            "named": jumps(errors), "errors": errors, "breaks": breaks, "operation": OPERATIONS.get(fault, "").format(layer) or None
        }  # fmt: skip
    return found


def judge_engine(folder: Path) -> dict[str, Any]:
    """Likewise of an engine, one for all faults: beside the reference, and operations beside what it computes without the fault."""
    from engine_process import ENGINE_ENVIRONMENT

    rows = model(folder)
    os.environ.update(
        {
            **ENGINE_ENVIRONMENT,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "LOGPROBE_PROOF_READINGS": str(folder / "readings"),
        }
    )
    from functools import partial

    from logprobe.monitor.proof.experiments.bisecting import jumps
    from logprobe.monitor.proof.forward import score as reference
    from logprobe.monitor.proof.scorers.engine_process import Scorer
    from logprobe.monitor.proof.scorers.watching import Watch, errors, first_break

    with Watch() as watch:
        reference(rows[:1], folder)
    engine = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "enable_prefix_caching": False}
    job = {"model": str(folder), "arguments": "", "overrides": engine, "sequences": rows[:1], "paths": ["decode"]}
    scorer = Scorer(job)
    right = next(scorer.watched(operations=True))
    found = {}
    for fault, layer in FAULTS:
        restore = scorer._engine.collective_rpc(partial(_spoil_engine, fault=fault, layer=layer))[0]
        pairs = errors(watch.outputs, next(scorer.watched(operations=False)))
        layers = [(name, (off / size) ** 0.5) for name, (off, size) in pairs]
        breaks = asdict(first_break(right, next(scorer.watched(operations=True))))
        restore()
        operation = OF_ENGINE.get(fault, "").format(layer) or None
        found[f"{fault} of layer {layer}"] = {
            "named": jumps(layers), "errors": layers, "breaks": breaks, "operation": operation
        }  # fmt: skip
    return found


def _spoil_engine(worker: Any, *, fault: str, layer: int) -> Any:
    """Makes one layer of a running engine wrong; returns what makes it right again."""
    import torch

    part = worker.model_runner.model.model.layers[layer]
    attention, mlp = part.self_attn, part.mlp
    size = attention.q_size, attention.kv_size
    places = {
        "q_proj": (attention.qkv_proj, 0, size[0]), "k_proj": (attention.qkv_proj, size[0], sum(size)),
        "v_proj": (attention.qkv_proj, sum(size), None), "o_proj": (attention.o_proj, 0, None),
        "gate_proj": (mlp.gate_up_proj, 0, mlp.gate_up_proj.output_size // 2), "down_proj": (mlp.down_proj, 0, None),
        "norm": (part.post_attention_layernorm, 0, None),
    }  # fmt: skip
    if fault in places:
        module, begin, end = places[fault]
        forward = module.forward

        def wrong(*args: Any, **kwargs: Any) -> Any:
            values, *rest = forward(*args, **kwargs)
            noise = torch.randn(values[:, begin:end].shape[1], generator=torch.Generator().manual_seed(1))
            values = values.clone()
            values[:, begin:end] *= 1.02 if fault == "norm" else 1 + 0.05 * noise
            return (values, *rest)

        module.forward = wrong
        return lambda: module.__dict__.pop("forward")
    if fault == "rope":
        rope = attention.rotary_emb

        class Late(torch.nn.Module):
            def forward(self, positions: Any, *args: Any) -> Any:
                return rope(positions + positions % 2, *args)

        attention.rotary_emb = Late()
        return lambda: setattr(attention, "rotary_emb", rope)
    if fault == "epsilon":
        before, part.input_layernorm.variance_epsilon = part.input_layernorm.variance_epsilon, 1e-2
        return lambda: setattr(part.input_layernorm, "variance_epsilon", before)
    if fault == "scaling":
        attention.attn.impl.scale *= 0.9
        return lambda: setattr(attention.attn.impl, "scale", attention.attn.impl.scale / 0.9)
    return lambda: None


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print("RESULT " + json.dumps(judge_engine(Path(sys.argv[1]))), flush=True)
    os._exit(0)  # an engine's threads take their time to end
