"""What the tests of attribution do with an engine: whose weights sampled a token. See `engine_process`.

python attribution_scenarios.py SCENARIO MODELS
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine_scenarios import (
    Driver,
    described,
    engine_arguments,
    engine_of,
    flushed,
    prompts_of,
    recorded,
    torch_logprobs,
    until_recorded,
)


def loads(models: Path) -> Any:
    """Every way to change an engine's weights that somebody was seen to use, each after a mark and before the next."""
    from vllm import SamplingParams

    from logprobe.collectors import weights

    llm = engine_of(models)
    params = SamplingParams(temperature=1.0, max_tokens=3, logprobs=0, ignore_eos=True)

    def sampled() -> str:
        from logprobe.collectors.vllm.ids import sample_id

        [output] = llm.generate(prompts_of(1), params, use_tqdm=False)
        return sample_id(output)

    found: dict[str, list[str]] = {}
    for number, (name, call) in enumerate((*harmless_calls(llm).items(), *loading_calls(llm).items())):
        weights.mark(number, step=number)
        before = sampled()
        call()
        found[name] = [str(number), before, sampled()]
    return {"found": found, "harmless": list(harmless_calls(llm)), "flushed": flushed()}


def harmless_calls(llm: Any) -> dict[str, Callable[[], Any]]:
    """Calls that leave the weights as they are."""
    rpc, worker = llm.collective_rpc, llm.llm_engine.model_executor.driver_worker.worker
    ours = ("get_model_inspection", "compute_weight_checksums", "check_health")
    return {
        **{name: functools.partial(rpc, name) for name in ours if hasattr(worker, name)},  # older releases have fewer
        "reset_prefix_cache": llm.reset_prefix_cache,
        "named in LOGPROBE_RECORD": lambda: rpc("get_model"),
    }


def loading_calls(llm: Any) -> dict[str, Callable[[], Any]]:
    """Calls that may change the weights. The first three do; of the others it is enough that nobody can know."""
    rpc, executor = llm.collective_rpc, llm.llm_engine.model_executor
    worker = executor.driver_worker.worker
    model = worker.get_model()
    return {
        "a lambda": lambda: rpc(lambda worker: change(worker.get_model())),
        "a partial": lambda: rpc(functools.partial(change_worker, by=1.01)),
        "apply_model": lambda: llm.apply_model(change),
        "the executor": lambda: executor.collective_rpc(change_worker),
        "the executor, by keyword": lambda: executor.collective_rpc(method=change_worker),
        "the model's load_weights": lambda: model.load_weights(iter(())),
        "the model's load_state_dict": lambda: model.load_state_dict(model.state_dict()),
        "the worker's reload_weights": worker.reload_weights,
        **{name: functools.partial(frameworks_call, llm, name) for name in FRAMEWORKS},
    }


# Names of frameworks' own worker methods, and of the example in docs/recording.md.
FRAMEWORKS = ("broadcast_from_trainer", "load_state_dict", "pull_weights", "load_from_trainer")


def change(model: Any, by: float = 1.02) -> None:
    import torch

    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(by)


def change_worker(worker: Any, by: float = 1.02) -> None:
    change(worker.get_model(), by)


def frameworks_call(llm: Any, name: str) -> None:
    """A method that a framework's worker extension brings along."""
    worker = llm.llm_engine.model_executor.driver_worker.worker
    setattr(worker, name, functools.partial(change_worker, worker))
    llm.collective_rpc(name)


# --- One trained sequence, several requests ---


def trajectories(models: Path) -> Any:
    """An interrupted rollout sent again, three turns with a tool's answers between, and one that is named at the engine."""
    from logprobe.collectors import Recorder, weights

    llm = engine_of(models)
    actor = Actor(Driver(llm.llm_engine))
    weights.mark(0, step=0)
    prompts = [prompt["prompt_token_ids"] for prompt in prompts_of(3, length=40)]
    interrupted, turns, named = (Trained(prompt) for prompt in prompts)
    # The caller has read four of seven tokens when it aborts.
    actor.request(interrupted, "interrupted-0", 20, abort_after=7, read=4)
    actor.request(turns, "turns-0", 6)
    actor.request(named, "named-0", 5, extra_args={"logprobe_sample": "mine"})
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "new")})
    llm.reset_prefix_cache()
    weights.mark(2, step=2)
    actor.request(interrupted, "interrupted-1", 9)
    for turn in (1, 2):
        turns.take([7, 8, 9] * 12, sampled=False)
        actor.request(turns, f"turns-{turn}", 6)
    named.take([11, 12], sampled=False)
    actor.request(named, "named-1", 5, extra_args={"logprobe_sample": "mine"})
    rows = [{"prompt_token_ids": each.prompt, "token_ids": each.tokens} for each in (interrupted, turns, named)]
    with Recorder(component="trainer") as recorder:
        ids = [tuple(f"{name}/0" for name, _ in each.parts) for each in (interrupted, turns)]
        trainer = torch_logprobs(models / "new", rows, 1.0)
        recorder.training(
            step=3,
            sample_ids=[*ids, "mine"],
            token_ids=[row["token_ids"] for row in rows],
            trainer_logprobs=trainer,
            mask=[each.mask for each in (interrupted, turns, named)],
            weight_version=3,
        )
    names = ["interrupted-0/0…interrupted-1/0", "turns-0/0…turns-2/0", "mine"]
    sequences = dict(zip(names, (interrupted, turns, named), strict=True))
    pairs = [
        (t, r)
        for each, ts in zip(sequences.values(), trainer, strict=True)
        for t, r, sampled in zip(ts, each.logprobs, each.mask, strict=True)
        if sampled
    ]
    return {
        "parts": {name: [[f"{part}/0", count] for part, count in each.parts] for name, each in sequences.items()},
        "k3": sum(math.expm1(t - r) - (t - r) for t, r in pairs) / len(pairs),
        # Version 3 trains; the first part of each was sampled by 0, the others by 2.
        "lag": sum(3 * e.parts[0][1] + sum(n for _, n in e.parts[1:]) for e in sequences.values()) / len(pairs),
        "flushed": flushed(),
    }


VERSIONS = 20


class Trained:
    """A trajectory as its trainer builds it."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.mask: list[bool] = []
        self.parts: list[tuple[str, int]] = []

    def take(self, tokens: list[int], logprobs: list[float] | None = None, *, sampled: bool = True) -> None:
        self.tokens += tokens
        self.logprobs += logprobs or [0.0] * len(tokens)
        self.mask += [sampled] * len(tokens)


class Actor:
    """Sends requests with all that a trajectory has so far as their prompt."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def request(
        self, to: Trained, name: str, tokens: int, *, abort_after: int = 0, read: int | None = None, **more: Any
    ) -> None:
        from vllm import SamplingParams

        params = SamplingParams(temperature=1.0, max_tokens=tokens, logprobs=0, ignore_eos=True, **more)
        self.driver.add(name, params, {"prompt_token_ids": to.prompt + to.tokens})
        last = None
        while self.driver.engine.has_unfinished_requests():
            for output in self.driver.step():
                last = described(output)[0]
            if abort_after and last and len(last["token_ids"]) == abort_after:
                self.driver.engine.abort_request([name])
        to.take(last["token_ids"][:read], last["logprobs"][:read])
        to.parts.append((name, len(last["token_ids"][:read])))


# --- An engine that is killed ---


def killed(models: Path) -> Any:
    """Answers, and 0.05 seconds later the engine core is killed; before, some after which it had a rest."""
    from vllm import LLM, SamplingParams

    llm = LLM(**engine_arguments(models))
    params = SamplingParams(temperature=1.0, max_tokens=200, logprobs=0, ignore_eos=True)
    llm.generate(prompts_of(3), params, use_tqdm=False)
    rest(answered := 3)
    while True:
        llm.generate(prompts_of(32), params, use_tqdm=False)
        answered += 32
        if loss_told() >= 32:
            break
        rest(answered)  # the disk was too slow to have heard of requests before they were over
    time.sleep(0.05)
    os.kill(llm.llm_engine.engine_core.resources.engine_manager.processes[0].pid, signal.SIGKILL)
    for thread in threading.enumerate():
        # It closes sockets, which must not happen while the interpreter ends
        if thread.name == "MPClientEngineMonitor":
            thread.join()
    return {"answered": answered}


def rest(answered: int) -> None:
    """Waits until all that was answered is on the disk, and that nothing can be lost."""
    until_recorded(answered)
    end = time.monotonic() + 120
    while loss_told():
        assert time.monotonic() < end, "an engine without work must leave nothing unwritten"
        time.sleep(0.05)


def loss_told() -> int:
    """How many sequences could be lost, by the last word on the disk."""
    said = [(row["time"], row["details"]) for row in recorded("health") if row["event"] == "unwritten"]
    return json.loads(max(said)[1])["sequences"] if said else 0


# --- Replicas in processes of their own ---


def replicas(models: Path) -> Any:
    """Two data-parallel engines of a dense model: marks for one of them, for both, and for one that is not there."""
    return asyncio.run(_replicas(models))


async def _replicas(models: Path) -> Any:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from logprobe.collectors import weights

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(models, data_parallel_size=2)))
    params = SamplingParams(temperature=1.0, max_tokens=3, logprobs=0, ignore_eos=True)

    async def generate(name: str, replica: int) -> None:
        async for _ in engine.generate(prompts_of(1)[0], params, name, data_parallel_rank=replica):
            pass

    weights.mark(0, step=0)
    weights.mark(1, step=1, replica="dp1")
    weights.mark(2, step=2, replica="dp7")
    await asyncio.gather(generate("first", 0), generate("second", 1))
    until_recorded(2)  # vLLM kills engines that take long to end
    engine.shutdown()
    return {}


# --- Fingerprints of weights ---


def plain_matrices(scenario: Callable[..., Any]) -> Callable[..., Any]:
    """Return `scenario` played where vLLM keeps the matrices of an engine as they are, as it does on a GPU, and packs none."""

    @functools.wraps(scenario)
    def play(*arguments: Any) -> Any:
        import vllm._custom_ops as ops

        packs, ops._supports_onednn = ops._supports_onednn, False
        try:
            return scenario(*arguments)
        finally:
            ops._supports_onednn = packs

    return play


@plain_matrices
def fingerprints(models: Path) -> Any:
    """Weights as the trainer has them; a label that moved on without its weights; weights that somebody overwrites in place."""
    from logprobe.collectors import Recorder, weights

    llm = engine_of(models)
    states = [state_of(models / name) for name in ("old", "new")]
    third = {name: weight * 1.01 for name, weight in states[1].items()}
    has_checksums = hasattr(llm.llm_engine.model_executor.driver_worker.worker, "compute_weight_checksums")
    recorder = Recorder(component="trainer")

    def train(step: int, name: str) -> None:
        rows = sample_until_read(llm)
        if has_checksums:
            llm.collective_rpc("compute_weight_checksums")
        recorder.training(
            step=step,
            sample_ids=[row["sample_id"] for row in rows],
            token_ids=[row["token_ids"] for row in rows],
            trainer_logprobs=torch_logprobs(models / name, rows, 1.0),
            weight_version=step,
        )

    sample_until_read(llm)
    weights.mark(0, step=0, fingerprint=weights.fingerprint(states[0]))
    train(0, "old")
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "new")})
    weights.mark(1, step=1, fingerprint=weights.fingerprint(states[1]))
    train(1, "new")
    weights.mark(2, step=2, fingerprint=weights.fingerprint(third))  # and nothing was loaded
    train(2, "new")
    change(llm.llm_engine.model_executor.driver_worker.worker.get_model())
    sample_until_read(llm)
    done = [recorder.close(), flushed()]
    [attachment] = attached()
    attachment.close()
    return {"flushed": done, "tensors": len(states[0]), "checksums": has_checksums}


@plain_matrices
def rounded(models: Path, engine_low: int, missed_since: int) -> Any:
    """A trainer in float32 whose small updates an engine gets in bfloat16, on the way or as its dtype; from a version on none arrives."""
    import torch
    from transformers import Qwen3ForCausalLM
    from vllm import SamplingParams

    from logprobe.collectors import Recorder, weights

    policy = Qwen3ForCausalLM.from_pretrained(models / "old", dtype=torch.bfloat16).float().eval()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-5)
    folder = models / f"rounded-{engine_low}-{missed_since}"

    def send() -> Path:
        state = {name: weight.bfloat16().float() for name, weight in policy.state_dict().items()}
        policy.save_pretrained(folder, state_dict=policy.state_dict() if engine_low else state)
        return folder

    send()
    llm = engine_of(
        models, model=str(folder), tokenizer=str(models / "old"), dtype="bfloat16" if engine_low else "float32"
    )
    params = SamplingParams(temperature=1.0, max_tokens=20, logprobs=0, ignore_eos=True)
    torch.manual_seed(0)
    with Recorder(component="trainer") as recorder:
        recorder.config({"dtype": "float32", "temperature": 1.0}, kind="trainer_config")
        for version in range(VERSIONS):
            if version and version < missed_since:
                llm.collective_rpc("reload_weights", kwargs={"weights_path": str(send())})
                llm.reset_prefix_cache()
            weights.mark(version, step=version, fingerprint=weights.fingerprint(policy.state_dict()))
            if version < 3 or version >= VERSIONS - 2:  # readings cost time
                sample_until_read(llm)
            rows = [row for output in llm.generate(prompts_of(16), params, use_tqdm=False) for row in described(output)]
            tokens = torch.tensor([row["prompt_token_ids"] + row["token_ids"] for row in rows])
            scores = torch.log_softmax(policy(tokens).logits[:, -21:-1], -1).gather(2, tokens[:, -20:, None])[..., 0]
            recorder.training(
                step=version,
                sample_ids=[row["sample_id"] for row in rows],
                token_ids=[row["token_ids"] for row in rows],
                trainer_logprobs=scores.tolist(),
                weight_version=version,
            )
            optimizer.zero_grad()
            (scores * (tokens[:, -20:] % 2 - 0.5)).mean().backward()  # odd tokens are better
            optimizer.step()
    done = flushed()
    [attachment] = attached()
    attachment.close()
    return {"flushed": done}


def attached() -> list[Any]:
    from logprobe.collectors.vllm import attach

    return list(attach._LIVE)


def state_of(model: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


def sample_until_read(llm: Any) -> list[dict[str, Any]]:
    """Samples until a worker has read its weights once more and nobody waits for another reading; some of what was sampled."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=4, logprobs=0, ignore_eos=True)
    since, end = time.monotonic(), time.monotonic() + 400  # a worker rests as a share of what a reading took
    rows = [row for output in llm.generate(prompts_of(8), params, use_tqdm=False) for row in described(output)]
    while not engines_read(since):
        assert time.monotonic() < end, "no worker read its weights"
        llm.generate(prompts_of(1), params, use_tqdm=False)
        time.sleep(0.01)
    return rows


def engines_read(since: float) -> int:
    """How many engines have said what weights they read after a moment of the monotonic clock."""
    files = (Path(os.environ["LOGPROBE_HOME"]) / "readings").rglob("*.jsonl")
    return sum(last_reading(path) > since for path in files if path.stem != "asked")


def last_reading(path: Path) -> float:
    """When the last reading of a worker's answers began; an answer that is being written does not count."""
    whole = path.read_text("utf-8").rpartition("\n")[0].splitlines()
    return max((float(json.loads(line)["began"]) for line in whole), default=float("-inf"))


if __name__ == "__main__":
    print("RESULT", json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
