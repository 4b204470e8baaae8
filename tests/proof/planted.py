"""Samples with a planted fault: sampled by a real engine, scored by a real trainer, of which one is wrong.

    python tests/proof/planted.py FAULT MODELS FILE

`MODELS` has the checkpoints ``old`` and ``new`` of one tiny policy. Writes a sample file; nothing in it says what is wrong.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

# Read by vLLM when it is imported.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}
RIGHT: dict[str, Any] = {
    "dtype": "float32",
    "logprobs_mode": "processed_logprobs",
    "enforce_eager": True,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": False,  # safe already: fewer arms
    "block_size": 32,
    "max_num_seqs": 32,
    "max_model_len": 512,
    "distributed_executor_backend": "uni",
    "disable_log_stats": True,
}


@dataclass(frozen=True)
class Fault:
    """How engine and trainer were set up, and what a proof should say.

    `words`: the fault, for people; `departs`: who is off, one or more; `knobs`: which settings are at fault; `weights`: the checkpoint
    that the engine really has.
    """

    words: str
    departs: tuple[str, ...] = ()
    knobs: tuple[str, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    weights: Literal["new", "old"] = "new"
    state: Literal["fresh", "stale_prefix", "in_flight"] = "fresh"
    round_kv: bool = False


WARM = {"temperature": 0.7}
FAULTS: dict[str, Fault] = {
    "healthy": Fault("nothing", sampling=WARM),
    "bf16": Fault("engine in bfloat16", ("engine",), ("dtype",), engine={"dtype": "bfloat16"}, sampling=WARM),
    "kv_cache": Fault(
        "KV cache rounded to 8 bits",
        ("engine",),
        ("kv_cache_dtype",),
        engine={"kv_cache_dtype": "fp8"},
        sampling=WARM,
        round_kv=True,
    ),
    "stale_prefix": Fault(
        "prefix cache kept through an update",
        ("engine_state",),
        ("enable_prefix_caching",),
        engine={"enable_prefix_caching": True},
        sampling=WARM,
        state="stale_prefix",
    ),
    "in_flight": Fault(
        "weights updated in flight, cache kept",
        ("engine_state",),
        ("in_flight",),
        engine={"max_num_batched_tokens": 8192},  # all prompts in one step: their tokens are equally old at the update
        sampling=WARM,
        state="in_flight",
    ),
    "missed_sync": Fault("missed weight sync", ("engine_state",), ("weights",), sampling=WARM, weights="old"),
    "trainer_dropout": Fault(
        "trainer with dropout", ("trainer",), ("trainer.dropout",), sampling=WARM, trainer={"dropout": 0.1}
    ),
    "both_sides": Fault(
        "raw log-probs, and a trainer in bfloat16",
        ("engine", "trainer"),
        ("logprobs_mode", "trainer.dtype"),
        engine={"logprobs_mode": "raw_logprobs"},
        sampling=WARM,
        trainer={"dtype": "bfloat16"},
    ),
}
SWITCH = 10  # response token at which weights change in flight
SEQUENCES, TOKENS, PREAMBLE = 24, 24, 96


def plant(name: str, models: Path, file: Path) -> None:
    """Samples, scores and writes the sample file of one fault."""
    os.environ.update(ENVIRONMENT)
    fault = FAULTS[name]
    rows = _sampled(fault, models)
    from logprobe.monitor.proof.forward import score

    scores = score(rows, models / "new", **fault.trainer)
    for row, values in zip(rows, scores, strict=True):
        row["trainer_logprobs"] = values
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _sampled(fault: Fault, models: Path) -> list[dict[str, Any]]:
    from vllm import EngineArgs, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    if fault.round_kv:
        import fault_fp8

        fault_fp8.provide()
    first = models / ("new" if fault.state == "fresh" and fault.weights == "new" else "old")
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(first), seed=1, **{**RIGHT, **fault.engine}))
    params = SamplingParams(max_tokens=TOKENS, logprobs=0, detokenize=False, ignore_eos=True, **fault.sampling)
    rng = random.Random(0)
    preamble = [rng.randrange(2, 512) for _ in range(PREAMBLE)]
    prompts = [[*preamble, *(rng.randrange(2, 512) for _ in range(rng.randint(6, 20)))] for _ in range(SEQUENCES)]
    if fault.state == "stale_prefix":
        _all(engine, prompts, SamplingParams(max_tokens=1, detokenize=False))
        _load(engine, models / "new")
    done = _all(engine, prompts, params, switch=(SWITCH, models / "new") if fault.state == "in_flight" else None)
    return [_row(index, prompt, done[str(index)], fault) for index, prompt in enumerate(prompts)]


def _load(engine: Any, checkpoint: Path) -> None:
    engine.collective_rpc("reload_weights", kwargs={"weights_path": str(checkpoint)})


def _all(engine: Any, prompts: list[list[int]], params: Any, switch: tuple[int, Path] | None = None) -> dict[str, Any]:
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params.clone())
    done, steps = {}, 0
    while engine.has_unfinished_requests():
        done.update({output.request_id: output for output in engine.step() if output.finished})
        steps += 1
        if switch is not None and steps == switch[0]:
            _load(engine, switch[1])
    return done


def _row(index: int, prompt: list[int], output: Any, fault: Fault) -> dict[str, Any]:
    completion = output.outputs[0]
    tokens = list(completion.token_ids)
    spans = [{"start": 0, "end": SWITCH, "version": "old"}, {"start": SWITCH, "end": len(tokens), "version": "new"}]
    return {
        "sample_id": f"s{index}",
        "prompt_ids": prompt,
        "response_ids": tokens,
        "rollout_logprobs": [row[token].logprob for row, token in zip(completion.logprobs, tokens, strict=True)],
        "temperature": fault.sampling.get("temperature", 1.0),
        "sampling": {key: value for key, value in fault.sampling.items() if key != "temperature"},
        "rollout_version": "new",
        "trainer_version": "new",
        "spans": spans if fault.state == "in_flight" else None,
    }


if __name__ == "__main__":
    plant(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
