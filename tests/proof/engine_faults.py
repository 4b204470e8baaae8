"""Engines that are wrong, on tiny models of three kinds: what a bisection of what they sampled names, and what it must not.

    PYTHONPATH=tests:tests/support:tests/e2e python tests/proof/engine_faults.py FOLDER [SITUATION …]

Engines are real. The cases, with what is expected of each, were written before any was run. `Fault.told` is what the bisection is told of
the engine's settings: a fault that is not in it was not recorded. The side is asked of scoring alone, too. Exit code 1: a wrong setting was
named, or another side.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import page
import trainers
from engine_process import ENGINE_ENVIRONMENT

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
SEQUENCES, TOKENS = 12, 20
SWITCH = 10  # response token at which weights change in flight
HERE = Path(__file__).parent
SAMPLE_DATA = HERE.parents[1] / "sample_data"  # its `fault_fp8` is what the plugin of `plugins/` provides
Setting = Mapping[str, Any]


@dataclass(frozen=True)
class Fault:
    """`words`: for people; `kind`: of model; `engine`, `sampling`: it ran with; `told`, `noted`: what the bisection and the sample say of these;
    `weights`: the checkpoint that the engine read; `warm`: the prefix cache holds what these weights computed; `before`: weights until the token
    `SWITCH`; `known`: the checkpoint that the bisection gets of an earlier version; `trainer`: settings of t, with `has_trainer` of the trainer's
    function, which it gets too; `sides`: each of which is right, "unknown" where nothing can tell; `knobs`: to be named; `may`: may be named too.
    """

    words: str
    kind: str
    sides: tuple[str, ...]
    engine: Setting = field(default_factory=dict)
    told: Setting | None = None
    sampling: Setting = field(default_factory=dict)
    noted: Setting | None = None
    weights: str = "right"
    warm: str | None = None
    before: str | None = None
    known: str | None = None
    trainer: Setting = field(default_factory=dict)
    has_trainer: bool = False
    temperature: float = 0.7
    noted_temperature: float = 0.7
    knobs: tuple[str, ...] = ()
    may: tuple[str, ...] = ()


THETA = {"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}}
SCALED = {"hf_overrides": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}}
EPSILON = {"hf_overrides": {"rms_norm_eps": 0.05}}
WINDOW = {"hf_overrides": {"sliding_window": 16}}
ROUTES = {"hf_overrides": {"num_experts_per_tok": 1}}
GRAMS = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 1,
    }
}
UNSURE = ("unknown", "engine_state")  # nobody can tell the state from a setting that was not recorded

FAULTS: dict[str, Fault] = {
    # Outside the list of knobs.
    "theta-unrecorded": Fault("another rope_theta, not recorded", "tied", UNSURE, engine=THETA, told={}),
    "theta-recorded": Fault("another rope_theta, recorded", "tied", ("engine",), engine=THETA),
    "epsilon-unrecorded": Fault("a norm epsilon of 0.05, not recorded", "llama", UNSURE, engine=EPSILON, told={}),
    "window-recorded": Fault("a sliding window of 16 instead of 48, recorded", "window", ("engine",), engine=WINDOW),
    "layer": Fault("one layer's weights perturbed in the engine", "llama", UNSURE, weights="layer"),
    "adapter": Fault("an adapter missing in the engine, merged in the trainer", "tied", UNSURE, weights="adapter"),
    "top-k": Fault("top-k of 8 that the sample does not name", "llama", ("unknown",), sampling={"top_k": 8}, noted={}),
    "bias": Fault("a logit bias that the sample does not name", "llama", UNSURE, sampling={"logit_bias": {7: 3.0, 9: 3.0}}, noted={}),
    "stale": Fault("a stale prefix cache, its weights are not there", "tied", UNSURE, engine={"enable_prefix_caching": True}, warm="layer"),
    "temperature": Fault("a temperature that the sample does not name", "llama", ("unknown",), noted_temperature=1.0),
    "grams": Fault("n-gram speculation, recorded", "tied", (*UNSURE, "none"), engine=GRAMS),
    "llama-stale": Fault("a stale prefix cache, its weights are not there", "llama", UNSURE, engine={"enable_prefix_caching": True}, warm="adapter"),
    "window-unscaled": Fault("rope scaling that the checkpoint lacks, recorded", "window", ("engine",), engine=SCALED),
    # With a knob.
    "bf16": Fault("bfloat16", "llama", ("engine",), engine={"dtype": "bfloat16"}, knobs=("dtype",)),
    "raw": Fault("raw log-probs", "window", ("engine",), engine={"logprobs_mode": "raw_logprobs"}, knobs=("logprobs_mode",)),
    "top-p": Fault("top-p that the trainer does not apply", "tied", ("engine",), sampling={"top_p": 0.8}, knobs=("top_p",)),
    "bf16-theta": Fault("bfloat16 and another rope_theta", "tied", ("engine",), engine={"dtype": "bfloat16", **THETA}, may=("dtype",)),
    "experts-bf16": Fault("bfloat16", "experts", ("engine",), engine={"dtype": "bfloat16"}, knobs=("dtype",)),
    "experts-routes": Fault("one expert a token instead of two, recorded", "experts", ("engine",), engine=ROUTES),
    "bf16-unrecorded": Fault("bfloat16, not recorded", "llama", UNSURE, engine={"dtype": "bfloat16"}, told={}),
    "raw-bf16": Fault("raw log-probs in bfloat16", "experts", ("engine",), engine={"logprobs_mode": "raw_logprobs", "dtype": "bfloat16"}, knobs=("logprobs_mode", "dtype")),
    "top-k-noted": Fault("top-k of 8 that the trainer does not apply", "window", ("engine",), sampling={"top_k": 8}, knobs=("top_k",)),
    "window-bf16-min-p": Fault("bfloat16, and min-p that the trainer does not apply", "window", ("engine",), engine={"dtype": "bfloat16"}, sampling={"min_p": 0.1}, knobs=("min_p", "dtype")),
    "cache-fp8": Fault("a KV cache rounded to 8 bits", "llama", ("engine",), engine={"kv_cache_dtype": "fp8"}, knobs=("kv_cache_dtype",)),
    "raw-trainer-bf16": Fault("raw log-probs, and a trainer in bfloat16", "llama", ("engine", "trainer"), engine={"logprobs_mode": "raw_logprobs"}, trainer={"dtype": "bfloat16"}, knobs=("logprobs_mode", "trainer.dtype")),
    "dropout": Fault("a trainer with dropout", "llama", ("trainer",), trainer={"dropout": 0.1}, has_trainer=True, knobs=("trainer.dropout",)),
    "stale-known": Fault("a stale prefix cache", "tied", ("engine_state",), engine={"enable_prefix_caching": True}, warm="layer", known="layer", knobs=("enable_prefix_caching",)),
    # All prompts in one step: their tokens are equally old at the update.
    "in-flight": Fault("weights updated in flight, cache kept", "tied", ("engine_state",), engine={"max_num_batched_tokens": 8192}, before="layer", known="layer", knobs=("in_flight",)),
    "missed": Fault("a missed weight sync", "tied", ("engine_state",), weights="adapter", known="adapter", knobs=("weights",)),
    # Healthy.
    "healthy-llama": Fault("nothing", "llama", ("none",)),
    "healthy-window": Fault("nothing", "window", ("none",)),
    "healthy-experts": Fault("nothing", "experts", ("none",)),
}  # fmt: skip


def checkpoints(folder: Path, kind: str) -> Path:
    """The kind's model, one with a perturbed layer, and one without a low-rank update of its projections; in a process of its own."""
    place = folder / kind
    if not (place / "adapter" / "config.json").exists():
        import torch
        from transformers import AutoModelForCausalLM

        config = trainers._config(kind)
        config.hidden_size, config.head_dim = 128, 32  # vLLM's CPU attention takes no smaller heads
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            model.get_output_embeddings().weight.normal_(std=0.2)
            model.save_pretrained(place / "right")
            block = model.model.layers[1]
            layer = getattr(block.mlp, "down_proj", block.self_attn.o_proj).weight  # experts have many
            kept = layer.clone()
            layer.add_(0.1 * layer.std() * torch.randn_like(layer))
            model.save_pretrained(place / "layer")
            layer.copy_(kept)
            for one in model.model.layers:
                weight = one.self_attn.q_proj.weight
                low = torch.randn(weight.shape[0], 4) @ torch.randn(4, weight.shape[1])
                weight.add_(0.1 * weight.std() * low)
            model.save_pretrained(place / "adapter")
    return place


def plant(name: str, folder: Path) -> None:
    """Samples by the wrong engine; t is the right trainer's, but for the settings of `Fault.trainer`."""
    fault = FAULTS[name]
    place = checkpoints(folder, fault.kind)
    from vllm import EngineArgs, SamplingParams
    from vllm.v1.engine.llm_engine import LLMEngine

    if "kv_cache_dtype" in fault.engine:
        sys.path.insert(0, str(SAMPLE_DATA))
        import fault_fp8

        fault_fp8.provide()
    arguments = {**RIGHT, "skip_tokenizer_init": True, **fault.engine}
    first = place / (fault.before or fault.warm or fault.weights)
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(first), seed=1, **arguments))
    rng = random.Random(4)
    common = [rng.randrange(2, trainers.VOCABULARY) for _ in range(64)]
    prompts = [
        [*common, *(rng.randrange(2, trainers.VOCABULARY) for _ in range(rng.randint(4, 30)))] for _ in range(SEQUENCES)
    ]
    if fault.warm is not None:
        kept = prompts[::2] if fault.known is None else prompts  # as the arm has it
        _all(engine, kept, SamplingParams(max_tokens=1, detokenize=False))
        _load(engine, place / fault.weights)
    params = SamplingParams(
        temperature=fault.temperature,
        max_tokens=TOKENS,
        logprobs=0,
        detokenize=False,
        ignore_eos=True,
        **fault.sampling,
    )
    done = _all(engine, prompts, params, switch_to=None if fault.before is None else place / fault.weights)
    rows = [_row(at, prompt, done[str(at)].outputs[0], fault) for at, prompt in enumerate(prompts)]
    from logprobe.monitor.proof.forward import score

    truth = [{**row, "temperature": fault.temperature} for row in rows]
    for row, values in zip(rows, score(truth, place / "right", **fault.trainer), strict=True):
        row["trainer_logprobs"] = [float(value) for value in values]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _load(engine: Any, checkpoint: Path) -> None:
    engine.collective_rpc("reload_weights", kwargs={"weights_path": str(checkpoint)})


def _all(engine: Any, prompts: list[list[int]], params: Any, switch_to: Path | None = None) -> dict[str, Any]:
    for index, prompt in enumerate(prompts):
        engine.add_request(str(index), {"prompt_token_ids": prompt}, params.clone())
    done, steps = {}, 0
    while engine.has_unfinished_requests():
        done.update({output.request_id: output for output in engine.step() if output.finished})
        steps += 1
        if switch_to is not None and steps == SWITCH:
            _load(engine, switch_to)
    return done


def planted_all(names: list[str], folder: Path) -> None:
    """Each in a process that is forked from this one, which has imported vLLM."""
    for kind in {FAULTS[name].kind for name in names}:
        checkpoints(folder, kind)
    import vllm  # noqa: F401 - once for all
    from vllm import SamplingParams  # noqa: F401 - likewise

    for name in names:
        if not (folder / f"{name}.jsonl").exists():
            process = multiprocessing.get_context("fork").Process(target=plant, args=(name, folder))
            process.start()
            process.join()


def _row(at: int, prompt: list[int], output: Any, fault: Fault) -> dict[str, Any]:
    tokens = list(output.token_ids)
    values = [row[token].logprob for row, token in zip(output.logprobs, tokens, strict=True)]
    noted = fault.sampling if fault.noted is None else fault.noted
    row = {"sample_id": f"s{at}", "prompt_ids": prompt, "response_ids": tokens, "rollout_logprobs": values}
    row |= {"temperature": fault.noted_temperature, "sampling": dict(noted)}
    if fault.known is not None:
        row |= {"rollout_version": "right", "trainer_version": "right"}
    if fault.before is not None:
        first = {"start": 0, "end": SWITCH, "version": fault.before}
        row["spans"] = [first, {"start": SWITCH, "end": len(tokens), "version": "right"}]
    return row


def bisected(name: str, folder: Path, run: Any) -> dict[str, Any]:
    """What a bisection says, and which sides scoring alone says to depart."""
    from logprobe.monitor.proof.experiments.experiment import bisect
    from logprobe.monitor.proof.sample import read_sample
    from logprobe.monitor.proof.scoring import score
    from logprobe.monitor.proof.setup import Setup

    fault, place = FAULTS[name], folder / FAULTS[name].kind
    overrides = {**RIGHT, **(fault.engine if fault.told is None else fault.told)}
    lost = tuple(key for key in overrides if key == "speculative_config")  # as of a recorded run
    known = {"right": place / "right", fault.known: place / fault.known} if fault.known else {"": place / "right"}
    rounding = {"PYTHONPATH": os.pathsep.join([str(HERE / "plugins"), str(SAMPLE_DATA)])}
    setup = Setup(
        known,
        overrides={key: value for key, value in overrides.items() if key not in lost},
        environment=rounding if "kv_cache_dtype" in fault.engine else {},
        trainer="logprobe.monitor.proof.forward:score" if fault.has_trainer else None,
        trainer_settings=fault.trainer if fault.has_trainer else {},
        not_repeated=lost,
    )
    sample = read_sample(folder / f"{name}.jsonl")
    scored = score(sample, setup, run=run).decision
    return {
        **bisect(sample, setup, run=run).document(),
        "scored": {"departs": scored.departs, "departs_all": list(scored.departs_all)},
    }


def judged(fault: Fault, document: Mapping[str, Any]) -> str:
    """What is wrong with an answer; empty: nothing."""
    named = {*document["smallest_set"]}
    if named - {*fault.knobs, *fault.may}:
        return f"WRONG SETTING {', '.join(sorted(named))}"
    for found in (document, document["scored"]):
        departs = {*found["departs_all"]} or {found["departs"]}
        if not departs <= {*fault.sides} and found["departs"] not in fault.sides:
            return f"wrong side {', '.join(sorted(departs))}"
    return "" if named >= {*fault.knobs} else f"not named: {', '.join({*fault.knobs} - named)}"


def main(folder: Path, names: list[str]) -> int:
    os.environ.update({**ENGINE_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"})
    folder.mkdir(parents=True, exist_ok=True)
    from logprobe.monitor.proof.experiments.arm_cache import ArmCache

    planter = multiprocessing.get_context("spawn").Process(target=planted_all, args=(names or [*FAULTS], folder))
    planter.start()
    planter.join()
    wrong = 0
    for name in names or [*FAULTS]:
        if not (folder / f"{name}.jsonl").exists():
            print(f"{name}: did not start here", flush=True)
            continue
        document = {**bisected(name, folder, ArmCache(folder / "arms")), "ran": page.ran()}
        (folder / f"{name}.json").write_text(json.dumps(document, indent=1))
        words = judged(FAULTS[name], document)
        wrong += bool(words)
        k3 = document["baseline"]["k3"]
        print(f"{'MISS' if words else 'ok  '} {name:20} {document['departs']:13} K3 {k3:.2g} {words}", flush=True)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
