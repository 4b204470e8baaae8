"""What the real-engine tests do with an engine; each function runs in a process of its own (see `engine_process`).

    python engine_scenarios.py SCENARIO MODELS

MODELS holds two checkpoints, ``old`` and ``new``. A scenario prints one line "RESULT <json>".
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine_process import spooled


def engine_arguments(models: Path, **more: Any) -> dict[str, Any]:
    """A small fp32 engine that starts fast."""
    return {
        "model": str(models / "old"),
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 512,
        "distributed_executor_backend": "uni",
        "block_size": 32,
        "num_gpu_blocks_override": 1024,  # as much as scenarios need; a GiB of zeros takes longer than they do
        "seed": 7,
        **more,
    }


_STARTED: list[Any] = []  # engines that scenarios of this process have


def engine_of(models: Path, **more: Any) -> Any:
    """An engine with these settings. A process may have one after the other: vLLM loads plugins only once."""
    from vllm import LLM

    from logprobe.collectors.vllm import plugin as vllm_plugin

    vllm_plugin.register()
    # What was imported is no garbage. vLLM looks through it five times while an engine starts, and undoes this when one ends.
    gc.collect()
    gc.freeze()
    _STARTED.append(LLM(**engine_arguments(models, **more)))
    return _STARTED[-1]


def shut_down() -> None:
    """Ends the engines of `engine_of`."""
    while _STARTED:
        _STARTED.pop().llm_engine.engine_core.shutdown()
    if attach := sys.modules.get("logprobe.collectors.vllm.attach"):
        attach._LIVE.clear()  # a scenario looks for the plugin of its own engine there


def prompts_of(count: int, length: int = 12) -> list[dict[str, list[int]]]:
    """Distinct prompts of token ids."""
    return [{"prompt_token_ids": [2 + (31 * i + 7 * j) % 500 for j in range(length)]} for i in range(count)]


def described(output: Any) -> list[dict[str, Any]]:
    """What the caller of the engine was told about each completion: the truth for the plugin's records."""
    from logprobe.collectors.vllm.ids import sample_ids

    rows = []
    for name, completion in zip(sample_ids(output), output.outputs, strict=True):
        tokens = list(completion.token_ids)
        logprobs = completion.logprobs and [
            at[token].logprob for at, token in zip(completion.logprobs, tokens, strict=True)
        ]
        versions = getattr(completion, "weight_versions", None)  # vLLM 0.32
        rows.append(
            {
                "sample_id": name,
                "token_ids": tokens,
                "logprobs": logprobs,
                "cumulative_logprob": completion.cumulative_logprob,
                "text": completion.text,
                "finish_reason": completion.finish_reason,
                "prompt_token_ids": list(output.prompt_token_ids),
                "cached_prefix_tokens": output.num_cached_tokens,
                "versions": versions and [[span.start, span.end, span.version] for span in versions],
            }
        )
    return rows


# --- The must-show: engine and trainer have the same weights ---


def exactness(models: Path) -> Any:
    """Sample at two temperatures with log-probs left raw, recompute in torch, record the trainer's side in four steps."""
    from vllm import SamplingParams

    from logprobe.collectors import Recorder, weights

    llm = engine_of(models)
    weights.mark(0, step=0)
    answer = {}
    with Recorder(component="trainer") as recorder:
        for step, temperature in ((1, 1.0), (3, 0.7)):
            params = SamplingParams(temperature=temperature, max_tokens=24, n=2, logprobs=0)
            rows = [row for output in llm.generate(prompts_of(32), params, use_tqdm=False) for row in described(output)]
            train(recorder, models / "old", rows, step=step, temperature=temperature, received=False)
            train(recorder, models / "old", rows, step=step + 1, temperature=temperature, received=True)
            answer[str(step)] = sum(len(row["token_ids"]) for row in rows)
    return {"tokens": answer, "flushed": flushed()}


def train(
    recorder: Any, model: Path, rows: list[dict[str, Any]], *, step: int, temperature: float, received: bool
) -> None:
    """The trainer's half of a step: log-probs of the sampled tokens under its own copy of the weights."""
    recorder.training(
        step=step,
        sample_ids=[row["sample_id"] for row in rows],
        token_ids=[row["token_ids"] for row in rows],
        trainer_logprobs=torch_logprobs(model, rows, temperature),
        rollout_logprobs=[row["logprobs"] for row in rows] if received else None,
        weight_version="0",
    )


def torch_logprobs(model: Path, rows: list[dict[str, Any]], temperature: float) -> list[list[float]]:
    """log π(token | prefix) at `temperature`, by a forward pass over whole sequences in float32."""
    import torch
    from transformers import Qwen3ForCausalLM

    policy = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    found = []
    with torch.inference_mode():
        for row in rows:
            tokens = torch.tensor([row["prompt_token_ids"] + row["token_ids"]])
            scores = torch.log_softmax(policy(tokens).logits[0, :-1] / temperature, dim=-1)
            sampled = scores.gather(1, tokens[0, 1:, None])[:, 0]
            found.append(sampled[-len(row["token_ids"]) :].tolist())
    return found


# --- A mixture of experts ---


def experts(models: Path) -> Any:
    """A real mixture of experts: the routes of its engine beside those of a trainer, with the same weights and with others."""
    from tiny_model import make_tiny_moe

    model = make_tiny_moe(models / "experts")
    with returned_routes() as bind:
        llm = engine_of(models, model=str(model), enable_return_routed_experts=True, async_scheduling=False)
        bind(llm)
        return routed(llm, model)


def routed(llm: Any, model: Path) -> Any:
    """What both sides chose, and the trainer's half of two steps."""
    from vllm import SamplingParams

    from logprobe.collectors import Recorder

    params = SamplingParams(temperature=1.0, max_tokens=12, logprobs=0, ignore_eos=True)
    of_response = SamplingParams(
        temperature=1.0, max_tokens=12, logprobs=0, ignore_eos=True, routed_experts_prompt_start=12
    )
    outputs = llm.generate(prompts_of(8), [params] * 7 + [of_response], use_tqdm=False)
    rows = [row for output in outputs for row in described(output)]
    told = [output.outputs[0].routed_experts for output in outputs]
    answer: dict[str, Any] = {"shape": list(told[0].shape), "response_only": len(told[-1])}
    with Recorder(component="trainer") as recorder:
        for step, noise in ((1, 0.0), (2, 0.05)):
            logprobs, routes = torch_routes(model, rows, noise)
            recorder.training(
                step=step,
                sample_ids=[row["sample_id"] for row in rows],
                token_ids=[row["token_ids"] for row in rows],
                trainer_logprobs=logprobs,
                routes=routes,
            )
            answer[str(step)] = agreement(told[:-1], routes[:-1], told[-1], routes[-1])
    return {**answer, "flushed": flushed()}


def agreement(told: list[Any], routes: list[Any], told_late: Any, routes_late: Any) -> list[int]:
    """Equal and compared (token, layer) pairs by plain sets. vLLM's rows end with the one that predicted the last token; the
    request that wanted no rows of the prompt has none for its first token."""
    pairs = [
        (row, x) for mine, theirs in zip(routes, told, strict=True) for row, x in zip(mine, theirs[-12:], strict=True)
    ]
    pairs += list(zip(routes_late[1:], told_late[-11:], strict=True))
    same = [set(a) == set(b) for mine, theirs in pairs for a, b in zip(mine.tolist(), theirs[1:].tolist(), strict=True)]
    return [sum(same), len(same)]


def torch_routes(model: Path, rows: list[dict[str, Any]], noise: float) -> tuple[list[Any], list[Any]]:
    """Log-probs of the sampled tokens, and the experts [tokens, layers, 2] of the positions that predicted them."""
    import torch
    from transformers import Qwen3MoeForCausalLM

    policy = Qwen3MoeForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    torch.manual_seed(0)
    logprobs, routes = [], []
    with torch.inference_mode():
        for weight in policy.parameters():
            weight.add_(noise * weight.std() * torch.randn_like(weight))
        for row in rows:
            count = len(row["token_ids"])
            tokens = torch.tensor([row["prompt_token_ids"] + row["token_ids"]])
            found = policy(tokens, output_router_logits=True)
            scores = torch.log_softmax(found.logits[0, :-1], dim=-1).gather(1, tokens[0, 1:, None])[:, 0]
            chosen = torch.stack([layer.topk(2).indices for layer in found.router_logits], dim=1)
            logprobs.append(scores[-count:].tolist())
            routes.append(chosen[-count - 1 : -1])
    return logprobs, routes


@contextmanager
def returned_routes() -> Iterator[Callable[[Any], None]]:
    """Engines return routed experts, where vLLM's CPU backend cannot: its runner for that needs Triton for CPUs. Yields what binds one.

    Everything is vLLM's own, the capturer at the model's routers and the rule which rows go into which output, but for the way
    between the two: what the worker would send along with a step's output is put there.
    """
    import numpy as np
    from vllm.config import VllmConfig
    from vllm.distributed.aux_output_connector.connector import AuxRequestOutput
    from vllm.model_executor.layers.fused_moe import routed_experts_capturer as capturing
    from vllm.v1.core.sched.scheduler import Scheduler

    rows: dict[str, list[Any]] = {}
    bound: list[Any] = []
    original, verify = Scheduler.update_from_output, VllmConfig._verify_aux_output_compatibility

    def update_from_output(scheduler: Any, step: Any, output: Any) -> Any:
        total = sum(step.num_scheduled_tokens.values())
        of_step, start = bound[0].snapshot_routing_data(total).numpy().copy(), 0
        output.aux_output_connector_output = {}
        for name in output.req_ids:
            end = start + step.num_scheduled_tokens[name]
            rows.setdefault(name, []).extend(of_step[start:end])
            first = step.aux_output_connector_metadata.requests[name]
            output.aux_output_connector_output[name] = AuxRequestOutput(first, np.array(rows[name])[first:])
            start = end
        return original(scheduler, step, output)

    def bind(llm: Any) -> None:
        config = llm.llm_engine.vllm_config
        bound.append(capturing.RoutedExpertsCapturer(config.scheduler_config.max_num_batched_tokens, config))
        llm.apply_model(lambda model: capturing.bind_routed_experts_capturer(model, bound[0]))

    Scheduler.update_from_output = update_from_output
    VllmConfig._verify_aux_output_compatibility = lambda _config: None
    try:
        yield bind
    finally:
        Scheduler.update_from_output, VllmConfig._verify_aux_output_compatibility = original, verify


# --- What an engine in one process does ---


def stepwise(models: Path) -> Any:
    """Children, chunked prefill, cached prefixes, marks in mid-request, aborts, preemption, observed reloads."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from logprobe.collectors import weights

    short = {"max_model_len": 256, "disable_log_stats": False}
    # 64 tokens a step: a prompt of 150 is prefilled in chunks. 12 blocks of 32: six requests of 90 do not fit.
    llm = engine_of(models, max_num_batched_tokens=64, max_num_seqs=8, num_gpu_blocks_override=12, **short)
    engine = Driver(llm.llm_engine)
    weights.mark(0)
    free = {"temperature": 1.0, "logprobs": 0, "ignore_eos": True}
    together = RequestOutputKind.FINAL_ONLY
    engine.run("children", SamplingParams(n=3, max_tokens=9, output_kind=together, **free))
    engine.run("top", SamplingParams(max_tokens=9, temperature=0.8, top_p=0.9, logprobs=5, ignore_eos=True))
    engine.run("silent", SamplingParams(max_tokens=5, ignore_eos=True))
    engine.run("1_like-a-child", SamplingParams(max_tokens=4, **free))
    engine.run("stops", SamplingParams(max_tokens=64, temperature=1.0, logprobs=0, stop_token_ids=list(range(2, 200))))
    engine.run("whole", SamplingParams(max_tokens=5, stop=["never", "said"], **free))
    long = prompts_of(1, length=150)[0]
    engine.run("chunked", SamplingParams(max_tokens=6, **free), long)
    engine.run("cached", SamplingParams(max_tokens=6, **free), long)

    engine.add("spanned", SamplingParams(max_tokens=12, **free))
    engine.step_until("spanned", 5)
    weights.mark(1, step=1)
    engine.finish()

    engine.add("aborted", SamplingParams(max_tokens=30, **free))
    engine.step_until("aborted", 4)
    llm.llm_engine.abort_request(["aborted"])
    engine.finish()

    for number in range(6):
        engine.add(f"crowded-{number}", SamplingParams(max_tokens=60, **free), prompts_of(number + 1, 30)[-1])
    engine.finish()
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")

    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "new")})
    engine.run("unmarked", SamplingParams(max_tokens=4, **free))
    llm.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "old")})
    reset = llm.reset_prefix_cache()
    weights.mark(3, step=3)
    engine.run("marked", SamplingParams(max_tokens=4, **free))
    return {"rows": engine.rows, "preemptions": preemptions, "reset": reset, "flushed": flushed()}


class Driver:
    """An `LLMEngine`, one step at a time."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.rows: list[dict[str, Any]] = []

    def add(self, name: str, params: Any, prompt: Any = None, **more: Any) -> None:
        self.engine.add_request(name, prompt or prompts_of(1)[0], params, **more)

    def step(self) -> list[Any]:
        outputs = self.engine.step()
        self.rows += [row for output in outputs if output.finished for row in described(output)]
        return outputs

    def step_until(self, name: str, tokens: int) -> None:
        while not any(o.request_id == name and len(o.outputs[0].token_ids) == tokens for o in self.step()):
            pass

    def finish(self) -> None:
        while self.engine.has_unfinished_requests():
            self.step()

    def run(self, name: str, params: Any, prompt: Any = None) -> None:
        self.add(name, params, prompt)
        self.finish()


# --- An engine core in another process ---


def in_flight(models: Path) -> Any:
    """`AsyncLLM`: an update that interrupts requests, native labels beside marks, a caller that walks away."""
    return asyncio.run(_in_flight(models))


async def _in_flight(models: Path) -> Any:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    from logprobe.collectors import weights
    from logprobe.collectors.vllm import plugin as vllm_plugin

    vllm_plugin.register()
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**engine_arguments(models)))
    seen: dict[str, int] = {}
    params = SamplingParams(temperature=1.0, max_tokens=400, logprobs=0, ignore_eos=True)

    async def generate(name: str, prompt: Any) -> list[dict[str, Any]]:
        async for output in engine.generate(prompt, params, name):
            seen[name] = len(output.outputs[0].token_ids)
            last = output
        return described(last)

    async def reach(name: str, tokens: int) -> None:
        while seen.get(name, 0) < tokens:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def settled(name: str) -> int:
        """Tokens that the caller has once nothing more comes: what was sampled last may arrive after the pause has begun."""
        count = -1
        while count != seen[name]:
            count = seen[name]
            await asyncio.sleep(1.0)
        return count

    weights.mark(5)
    task = asyncio.create_task(generate("in-flight", prompts_of(1)[0]))
    await reach("in-flight", 20)
    await engine.pause_generation(mode="keep", clear_cache=False)
    before_load = await settled("in-flight")
    await engine.collective_rpc("reload_weights", kwargs={"weights_path": str(models / "new")})
    await engine.update_weight_version("6")
    await engine.resume_generation()
    await reach("in-flight", before_load + 20)
    await engine.pause_generation(mode="keep", clear_cache=False)
    before_mark = await settled("in-flight")
    weights.mark(7)
    await engine.resume_generation()
    rows = await task

    leaving = asyncio.create_task(generate("leaves", prompts_of(2)[1]))
    await reach("leaves", 5)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)

    params.output_kind = RequestOutputKind.FINAL_ONLY
    params.n, params.max_tokens = 2, 5
    rows += await generate("children", prompts_of(3)[2])
    # Many at a time: the engine has sampled on when it hears of a stop string.
    params.n, params.max_tokens, params.stop = 1, 60, ["w11", "w12", "w13"]
    found = await asyncio.gather(
        *(generate(f"stop-{number}", prompt) for number, prompt in enumerate(prompts_of(24))),
        too_busy_to_look(seconds=4),
    )
    stopped = [row for rows_of_request in found for row in rows_of_request or ()]
    served = await over_http(engine, models)
    # And the one that was left; vLLM kills slow engines when it ends
    until_recorded(len(rows) + len(stopped) + len(served) + 1)
    engine.shutdown()
    counts = {"before_load": before_load, "before_mark": before_mark, "left_after": seen["leaves"]}
    return {"rows": rows, "stopped": stopped, "served": served, **counts}


async def too_busy_to_look(*, seconds: float) -> None:
    """A front-end that does other things, while its engine samples on and ends requests itself."""
    await asyncio.sleep(0.5)
    time.sleep(seconds)  # noqa: ASYNC251


def until_recorded(sequences: int) -> None:
    """Waits until so many sequences are on the disk."""
    end = time.monotonic() + 120
    while (found := len(recorded("rollout"))) < sequences:
        assert time.monotonic() < end, f"{found} of {sequences} are on the disk"
        time.sleep(0.05)


def flushed() -> bool:
    """Whether all that engines and marks of this process left to record is on the disk."""
    from logprobe.collectors import weights
    from logprobe.collectors.vllm import plugin

    return all([plugin.flush(), *(recorder.flush() for recorder in weights._RECORDERS.values())])


def recorded(kind: str) -> list[dict[str, Any]]:
    """What is in the spool."""
    return spooled(Path(os.environ["LOGPROBE_HOME"]), os.environ["LOGPROBE_RUN"], kind)


async def over_http(engine: Any, models: Path) -> list[list[Any]]:
    """What clients of vLLM's own HTTP application get, named as they would name it: [sample id, token ids, log-probs]."""
    import httpx

    try:
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.app import build_app
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
    except ModuleNotFoundError:  # vLLM 0.28
        from vllm.entrypoints.openai.api_server import build_app, init_app_state
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from logprobe.collectors.vllm.ids import response_sample_id

    args = make_arg_parser(FlexibleArgumentParser()).parse_args(
        ["--model", str(models / "old"), "--served-model-name", "tiny"]
    )
    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks)
    await init_app_state(engine, app.state, args, tasks)
    common = {"model": "tiny", "max_tokens": 4, "n": 2, "return_token_ids": True}
    found = []
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
        body = {**common, "prompt": [[5, 6, 7], [8, 9, 10]], "logprobs": 0}
        answer = (await client.post("/v1/completions", json=body, headers={"X-Request-Id": "mine"})).json()
        for choice in answer["choices"]:
            name = response_sample_id(answer["id"], choice["index"], n=2, prompts=2)
            found.append([name, choice["token_ids"], choice["logprobs"]["token_logprobs"]])
        body = {**common, "messages": [{"role": "user", "content": "w5 w6"}], "logprobs": True}
        answer = (await client.post("/v1/chat/completions", json=body)).json()
        for choice in answer["choices"]:
            logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
            found.append([response_sample_id(answer["id"], choice["index"], n=2), choice["token_ids"], logprobs])
    return found


# --- Being harmless ---


ABSENT: Any = None  # what callers got from the first engine of this process, without a home (`engine_host`)


def without_a_home(models: Path) -> Any:
    """What an engine tells its callers where nothing is recorded, and whether the plugin left the process alone."""
    from vllm.v1.core.sched.scheduler import Scheduler

    rows = answer(models, {})
    imported = "logprobe.collectors.vllm.attach" in sys.modules
    return {"absent": rows, "untouched": not imported and not hasattr(Scheduler.__init__, "__logprobe__")}


def harmless(models: Path) -> Any:
    """The same requests without the plugin, with injection, and under every failure."""
    home = Path(os.environ.pop("TEST_HOME"))
    answers: dict[str, Any] = dict(ABSENT)
    blocked = home.parent / "a-file"
    blocked.write_text("no directory can be made below a file")
    watched = {"LOGPROBE_HOME": str(home), "LOGPROBE_RECORD": "inject"}
    answers["injected"] = answer(models, {**watched, "LOGPROBE_RUN": "injected"})
    answers["unwritable"] = answer(models, {**watched, "LOGPROBE_RUN": "lost", "LOGPROBE_HOME": str(blocked / "home")})
    answers["nameless"] = answer(models, watched)
    answers["unknown"] = answer(models, {**watched, "LOGPROBE_RUN": "unknown"}, spoil=unknown_vllm)
    choose_a_foreign_scheduler({**watched, "LOGPROBE_RUN": "foreign"})
    with broken_capture():
        answers["broken"] = answer(models, {**watched, "LOGPROBE_RUN": "broken"})
    return answers


def answer(models: Path, environment: dict[str, str], *, spoil: Any = None) -> list[dict[str, Any]]:
    """What an engine with these settings tells its callers."""
    from contextlib import nullcontext

    os.environ.update(environment)
    with spoil() if spoil else nullcontext():
        llm = engine_of(models)
    rows = mixed_requests(llm)
    flushed()
    shut_down()
    for name in environment:
        del os.environ[name]
    return rows


def mixed_requests(llm: Any) -> list[dict[str, Any]]:
    """Requests that ask for log-probs beside requests that do not, in the same steps."""
    from vllm import SamplingParams

    silent = SamplingParams(temperature=0.9, max_tokens=12, n=2, seed=3)
    asking = SamplingParams(temperature=0.9, max_tokens=12, seed=4, logprobs=2)
    outputs = llm.generate(prompts_of(6), [silent, asking] * 3, use_tqdm=False)
    return [row for output in outputs for row in described(output)]


NGRAMS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def speculative(models: Path) -> Any:
    """What a guesser of n-grams gets right often: greedy decoding of a small model runs in circles."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=60, logprobs=0, ignore_eos=True)
    llm = engine_of(models, speculative_config=NGRAMS)
    outputs = llm.generate([{"prompt_token_ids": [5, 6, 7, 8] * 6}] * 2, params, use_tqdm=False)
    flushed()
    shut_down()
    return [row for output in outputs for row in described(output)]


class Foreign:
    """A scheduler that has nothing to do with vLLM's."""


def choose_a_foreign_scheduler(environment: dict[str, str]) -> None:
    """What the engine core does first with ``scheduler_cls``; a whole engine around it would add nothing."""
    from types import SimpleNamespace

    from vllm.config import SchedulerConfig

    os.environ.update(environment)
    config = SimpleNamespace(scheduler_cls=Foreign, async_scheduling=False)
    assert SchedulerConfig.get_scheduler_cls(config) is Foreign
    for name in environment:
        del os.environ[name]


@contextmanager
def unknown_vllm() -> Iterator[None]:
    """A vLLM whose log-probs come in another column."""
    from vllm.v1 import outputs

    class Reversed(outputs.LogprobsLists):
        def slice_request(self, req_idx: int, num_positions: int) -> Any:
            found = super().slice_request(req_idx, num_positions)
            return found._replace(logprobs=found.logprobs[:, ::-1])

    known, outputs.LogprobsLists = outputs.LogprobsLists, Reversed
    try:
        yield
    finally:
        outputs.LogprobsLists = known


@contextmanager
def broken_capture() -> Iterator[None]:
    """Capture that fails at every step, once the self-test is over."""
    from logprobe.collectors.vllm import attach as vllm_attach
    from logprobe.collectors.vllm import capture as vllm_capture

    def fail(*_: Any) -> None:
        raise KeyError("made to fail")

    known, known_test = vllm_capture.Capture._take, vllm_attach.self_test
    vllm_capture.Capture._take, vllm_attach.self_test = fail, lambda _scheduler: []
    try:
        yield
    finally:
        vllm_capture.Capture._take, vllm_attach.self_test = known, known_test


if __name__ == "__main__":
    print("RESULT", json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
