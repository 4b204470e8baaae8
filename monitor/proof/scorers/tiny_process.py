"""Process that writes a model of random weights for `logprobe preflight --model tiny`.

The command is ``python -m logprobe.monitor.proof.scorers.tiny_process JOB ANSWER``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logprobe.monitor.proof.scorers.child import answer_job


def main(job: Mapping[str, Any], _: Path) -> Mapping[str, object]:
    """Save a Qwen3 model of two layers without a tokenizer. Its wide head makes some tokens more likely."""
    import torch  # noqa: PLC0415 - heavy
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415

    torch.manual_seed(0)
    sizes = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 192,
        "head_dim": 32,
        "max_position_embeddings": 1024,
    }
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, eos_token_id=1, pad_token_id=0, dtype="float32"))
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.3)
    model.save_pretrained(job["folder"])
    return {"folder": job["folder"]}


if __name__ == "__main__":
    answer_job(main)
