"""A trainer one of whose layers is wrong: ``--trainer layer_faults:score``; and whether the first layer that drifts is named.

python tests/proof/layer_faults.py FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LAYERS = 6
FAULTS = (
    ("q_proj", 0), ("k_proj", 5), ("v_proj", 1), ("o_proj", 3), ("gate_proj", 2), ("down_proj", 4),
    ("rope", 1), ("rope", 4), ("epsilon", 2), ("scaling", 3), ("norm", 0), ("nothing", 0),
)  # fmt: skip


def score(
    sequences: Sequence[Mapping[str, Any]], model: Path, *, fault: str, layer: int, dtype: str = "float32"
) -> list[list[float]]:
    """Log-probs by all sequences in one padded batch, as trainers compute them."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="sdpa")
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


def judge(folder: Path) -> dict[str, Any]:
    """The layers named for each fault, in float32."""
    import torch
    from trainers import _config, sampled
    from transformers import AutoModelForCausalLM

    from logprobe.monitor.proof.experiments.bisecting import jumps
    from logprobe.monitor.proof.scorers import layers_process

    torch.set_num_threads(1)
    torch.manual_seed(3)
    config = _config("llama")
    config.num_hidden_layers = LAYERS
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    rows = sampled(folder)[:3]
    found = {}
    for fault, layer in FAULTS:
        job = {"model": str(folder), "function": "layer_faults:score", "folder": str(Path(__file__).parent)}
        job |= {"settings": {"fault": fault, "layer": layer}, "reference": {"dtype": "float32"}, "sequences": rows}
        errors = layers_process.main(job, folder)["layers"]
        found[f"{fault} of layer {layer}"] = {"named": jumps(errors), "errors": errors}
    return found


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print("RESULT " + json.dumps(judge(Path(sys.argv[1]))))
