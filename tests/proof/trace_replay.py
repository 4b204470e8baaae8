"""Whether an engine that repeats tokens by itself (`trace_decode_token_ids`) reports what it reported when it sampled them, bit by bit.

    python -m pip install --no-deps --target FOLDER triton
    python tests/proof/trace_replay.py FOLDER

vLLM 0.32 has it in its second model runner, which wants Triton. Here Triton's interpreter runs that runner's kernels on the CPU: slow, and
the same code. The truncation's kernel is the only one that it cannot interpret; vLLM's own PyTorch version serves instead. Exit code 1: not so.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from engine_process import ENGINE_ENVIRONMENT

E2E = Path(__file__).resolve().parent.parent / "e2e"
SECOND = {"VLLM_USE_V2_MODEL_RUNNER": "1", "TRITON_INTERPRET": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
FIRST = {**SECOND, "VLLM_USE_V2_MODEL_RUNNER": "0"}
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256, "distributed_executor_backend": "uni"}
SAMPLINGS: tuple[dict[str, Any], ...] = ({}, {"top_p": 0.9}, {"repetition_penalty": 1.2}, {"top_k": 50})
TEMPERATURES = (0.7, 1.0, 1.3)


def main(triton: str) -> int:
    wrong = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run(
            [sys.executable, str(E2E / "tiny_model.py"), str(folder / "model")], check=True, capture_output=True
        )
        for mode in ("processed_logprobs", "raw_logprobs"):
            sampled = _process("sampled", mode, folder, triton, SECOND)
            (folder / "sequences.json").write_text(json.dumps(sampled))
            again, own = (_process("scored", mode, folder, triton, environment) for environment in (SECOND, FIRST))
            reported = [value for row in sampled for value in row["rollout_logprobs"]]
            pairs = [list(zip(reported, [x for row in answer for x in row], strict=True)) for answer in (again, own)]
            equal = sum(a == b for a, b in pairs[0])
            far = max(abs(a - b) for a, b in pairs[1])
            print(
                f"{mode}: {equal} of {len(reported)} tokens equal in every bit; by the first runner and a processor within {far:.2g}"
            )
            wrong += equal != len(reported) or far > 1e-5  # it computes log-softmax by a kernel of its own
    return bool(wrong)


def _process(what: str, mode: str, folder: Path, triton: str, environment: dict[str, str]) -> Any:
    (folder / "readings.jsonl").unlink(missing_ok=True)
    settings = {
        **os.environ,
        **ENGINE_ENVIRONMENT,
        **environment,
        "LOGPROBE_PROOF_READINGS": str(folder / "readings.jsonl"),
    }
    done = subprocess.run(
        [sys.executable, __file__, triton, what, mode, str(folder)],
        env=settings,
        capture_output=True,
        text=True,
        check=False,
    )
    answers = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not answers:
        raise SystemExit(f"{what} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return json.loads(answers[-1])


def interpreted(triton: str) -> None:
    """Makes vLLM take Triton's interpreter for a CPU backend, and PyTorch for the kernel that it cannot run."""
    from types import SimpleNamespace

    sys.path.insert(0, triton)
    from triton.backends import backends

    backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
    import vllm.v1.sample.ops.topk_topp_sampler as kernels

    kernels.HAS_TRITON = False


def sampled(mode: str, folder: Path) -> list[dict[str, Any]]:
    """What an engine sampled and reported by itself."""
    from vllm import LLM, SamplingParams

    llm = LLM(str(folder / "model"), logprobs_mode=mode, skip_tokenizer_init=True, seed=1, **ENGINE)
    rng = random.Random(5)
    rows = []
    for index in range(12):
        prompt = [rng.randrange(2, 512) for _ in range(rng.randint(3, 70))]
        temperature, sampling = TEMPERATURES[index % 3], SAMPLINGS[index % 4]
        params = SamplingParams(
            max_tokens=12, temperature=temperature, logprobs=0, detokenize=False, ignore_eos=True, **sampling
        )
        output = llm.generate([{"prompt_token_ids": prompt}], params)[0].outputs[0]
        values = [row[token].logprob for row, token in zip(output.logprobs, output.token_ids, strict=True)]
        rows.append({"prompt_ids": prompt, "response_ids": list(output.token_ids), "rollout_logprobs": values})
        rows[-1] |= {"temperature": temperature, "sampling": sampling, "spans": []}
    return rows


def scored(mode: str, folder: Path) -> list[list[float]]:
    """What logprobe's scorer says of the same tokens."""
    from logprobe.monitor.proof.scorers.engine_process import Scorer

    sequences = json.loads((folder / "sequences.json").read_text())
    overrides = {**ENGINE, "logprobs_mode": mode}
    job = {
        "model": str(folder / "model"),
        "arguments": "",
        "overrides": overrides,
        "sequences": sequences,
        "paths": ["decode"],
    }
    return Scorer(job).decode(None)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(main(sys.argv[1]))
    if os.environ["VLLM_USE_V2_MODEL_RUNNER"] == "1":
        interpreted(sys.argv[1])
    answer = {"sampled": sampled, "scored": scored}[sys.argv[2]](sys.argv[3], Path(sys.argv[4]))
    print("RESULT", json.dumps(answer))
