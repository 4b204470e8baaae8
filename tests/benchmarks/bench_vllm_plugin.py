"""What the vLLM plugin costs: CPU time per sampled token of a real engine, with the plugin over without.

One engine in one process. Every other step, and every other request that is added, goes through the plugin's hooks, and
each is compared with its neighbours: on a shared machine whole rounds differ by more than what is looked for. That is CPU time
of the engine's own thread; CPU time of our two background threads, up to durable records, is measured by their own clocks and
charged in full. The model is as small as a model can be, so ours weighs as much as it ever can.

Injection cannot be switched from step to step; its two figures compare whole rounds and are as noisy as those.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from figure import Figure

E2E = Path(__file__).resolve().parent.parent / "e2e"
HOOKS = ("schedule", "update_from_output", "add_request", "finish_requests", "reset_prefix_cache", "logprobe")
PROMPTS, TOKENS = 128, 128
ROUNDS, WHOLE_ROUNDS = 10, 3
TARGET = 1.03


def measure() -> list[Figure]:
    """All figures of this module."""
    with tempfile.TemporaryDirectory() as folder:
        found = in_a_process(Path(folder) / "plain")
        adapters = in_a_process(Path(folder) / "adapters", "adapters")
    return [
        step_figure("vLLM plugin, log-probs already on", **found["steps"]),
        step_figure("vLLM plugin, the same with a LoRA adapter", **adapters["steps"]),
        *round_figures(found["rounds"]),
    ]


def step_figure(
    name: str, on: list[float], off: list[float], added_on: list[float], added_off: list[float], background: float
) -> Figure:
    """`on[i]` lies between `off[i]` and `off[i + 1]`: seconds of steps; `background`: seconds a token."""
    neighbours = [(before + after) / 2 for before, after in itertools.pairwise(off)]
    ratio = statistics.median(ours / others for ours, others in zip(on, neighbours, strict=False))
    baseline = 1e6 * statistics.median(off) / PROMPTS
    adding = max(0.0, statistics.median(added_on) - statistics.median(added_off)) / TOKENS
    extra = 1e6 * (adding + background)
    total = ratio + extra / baseline
    note = f"median of {len(on)} steps of {PROMPTS} requests; {baseline * (ratio - 1):.2f} µs in the engine's thread, {extra:.2f} µs beside it"
    return Figure(
        name, total * baseline, "µs CPU/token", f"ratio ≤ {TARGET}", total <= TARGET, "plugin off", baseline, note
    )


def round_figures(rounds: dict[str, list[float]]) -> list[Figure]:
    """CPU seconds of the process, by kind of round."""
    silent = 1e6 * min(rounds["silent"]) / PROMPTS / TOKENS
    names = {
        "injected": "vLLM plugin turns log-probs on (LOGPROBE_RECORD=inject)",
        "asking": "log-probs asked for, no plugin",
    }
    note = f"least of {WHOLE_ROUNDS} whole rounds of {PROMPTS} × {TOKENS} tokens"
    return [
        Figure(
            name,
            1e6 * min(rounds[kind]) / PROMPTS / TOKENS,
            "µs CPU/token",
            baseline="no log-probs",
            baseline_value=silent,
            note=note,
        )
        for kind, name in names.items()
    ]


def in_a_process(folder: Path, *kind: str) -> dict[str, Any]:
    """Runs this module as a script with the plugin switched on."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(E2E),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "LOGPROBE_HOME": str(folder / "home"),
        "LOGPROBE_RUN": "bench",
        "LOGPROBE_RECORD": "inject",
    }
    done = subprocess.run(
        [sys.executable, __file__, str(folder), *kind], env=environment, capture_output=True, text=True, check=False
    )
    answers = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not answers:
        raise RuntimeError(f"the engine ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(answers[-1])


def on_an_engine(folder: Path, *kind: str) -> dict[str, Any]:
    """Everything that is measured, in seconds; of adapters the steps alone."""
    from engine_process import ENGINE_ENVIRONMENT
    from engine_scenarios import engine_arguments
    from tiny_model import make_tiny_adapter, make_tiny_model

    os.environ.update(ENGINE_ENVIRONMENT)
    # Compiled, as in production, where the compiler can be used: a slower engine would flatter the ratio
    if " " not in sys.prefix:
        del os.environ["TORCHDYNAMO_DISABLE"]
    make_tiny_model(folder / "old", hidden=64 if kind else 128)
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    more: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8} if kind else {}
    llm = LLM(**engine_arguments(folder, enable_prefix_caching=False, **more))
    switch = Switch(llm.llm_engine.engine_core.engine_core.scheduler)
    common = {"temperature": 1.0, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False}
    asking = SamplingParams(logprobs=0, **common)
    if kind:
        request = LoRARequest("red", 1, str(make_tiny_adapter(folder / "red", seed=0)))
        return {"steps": alternating_steps(llm.llm_engine, switch, asking, lora_request=request)}
    return {
        "steps": alternating_steps(llm.llm_engine, switch, asking),
        "rounds": whole_rounds(llm, switch, {"silent": SamplingParams(**common), "asking": asking}),
    }


def alternating_steps(engine: Any, switch: Switch, params: Any, **more: Any) -> dict[str, Any]:
    """Rounds in which every other step is watched; the first two warm up."""
    found: dict[str, Any] = {"on": [], "off": [], "added_on": [], "added_off": []}
    background = 0.0
    for number in range(-2, ROUNDS):
        if number == 0:
            background = background_seconds()
            for values in found.values():
                values.clear()
        one_round(engine, switch, params, found, **more)
    tokens = ROUNDS * PROMPTS * TOKENS
    return {**found, "background": (background_seconds() - background) / tokens}


def one_round(engine: Any, switch: Switch, params: Any, found: dict[str, Any], **more: Any) -> None:
    from engine_scenarios import prompts_of

    for number, prompt in enumerate(prompts_of(PROMPTS)):
        watched = number % 2 == 0
        found["added_on" if watched else "added_off"].append(
            timed(
                switch,
                lambda n=number, p=prompt: engine.add_request(f"{time.time_ns()}-{n}", p, params, **more),
                on=watched,
            )
        )
    switch.turn(on=True)
    engine.step()  # the prefill
    for number in range(TOKENS - 2):  # as many watched as not, so that neighbours stay neighbours
        watched = number % 2 == 1
        found["on" if watched else "off"].append(timed(switch, engine.step, on=watched))
    switch.turn(on=True)
    while engine.has_unfinished_requests():
        engine.step()


def timed(switch: Switch, call: Any, *, on: bool) -> float:
    switch.turn(on=on)
    started = time.thread_time()
    call()
    return time.thread_time() - started


def whole_rounds(llm: Any, switch: Switch, params: dict[str, Any]) -> dict[str, list[float]]:
    """CPU time of the process for kinds of rounds that take turns, background included."""
    from engine_scenarios import prompts_of

    from logprobe.collectors.vllm import plugin as vllm_plugin

    found: dict[str, list[float]] = {"silent": [], "asking": [], "injected": []}
    for _ in range(WHOLE_ROUNDS):
        for kind, values in found.items():
            switch.turn(on=kind == "injected")
            started = time.process_time()
            llm.generate(prompts_of(PROMPTS), params["asking" if kind == "asking" else "silent"], use_tqdm=False)
            vllm_plugin.flush()
            values.append(time.process_time() - started)
    return found


def background_seconds() -> float:
    """CPU time so far of our threads, once everything recorded is durable, and of reading weights in the engine's own."""
    from logprobe.collectors.vllm import attach
    from logprobe.collectors.vllm import plugin as vllm_plugin

    vllm_plugin.flush()
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("logprobe")]
    reading = sum(executor.driver_worker.worker.logprobe_reader.spent for executor in attach._EXECUTORS)
    return reading + sum(
        time.clock_gettime(time.pthread_getcpuclockid(thread.ident)) for thread in ours if thread.ident
    )


class Switch:
    """Takes the plugin's hooks off one scheduler and puts them back."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._hooks = {name: vars(scheduler)[name] for name in HOOKS}

    def turn(self, *, on: bool) -> None:
        for name, hook in self._hooks.items():
            if on:
                setattr(self._scheduler, name, hook)
            else:
                vars(self._scheduler).pop(name, None)


if __name__ == "__main__":
    print("RESULT", json.dumps(on_an_engine(Path(sys.argv[1]), *sys.argv[2:])))
