"""Faults that the shipped trainer can be given: what they do to the log-probs of a right one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A process of its own: pytest's stays free of torch.
CODE = """
import json, sys
from transformers import Qwen3Config, Qwen3ForCausalLM
from logprobe.monitor.proof.forward import score
config = Qwen3Config(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                     num_key_value_heads=1, head_dim=16, max_position_embeddings=64, initializer_range=0.3)
Qwen3ForCausalLM(config).save_pretrained(sys.argv[1])
rows = [{"prompt_ids": [3, 4, 5], "response_ids": [6, 7, 8, 9, 10], "temperature": 0.7}]
print(json.dumps([score(rows, sys.argv[1], **settings)[0] for settings in json.loads(sys.argv[2])]))
"""


def test_shifts_by_one_position(tmp_path):
    settings = [{}, {"mask_shift": 1}, {"mask_shift": -1}, {"shift": 1}]
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(tmp_path / "model"), json.dumps(settings)],
        capture_output=True,
        text=True,
        check=True,
    )
    plain, later, earlier, late_logits = json.loads(done.stdout.splitlines()[-1])
    assert later[:-1] == pytest.approx(plain[1:])  # log-probs of the neighbours
    assert earlier[1:] == pytest.approx(plain[:-1])
    assert late_logits[:-1] != pytest.approx(plain[1:], abs=0.01)  # other logits, the same tokens
    assert late_logits != pytest.approx(plain, abs=0.01)
