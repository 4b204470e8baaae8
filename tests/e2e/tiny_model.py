"""A random Qwen3 small enough to start an engine in seconds, with a tokenizer of its own; nothing is downloaded.

    python tests/e2e/tiny_model.py FOLDER [SEED]

The head is drawn wider than usual, so that the policy prefers some tokens as a trained one does, instead of all alike.
"""

from __future__ import annotations

import sys
from pathlib import Path

VOCABULARY = 512
PAD, EOS, FIRST_WORD = 0, 1, 2


def make_tiny_model(
    folder: Path, *, seed: int = 0, hidden: int = 64, layers: int = 2, like: Path | None = None
) -> Path:
    """Write float32 weights, configuration and tokenizer to `folder`; with `like`, that model's weights after a small step."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config) if like is None else Qwen3ForCausalLM.from_pretrained(like, dtype=torch.float32)
    with torch.no_grad():
        if like is None:
            model.lm_head.weight.normal_(std=0.3)
        else:
            for weight in model.parameters():
                weight.add_(0.05 * weight.std() * torch.randn_like(weight))
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def make_tiny_moe(folder: Path, *, seed: int = 0) -> Path:
    """A random Qwen3 with a dense layer and two mixtures of 8 experts, 2 of which see each token."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        moe_intermediate_size=32,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=3,
        mlp_only_layers=[0],
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=EOS,
        dtype="float32",
    )
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.3)
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    return folder


def make_tiny_adapter(folder: Path, *, seed: int) -> Path:
    """A LoRA adapter of the attention of `make_tiny_model`'s, drawn at random, as peft would save it."""
    import json

    import torch
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {"q_proj": (64, 64), "v_proj": (64, 32)}  # in, out
    tensors = {}
    for layer in range(2):
        for name, (width, out) in shapes.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = 0.2 * torch.randn(4, width)
            tensors[f"{prefix}.lora_B.weight"] = 0.2 * torch.randn(out, 4)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": sorted(shapes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def make_merged(folder: Path, base: Path, adapter: Path) -> Path:
    """The checkpoint `base` with an adapter of `make_tiny_adapter` added to its weights."""
    import torch
    from safetensors.torch import load_file
    from transformers import Qwen3ForCausalLM

    model = Qwen3ForCausalLM.from_pretrained(base, dtype=torch.float32)
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name in [name.removesuffix(".lora_A.weight") for name in tensors if name.endswith(".lora_A.weight")]:
            down, up = (tensors[f"{name}.{part}.weight"] for part in ("lora_A", "lora_B"))
            module = model.get_submodule(name.removeprefix("base_model.model."))
            module.weight += (8 / 4) * up @ down  # alpha / rank
    model.save_pretrained(folder)
    return folder


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": PAD, "<eos>": EOS}
    words |= {f"w{number}": number for number in range(FIRST_WORD, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    fast.save_pretrained(folder)


if __name__ == "__main__":
    make_tiny_model(Path(sys.argv[1]), seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
