"""What `engine_cases` does with a real engine; each function runs in a process of its own.

    python engine_program.py SCENARIO MODELS ANSWER [ARGUMENTS]

MODELS holds two checkpoints, ``old`` and ``new``; ARGUMENTS is a JSON object. ANSWER is the file that gets the JSON of what the scenario returned.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_process import spooled
from engine_scenarios import described

ROOM = 256 << 20  # bytes of KV cache: engines share the device
FREE = {"temperature": 1.0, "logprobs": 0, "ignore_eos": True}


def arguments(models: Path, **more: Any) -> dict[str, Any]:
    """Production settings but for the model, its dtype and a bound on memory."""
    import torch

    on_cuda = torch.cuda.is_available()
    bound = {"gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": ROOM} if on_cuda else {"enforce_eager": True}
    return {
        "model": str(models / "old"),
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "max_num_batched_tokens": 512,  # long prompts are prefilled in pieces
        "seed": 7,
        "disable_log_stats": False,
        "worker_extension_cls": "engine_program.Look",
        **bound,
        **more,
        **json.loads(os.environ.get("ENGINE_CASES_ENGINE", "{}")),
    }


class Look:
    """Mixed into vLLM's worker: what it really has, not what its configuration says."""

    model_runner: Any
    model_config: Any

    def logprobe_look(self) -> dict[str, Any]:
        """Named as harmless, or the plugin would know no version from then on."""
        import torch

        graphs = getattr(getattr(self.model_runner, "cudagraph_manager", None), "graphs", None)
        cuda = torch.cuda.is_available()
        return {
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "caches": sorted({str(cache.dtype) for cache in self.model_runner.kv_caches}),
            "weights": sorted({str(weight.dtype) for weight in self.model_runner.model.parameters()}),
            "runner": f"{type(self.model_runner).__module__}.{type(self.model_runner).__name__}",
            "full_graphs": None if graphs is None else len(graphs),
            "backends": sorted({group.backend.get_name() for group in _groups(self.model_runner)}),
        }


def _groups(runner: Any) -> list[Any]:
    found = getattr(runner, "attn_groups", None) or []
    return [group for groups in found for group in (groups if isinstance(groups, list) else [groups])]


# --- Many requests of all kinds ---


def sampled(models: Path, *, engine: dict[str, Any], requests: int, tokens: int) -> Any:
    """A batch of requests with every sampling parameter; what their caller was told, and what the engine really has."""
    from vllm import LLM

    from logprobe.collectors import weights

    llm = LLM(**arguments(models, **engine))
    weights.mark(0)
    prompts, params = mixed(requests, tokens)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    rows = [
        {**row, "stop_string": bool(asked.stop)}
        for output, asked in zip(outputs, params, strict=True)
        for row in described(output)
    ]
    until_recorded(len(rows))
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    look = llm.collective_rpc("logprobe_look")[0]
    end(llm)
    return {"rows": rows, "preemptions": preemptions, "look": look}


def mixed(requests: int, tokens: int) -> tuple[list[dict[str, list[int]]], list[Any]]:
    """Prompts of many lengths, a third of which begin alike, and a `SamplingParams` for each."""
    import torch
    from vllm import SamplingParams

    draw = random.Random(3)
    alike = [draw.randrange(2, 500) for _ in range(160)]
    # On a CPU vLLM ends where a request with a seed is prefilled in pieces: torch's generator has no offset there.
    kinds: list[dict[str, Any]] = [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 50},
        {"temperature": 1.0, "min_p": 0.02, **({"seed": 5} if torch.cuda.is_available() else {})},
        {"temperature": 0.9, "repetition_penalty": 1.2, "presence_penalty": 0.3},
        {"temperature": 1.0, "frequency_penalty": 0.4, "top_p": 0.95, "top_k": 100},
        {"temperature": 0.0},
        {"temperature": 1.0, "logprobs": 5},
        {"temperature": 1.0, "n": 2},
        {"temperature": 0.8, "logit_bias": {7: 3.0, 9: -3.0}, "min_tokens": 4, "ignore_eos": False},
        {"temperature": 1.0, "stop": ["w11", "w12", "w13"], "ignore_eos": False},
        {"temperature": 1.0, "stop_token_ids": list(range(20, 30)), "ignore_eos": False},
    ]
    prompts, params = [], []
    for number in range(requests):
        own = [draw.randrange(2, 500) for _ in range(draw.choice((3, 12, 40, 90, 300)))]
        prompts.append({"prompt_token_ids": [*(alike if number % 3 == 0 else ()), *own]})
        asked = {"logprobs": 1 if number % 2 else 0, "ignore_eos": True, **kinds[number % len(kinds)]}
        params.append(SamplingParams(max_tokens=tokens + number % 7, **asked))
    return prompts, params


def until_recorded(sequences: int) -> None:
    """Waits until so many sequences are on the disk: vLLM kills an engine that takes its time to end."""
    limit = time.monotonic() + 120
    while (found := len(spooled(Path(os.environ["LOGPROBE_HOME"]), os.environ["LOGPROBE_RUN"], "rollout"))) < sequences:
        assert time.monotonic() < limit, f"{found} of {sequences} are on the disk"
        time.sleep(0.3)


def end(llm: Any) -> None:
    """Ends the engine, as a caller does."""
    llm.llm_engine.engine_core.shutdown()


def shared(models: Path, *, scenario: str, engine: dict[str, Any]) -> Any:
    """A scenario that the CPU's tests run as well."""
    import engine_scenarios

    engine_scenarios.engine_arguments = lambda models, **more: arguments(models, **{"block_size": 32, **more, **engine})
    return getattr(engine_scenarios, scenario)(models)


# --- Weights that change ---


def updates(models: Path, *, requests: int, tokens: int) -> Any:
    """Requests that run on through two updates; vLLM's own account of which version sampled what is in the rows."""
    return asyncio.run(_updates(models, requests, tokens))


async def _updates(models: Path, requests: int, tokens: int) -> Any:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(models)))
    await engine.update_weight_version("5")
    params = SamplingParams(max_tokens=tokens, **FREE)
    seen: dict[str, int] = {}

    async def generate(number: int) -> list[dict[str, Any]]:
        prompt = {"prompt_token_ids": [2 + (31 * number + 7 * place) % 500 for place in range(12)]}
        async for output in engine.generate(prompt, params, f"updated-{number}"):
            seen[str(number)] = len(output.outputs[0].token_ids)
            last = output
        return described(last)

    tasks = [asyncio.create_task(generate(number)) for number in range(requests)]
    for version, checkpoint, at in (("6", "new", tokens // 4), ("7", "old", tokens // 2)):
        while max(seen.values(), default=0) < at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await engine.pause_generation(mode="keep", clear_cache=False)
        await engine.collective_rpc("reload_weights", kwargs={"weights_path": str(models / checkpoint)})
        await engine.update_weight_version(version)
        await engine.resume_generation()
    rows = [row for found in await asyncio.gather(*tasks) for row in found]
    await asyncio.to_thread(until_recorded, len(rows))
    engine.shutdown()
    return {"rows": rows}


def asleep(models: Path) -> Any:
    """An engine that sleeps, at both levels, and gets other weights while its memory is gone."""
    from vllm import LLM, SamplingParams

    from logprobe.collectors import weights

    llm = LLM(**arguments(models, enable_sleep_mode=True))
    params = SamplingParams(max_tokens=40, **FREE)
    told: dict[str, Any] = {}

    def generate(name: str) -> None:
        prompts = [{"prompt_token_ids": [2 + (31 * i + 7 * j) % 500 for j in range(40)]} for i in range(16)]
        told[name] = [row for output in llm.generate(prompts, params, use_tqdm=False) for row in described(output)]

    weights.mark(0)
    generate("before")
    llm.sleep(level=1)
    llm.wake_up()
    generate("same")
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "new")})
    llm.wake_up(tags=["kv_cache"])
    generate("unmarked")
    weights.mark(3, step=3)
    generate("marked")
    until_recorded(sum(map(len, told.values())))
    end(llm)
    return told


def fingerprints(models: Path) -> Any:
    """Weights read in the engine, then one value changed in place by nobody in particular; the engine runs in this process."""
    import engine_scenarios
    from vllm import LLM, SamplingParams

    from logprobe.collectors import fingerprint, weights

    llm = LLM(**arguments(models))
    weights.mark(0)
    params = SamplingParams(max_tokens=8, **FREE)
    worker = llm.llm_engine.model_executor.driver_worker.worker
    model = worker.get_model()
    llm.generate([{"prompt_token_ids": [5, 6, 7]}] * 4, params, use_tqdm=False)
    worker.logprobe_reader.read_at_the_end()
    parameters = dict(model.named_parameters())  # on a CPU vLLM packs what layers multiply by
    name = "model.layers.1.mlp.down_proj.weight" if worker.device.type == "cuda" else "model.embed_tokens.weight"
    tensor = parameters[name]
    start, step, _ = fingerprint.places(name, tensor.shape)
    tensor.data.view(-1)[start + 5 * step] += 0.25
    llm.generate([{"prompt_token_ids": [5, 6, 8]}] * 4, params, use_tqdm=False)
    worker.logprobe_reader.read_at_the_end()
    flushed = engine_scenarios.flushed()
    end(llm)
    return {"changed": name, "flushed": flushed, "device": str(tensor.device)}


def reading(models: Path) -> Any:
    """What a fingerprint costs with the shapes of a model that people use; its weights are random."""
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(**arguments(models, load_format="dummy", enforce_eager=True, skip_tokenizer_init=True))
    llm.generate(
        [{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=4, detokenize=False, **FREE), use_tqdm=False
    )
    worker = llm.llm_engine.model_executor.driver_worker.worker
    reader = worker.logprobe_reader
    launched, arrived = [], []
    for _ in range(20):
        wait()
        began, spent = time.perf_counter(), time.thread_time()
        reader._read("check")
        launched.append(1e3 * (time.thread_time() - spent))
        reader._settle()
        arrived.append(1e3 * (time.perf_counter() - began))
    tensors, values = len(reader._plan), sum(weight.numel() for weight in worker.get_model().parameters())
    end(llm)
    return {
        "tensors": tensors,
        "values": values,
        "launch_ms": sorted(launched)[10],
        "first_launch_ms": launched[0],
        "arrived_ms": sorted(arrived)[10],
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --- What the plugin costs ---


def batches(models: Path, *, engine: dict[str, Any], requests: int, tokens: int) -> Any:
    """An engine as in production that runs a batch for each line on the standard input, and prints how many seconds it took."""
    from vllm import LLM, SamplingParams

    graphs = {"compilation_config": {"cudagraph_capture_sizes": [1, 8, 64, 128, 256]}}
    throughput = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "enable_prefix_caching": False}
    llm = LLM(**arguments(models, **throughput, **graphs, **engine))
    params = SamplingParams(max_tokens=tokens, detokenize=False, **FREE)
    prompts = [{"prompt_token_ids": [2 + (31 * i + 7 * j) % 500 for j in range(32)]} for i in range(requests)]
    print("READY", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        print("SECONDS", time.perf_counter() - began, flush=True)
    end(llm)
    return {}


def main(scenario: str, models: str, answer: str, given: str = "{}") -> None:
    chosen: Callable[..., Any] = globals()[scenario]
    Path(answer).write_text(json.dumps(chosen(Path(models), **json.loads(given))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
