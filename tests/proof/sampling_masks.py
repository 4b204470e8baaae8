"""Top-p on a real engine that returns its sampling masks, with a trainer that renormalises over them and with one that does not.

    python -m pip install --no-deps --target FOLDER triton
    python tests/proof/sampling_masks.py FOLDER

vLLM has masks in its second model runner only; see `trace_replay` for how it runs here. The diagnoses must be: nothing, with a K3 of
rounding; `truncated_support` where the trainer's log-probs are over everything, whatever its configuration states. Exit code 1: not so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_process import ENGINE_ENVIRONMENT
from trace_replay import E2E, ENGINE, SECOND, interpreted

STEPS, PROMPTS, TOKENS = 3, 12, 12
RUN = "masks"
WAYS: Mapping[
    str, tuple[bool, bool, list[str]]
] = {  # the trainer renormalises; it states that it does; what must be named
    "renormalises": (True, True, []),
    "renormalises, states nothing": (True, False, []),
    "does not": (False, False, ["truncated_support"]),
    "does not, and states it does": (False, True, ["unknown"]),
}


def main(triton: str) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = folder / "model"
        subprocess.run([sys.executable, str(E2E / "tiny_model.py"), str(model)], check=True, capture_output=True)
        recorded = {"LOGPROBE_HOME": str(folder / "engine"), "LOGPROBE_RUN": RUN}
        told = _process([__file__, triton, str(model)], {**ENGINE_ENVIRONMENT, **SECOND, **recorded})
        steps = json.loads(told.rpartition("RESULT ")[2])
        for way, (renormalises, states, expected) in WAYS.items():
            home = folder / way
            shutil.copytree(folder / "engine", home)
            train(home, model, steps, renormalises=renormalises, states=states)
            _process(["-m", "logprobe.app.cli", "up", "--once", "--home", str(home)], {})
            found = json.loads(_process(["-m", "logprobe.app.cli", "show", RUN, "--json", "--home", str(home)], {}))
            named = [each["cause"] for each in found["findings"] if each["urgency"] != "informational"]
            print(f"{way}: K3 {found['level']['numerics']}, named: {named}")
            print(*(f"    {each['explanation']}" for each in found["findings"]), sep="\n")
            wrong += named != expected
    return bool(wrong)


def _process(command: list[str], environment: Mapping[str, str]) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGPROBE_")}
    done = subprocess.run(
        [sys.executable, *command], env={**kept, **environment}, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, 1, 2):  # a run that needs attention is no error
        raise SystemExit(f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}")
    return done.stdout


def sample(model: Path) -> list[list[dict[str, Any]]]:
    """Return what an engine sampled in some steps with top-p 0.9, and its masks."""
    from vllm import LLM, SamplingParams

    from logprobe.collectors.vllm.attach import flush
    from logprobe.collectors.vllm.ids import sample_id

    llm = LLM(
        str(model), logprobs_mode="processed_logprobs", return_sampling_mask=True, skip_tokenizer_init=True, **ENGINE
    )
    params = SamplingParams(max_tokens=TOKENS, top_p=0.9, top_k=400, logprobs=0, detokenize=False, ignore_eos=True)
    steps = []
    for step in range(STEPS):
        prompts = [[2 + (31 * i + 7 * j + 13 * step) % 500 for j in range(6)] for i in range(PROMPTS)]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        steps.append(
            [
                {
                    "name": sample_id(output),
                    "prompt": list(output.prompt_token_ids),
                    "sampled": list(output.outputs[0].token_ids),
                    "masks": [list(map(int, kept)) for kept in output.outputs[0].sampling_mask.token_ids],
                }
                for output in outputs
            ]
        )
    assert flush(60)
    return steps


def train(home: Path, model: Path, steps: list[list[dict[str, Any]]], *, renormalises: bool, states: bool) -> None:
    """Record the trainer's half of the steps."""
    from logprobe.collectors import Recorder

    with Recorder(home, RUN, component="trainer") as recorder:
        stated = {"sampling_mask": True} if states else {}
        recorder.config({"dtype": "float32", "temperature": 1.0, **stated}, kind="trainer_config")
        for step, rows in enumerate(steps):
            recorder.training(
                step=step,
                sample_ids=[row["name"] for row in rows],
                token_ids=[row["sampled"] for row in rows],
                trainer_logprobs=[logprobs(model, row, renormalised=renormalises) for row in rows],
            )


def logprobs(model: Path, row: dict[str, Any], *, renormalised: bool) -> list[float]:
    """Return log-probs of the sampled tokens in float32, over the engine's masks or over everything."""
    import torch
    from transformers import Qwen3ForCausalLM

    policy = Qwen3ForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    sampled = torch.tensor(row["sampled"])
    with torch.inference_mode():
        logits = policy(torch.tensor([row["prompt"] + row["sampled"]])).logits[0, len(row["prompt"]) - 1 : -1]
    if renormalised:
        left_out = torch.ones_like(logits, dtype=torch.bool)
        for place, kept in enumerate(row["masks"]):
            left_out[place, kept] = False
        logits = logits.masked_fill(left_out, -torch.inf)
    return torch.log_softmax(logits, -1).gather(1, sampled[:, None])[:, 0].tolist()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    interpreted(sys.argv[1])
    print("RESULT", json.dumps(sample(Path(sys.argv[2]))))
