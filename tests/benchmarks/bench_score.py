"""What `logprobe bisect --only-score` takes, beside an engine that only scores the same prompts with `prompt_logprobs`, on the same machine.

Both are whole processes: an engine's start is most of it. The speeds of the two paths leave the starts out.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from figure import Figure

E2E = Path(__file__).resolve().parent.parent / "e2e"
sys.path.append(str(E2E))
SEQUENCES, PROMPT, RESPONSE = 256, 64, 192
ROUNDS = 2
LEAST = 0.5
# Responses are forced token by token, which is what an engine does that samples.
FIGURES = (
    ("the whole command", "whole", "a script with prompt_logprobs"),
    ("prefill path", "prefill", "the engine's own prompt_logprobs"),
    ("decode path", "decode", "the engine's own sampling"),
)
ENGINE = "--dtype float32 --enforce-eager --block-size 32 --max-model-len 512 --logprobs-mode processed_logprobs"


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model")
        sample = write_sample(folder / "sample.jsonl")
        rounds = [(plain(folder / "model", sample), scored(folder / "model", sample)) for _ in range(ROUNDS)]
    return figures([own for own, _ in rounds], [ours for _, ours in rounds])


def figures(own: list[dict[str, float]], ours: list[dict[str, float]]) -> list[Figure]:
    """The fastest of each side: what the machine can do when nobody else uses it."""
    return [
        figure(name, max(one[key] for one in ours), max(one[key] for one in own), baseline)
        for name, key, baseline in FIGURES
    ]


def figure(name: str, value: float, baseline_value: float, baseline: str) -> Figure:
    return Figure(
        f"bisect --only-score, {name}",
        value,
        "tokens/s",
        f"ratio ≥ {LEAST}",
        value >= LEAST * baseline_value,
        baseline,
        baseline_value,
        f"{SEQUENCES} sequences of {PROMPT} + {RESPONSE} tokens, a tiny model on the CPU; fastest of {ROUNDS}",
    )


def make_model(folder: Path) -> None:
    command = [sys.executable, str(E2E / "tiny_model.py"), str(folder)]
    subprocess.run(command, env=environment(), check=True, capture_output=True)


def write_sample(path: Path) -> Path:
    draw = random.Random(1)
    rows = [
        {
            "sample_id": f"s{index}",
            "prompt_ids": [draw.randrange(2, 512) for _ in range(PROMPT)],
            "response_ids": [draw.randrange(2, 512) for _ in range(RESPONSE)],
            "rollout_logprobs": [-5.0] * RESPONSE,
            "trainer_logprobs": [-5.0] * RESPONSE,
        }
        for index in range(SEQUENCES)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def scored(model: Path, sample: Path) -> dict[str, float]:
    """Response tokens a second: of the command, and of the engine's two paths."""
    given = ["--sample", str(sample), "--model", str(model), "--engine-args", ENGINE, "--json"]
    seconds, done = timed([sys.executable, "-m", "logprobe.app.cli", "bisect", "--only-score", *given])
    speed = json.loads(done)["tokens_per_s"]
    return {"whole": SEQUENCES * RESPONSE / seconds, "prefill": speed["prefill"], "decode": speed["decode"]}


def plain(model: Path, sample: Path) -> dict[str, float]:
    """The same of a script that has the engine score prompts and responses, and sample as many tokens."""
    seconds, done = timed([sys.executable, str(Path(__file__)), str(model), str(sample)])
    found: dict[str, float] = json.loads(done.splitlines()[-1])
    tokens = SEQUENCES * RESPONSE
    whole = seconds - found["sampled_s"]
    return {"whole": tokens / whole, "prefill": tokens / found["prompts_s"], "decode": tokens / found["sampled_s"]}


def timed(command: list[str]) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return time.perf_counter() - began, done.stdout


def environment() -> dict[str, str]:
    from engine_process import ENGINE_ENVIRONMENT

    variables = {name: value for name, value in os.environ.items() if not name.startswith("LOGPROBE_")}
    return {**variables, **ENGINE_ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "PYTHONPATH": str(E2E)}


def script(model: str, sample: str) -> dict[str, float]:
    """What somebody writes who scores prompts by hand."""
    from vllm import LLM, SamplingParams

    rows = [json.loads(line) for line in Path(sample).read_text().splitlines()]
    llm: Any = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=512,
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
    )
    params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": row["prompt_ids"] + row["response_ids"]} for row in rows]
    prompts_s = seconds_of(llm, prompts, params)
    params = SamplingParams(max_tokens=RESPONSE, logprobs=0, ignore_eos=True, detokenize=False)
    sampled_s = seconds_of(llm, [{"prompt_token_ids": row["prompt_ids"]} for row in rows], params)
    return {"prompts_s": prompts_s, "sampled_s": sampled_s}


def seconds_of(llm: Any, prompts: list[Any], params: Any) -> float:
    began = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(json.dumps(script(sys.argv[1], sys.argv[2])), flush=True)
    os._exit(0)  # threads of the engine take their time
