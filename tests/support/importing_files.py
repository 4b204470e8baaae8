"""Source files as the frameworks write them: public layouts, small numbers."""

import json

import numpy as np

TOKENS = [11, 12, 13, 14, 15]
MASK = [0, 0, 1, 1, 1]
ROLLOUT = [0.0, 0.0, -1.0, -2.0, -0.5]
TRAINER = [0.0, 0.0, -1.25, -1.75, -0.5]


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def generic_row(step, name, shift=0.0):
    return {
        "step": step, "sample_id": name, "token_ids": TOKENS, "mask": MASK, "rollout_logprobs": ROLLOUT,
        "trainer_logprobs": [value - shift for value in TRAINER], "reward": 1.0, "advantages": 0.5, "tags": {"dataset": "gsm8k"},
    }  # fmt: skip


def nemo_row(index):
    """A batch of one per line, padded to 7."""
    padded = [[*TOKENS, 0, 0]]
    return {
        "content": ["text"], "rewards": [1.0], "input_lengths": [5], "token_ids": padded, "token_loss_mask": [[*MASK, 0, 0]],
        "sample_loss_mask": [1.0], "advantages": [[0.5] * 7], "generation_logprobs": [[*ROLLOUT, 0, 0]],
        "prev_logprobs": [[*TRAINER, 0, 0]], "idx": index,
    }  # fmt: skip


def prime_row(step, index):
    return {
        "schema_version": 1, "step": step, "export_step": step, "rank": 0, "micro_step": 0, "micro_sequence_idx": index,
        "export_sequence_idx": index, "run_id": None, "env_name": "math", "token_ids": TOKENS, "position_ids": [0, 1, 2, 3, 4],
        "loss_mask": [bool(flag) for flag in MASK], "temperatures": [1.0] * 5, "advantages": [0.5] * 5, "rewards": [1.0] * 5,
        "inference_logprobs": ROLLOUT, "trainer_logprobs": TRAINER, "entropy": [0.1] * 5, "mismatch_kl": [0.0] * 5,
    }  # fmt: skip


def open_instruct_row(step, index):
    return {
        "step": step, "sample_idx": index, "prompt_idx": index // 2, "prompt_tokens": TOKENS[:2], "response_tokens": TOKENS[2:],
        "reward": 1.0, "advantage": -0.5, "finish_reason": "stop", "dataset": "gsm8k", "ground_truth": None,
        "request_info": None, "logprobs": ROLLOUT[2:],
    }  # fmt: skip


def slime_rollout(step, count):
    sample = {
        "group_index": 0, "prompt": "p", "tokens": TOKENS, "response": "r", "response_length": 3, "label": None, "reward": 1.0,
        "loss_mask": [1, 1, 1], "weight_versions": ["4"], "rollout_log_probs": ROLLOUT[2:], "status": "completed",
        "metadata": {}, "remove_sample": False,
    }  # fmt: skip
    return {"rollout_id": step, "samples": [{**sample, "index": index} for index in range(count)]}


def slime_training(step, count, torch):
    columns = {
        "tokens": torch.tensor(TOKENS), "response_lengths": 3, "loss_masks": torch.tensor([1, 1, 1]), "rewards": 0.3,
        "raw_reward": 1.0, "log_probs": torch.tensor(TRAINER[2:]), "advantages": torch.full((3,), 0.5), "total_lengths": 5,
    }  # fmt: skip
    data = {name: [value] * count for name, value in columns.items()} | {"sample_indices": list(range(count))}
    return {"rollout_id": step, "rank": 0, "rollout_data": data}


def k3(rollout=ROLLOUT, trainer=TRAINER):
    """K3 over the tokens under the mask, by its formula."""
    d = np.array(trainer[2:]) - np.array(rollout[2:])
    return float(np.mean(np.exp(d) - d - 1))
