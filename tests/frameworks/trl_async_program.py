"""Trains a tiny policy with TRL's own `AsyncGRPOTrainer`, its own rollout worker and a real `vllm serve` on the CPU.

Two things are not TRL's own, as both need a GPU: the attention kernel of its packed trees, computed by torch here from the same arguments,
and the transport of the weights, which goes through files and vLLM's `reload_weights` where TRL has NCCL.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from served import reload, server


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Share of even token ids; in the worker's process, which imports this file."""
    return [sum(token % 2 == 0 for token in ids) / max(len(ids), 1) for ids in completion_ids]


def varlen(
    query: Any, key: Any, value: Any, starts_q: Any, starts_k: Any, *_: Any, softmax_scale: float, **__: Any
) -> Any:
    """What flash attention's function of this name computes: causal, aligned at the end. [tokens, heads, width]."""
    import torch

    shared, parts = query.shape[1] // key.shape[1], []
    for place in range(len(starts_q) - 1):
        q = query[starts_q[place] : starts_q[place + 1]].transpose(0, 1)
        k, v = (
            side[starts_k[place] : starts_k[place + 1]].transpose(0, 1).repeat_interleave(shared, 0)
            for side in (key, value)
        )
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(k.shape[1] - q.shape[1])
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=softmax_scale)
        parts.append(found.transpose(0, 1))
    return torch.cat(parts)


class Files:
    """Weights to the server, through a folder: TRL's protocol of a weight transfer."""

    def __init__(self, client: Any, model: str, folder: Path) -> None:
        self._client, self._folder = client, folder
        shutil.copytree(model, folder)

    def init_weight_transfer(self) -> None:
        self._client.wait_for_server_ready()

    def pause(self) -> None:
        self._client.pause()

    def resume(self) -> None:
        self._client.resume()

    def destroy(self) -> None:
        pass

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        reload(self._client.server_url, self._folder, iterator)


def main(options: dict[str, Any]) -> dict[str, Any]:
    """Trains; → TRL's log."""
    import trl
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.chat_template_utils import qwen3_chat_template
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
    from trl.experimental.async_grpo.vllm_client import VLLMClient

    from logprobe.collectors.integrations import trl as watching

    packing._flash_attn = lambda: SimpleNamespace(flash_attn_varlen_func=varlen)
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None  # it asks CUDA
    tokenizer = AutoTokenizer.from_pretrained(options["model"])
    tokenizer.chat_template = qwen3_chat_template
    out = Path(options["out"])
    prompts = [
        [{"role": "user", "content": " ".join(f"w{(4 * row + c) % 40}" for c in range(2, 6))}] for row in range(64)
    ]
    with server(options["model"], out) as address:
        settings = AsyncGRPOConfig(
            output_dir=str(out),
            vllm_server_base_url=address,
            vllm_server_timeout=600,
            max_steps=options.get("steps", 6),
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            seed=3,
            **{
                "learning_rate": 1e-3,
                "per_device_train_batch_size": 8,
                "num_generations": 4,
                "max_completion_length": 24,
                "token_budget": 0,
                **options.get("config", {}),
            },
        )
        trainer = AsyncGRPOTrainer(
            options["model"],
            reward,
            settings,
            Dataset.from_dict({"prompt": prompts}),
            tokenizer,
            weight_transfer=Files(VLLMClient(address, 600), options["model"], out / "weights"),
        )
        if options.get("watch", True):
            watching.watch(trainer, **options.get("watching", {}))
        trainer.train()
    return {"trl": trl.__version__, "history": trainer.state.log_history}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    result = json.dumps(main(given))
    if os.environ.get("RANK", "0") == "0":
        Path(given["out"], "result.json").write_text(result, encoding="utf-8")
