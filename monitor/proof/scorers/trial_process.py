"""Process that samples for `logprobe preflight`.

The command is ``python -m logprobe.monitor.proof.scorers.trial_process JOB.json ANSWER.json``.

The process takes a `TrialJob` and returns a `TrialAnswer`. Without vLLM, transformers in bfloat16 replaces the engine.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from logprobe.monitor.proof.scorers.child import answer_job
from logprobe.monitor.proof.scorers.jobs import Sampled, TrialAnswer, TrialJob

_PROMPTS: Final = (
    "What is 17 times 23? Think step by step.",
    "Write a short poem about the sea.",
    "The capital of France is",
    "def fibonacci(n):",
    "Explain in one sentence why the sky is blue.",
    "Once upon a time, in a village by a river,",
    "Solve for x: 3x + 5 = 20. x =",
    "List three fruits and their colours:",
)
_SCATTERED: Final = 12  # ids of a prompt, where the checkpoint has no tokenizer
_Samples = tuple[list[Sampled], Mapping[str, Any] | None, str]  # with the engine's configuration, and who sampled


def main(job: TrialJob, _: Path) -> TrialAnswer:
    """Sample `answers` sequences."""
    model = Path(job["model"])
    texts = _tokenized(model)
    prompts = texts or _random_prompts(model)
    asked = [prompts[number % len(prompts)] for number in range(job["answers"])]
    sample = _by_engine if has_engine() else _by_transformers
    sequences, config, sampler = sample(job, asked)
    words = "text" if texts else "scattered ids"
    return {"sequences": sequences, "config": config, "sampler": sampler, "prompts": words}


def has_engine() -> bool:
    """Return whether vLLM is installed."""
    return importlib.util.find_spec("vllm") is not None


def _tokenized(model: Path) -> list[list[int]]:
    """Return token ids of the built-in prompts, none if the checkpoint has no tokenizer."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - heavy

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True)
    except (OSError, ValueError, KeyError):
        return []
    tokenized = [tokenizer(prompt)["input_ids"] for prompt in _PROMPTS]
    meaningful = [ids for ids in tokenized if set(ids) - set(tokenizer.all_special_ids)]
    return tokenized if len(meaningful) == len(tokenized) else []  # one that knows no English word


def _random_prompts(model: Path) -> list[list[int]]:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    return [[7919 * (_SCATTERED * at + place) % size for place in range(_SCATTERED)] for at in range(len(_PROMPTS))]


def _by_engine(job: TrialJob, prompts: Sequence[Sequence[int]]) -> _Samples:
    from logprobe.monitor.proof.scorers.engine_process import Scorer  # noqa: PLC0415 - after the environment is set

    scorer = Scorer(
        {"model": job["model"], "arguments": job["arguments"], "overrides": {}, "sequences": [], "paths": []}
    )
    config = scorer.document()
    dtype = str(config["summary"].get("dtype")).removeprefix("torch.")
    sampler = f"vLLM {config['versions']['vllm']}, {dtype}"
    return scorer.sample(prompts, job["tokens"], job.get("temperature", 1.0)), config, sampler


def _by_transformers(job: TrialJob, prompts: Sequence[Sequence[int]]) -> _Samples:
    from logprobe.monitor.proof.forward import sample  # noqa: PLC0415 - heavy

    sequences = sample(prompts, Path(job["model"]), job["tokens"], temperature=job.get("temperature", 1.0))
    return sequences, None, "transformers in bfloat16 (a stand-in: vLLM is not installed here)"


if __name__ == "__main__":
    answer_job(main)
