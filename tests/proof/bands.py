"""K3 of healthy set-ups, measured: a real engine and a trainer with the same weights, once for each set-up.

    python tests/proof/bands.py [NAME …]

Each set-up is a process of its own and a run like any other; what `logprobe show` says of its set-up and level becomes its row in
`monitor/judging/levels.yaml`. The model is a random Qwen3 of 0.2 M parameters, so these are levels of kernels and dtypes, not of a size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from engine_process import ENGINE_ENVIRONMENT

STEPS, PROMPTS, TOKENS = 3, 24, 24
RUN = "band"
ROOT = Path(__file__).resolve().parents[2]
MEASURED = "measured: vLLM 0.32.0 on a CPU, 0.2 M parameters"
FILE = ROOT / "monitor" / "judging" / "levels.yaml"


class Setup(NamedTuple):
    """One set-up: settings of the engine, dtype of the trainer, and kind of the model."""

    engine: Mapping[str, Any] = {}
    trainer: str = "float32"
    model: str = "dense"
    words: str = ""
    temperature: float = 1.0


BF16 = {"dtype": "bfloat16"}
SETUPS: Mapping[str, Setup] = {
    "float32": Setup({"dtype": "float32"}),
    "float16": Setup({"dtype": "float16"}),
    "bf16": Setup(BF16),
    "bf16, both": Setup(BF16, trainer="bfloat16"),
    "float32, bf16 trainer": Setup({"dtype": "float32"}, trainer="bfloat16"),
    "bf16, float32 head": Setup({**BF16, "hf_overrides": {"head_dtype": "float32"}}),
    "bf16, no prefix cache": Setup({**BF16, "enable_prefix_caching": False}, words="no prefix cache"),
    "bf16, chunked": Setup(
        {**BF16, "max_num_batched_tokens": 32, "max_num_seqs": 32}, words="prefill in chunks of 32 tokens"
    ),
    "bf16, temperature 0.7": Setup(BF16, words="temperature 0.7", temperature=0.7),
    "bf16, drafts": Setup(
        {**BF16, "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}},
        words="speculative decoding (n-grams)",
    ),
    "bf16, fp8 cache": Setup({**BF16, "kv_cache_dtype": "fp8"}),
    "bf16, fp8 weights": Setup({**BF16, "quantization": "fp8"}),
    "bf16, LoRA": Setup({**BF16, "enable_lora": True, "max_lora_rank": 8}, model="adapter", words="LoRA"),
    "experts, float32": Setup({"dtype": "float32"}, model="experts"),
    "experts, bf16": Setup(BF16, model="experts"),
    "experts, bf16, replay": Setup(BF16, model="replay", words="routing replay"),
}


def main(names: list[str]) -> int:
    rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or SETUPS:
            try:
                rows[name] = measured(name, Path(scratch) / name)
                print(rows[name], flush=True)
            except RuntimeError as error:  # not every engine has everything
                print(f"{name} is not measured: {error}", flush=True)
    write(rows)
    return int(not rows)


def measured(name: str, home: Path) -> dict[str, Any]:
    """Return the row of a set-up."""
    recorded = {"LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    _process([__file__, "--record", name, str(home.with_suffix(".model"))], {**ENGINE_ENVIRONMENT, **recorded})
    _process(["-m", "logprobe.app.cli", "up", "--once", "--home", str(home)], {})
    found = json.loads(_process(["-m", "logprobe.app.cli", "show", RUN, "--json", "--home", str(home)], {}))
    return row_of(name, found["level"]["setup"], found["level"]["numerics"])


def row_of(name: str, setup: dict[str, str | None], k3: float) -> dict[str, Any]:
    """Return a row of `levels.yaml`. Settings that a diagnosis does not look at are in `also`."""
    also = {"also": SETUPS[name].words} if SETUPS[name].words else {}
    k3, tokens = float(f"{k3:.2g}"), STEPS * PROMPTS * TOKENS
    return {
        "name": name,
        "setup": {**setup, **also},
        "low": k3,
        "high": k3,
        "runs": 1,
        "tokens": tokens,
        "source": MEASURED,
    }


def write(rows: Mapping[str, dict[str, Any]]) -> None:
    """Put rows into the file, each a line, in place of those of these names."""
    text, _, listed = FILE.read_text(encoding="utf-8").partition("\nsetups:")
    lines = [line for line in listed.splitlines() if line.startswith("  - ")]
    kept = [line for line in lines if json.loads(line[4:])["name"] not in rows]
    made = [f"  - {json.dumps(row)}" for row in rows.values()]
    FILE.write_text("\n".join([text, "setups:", *made, *kept, ""]), encoding="utf-8")


def _process(command: list[str], environment: Mapping[str, str]) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOGPROBE_")}
    done = subprocess.run(
        [sys.executable, *command], env={**kept, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1, 2):  # a run that needs attention is no error
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    if "--record" in command and done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout


def record(name: str, folder: Path) -> None:
    """Sample from the engine of a set-up, and record the trainer's half."""
    from engine_scenarios import described, prompts_of, returned_routes
    from tiny_model import make_tiny_adapter, make_tiny_model, make_tiny_moe
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    from logprobe.collectors import Recorder
    from logprobe.collectors.vllm.attach import flush

    setup = SETUPS[name]
    model = make_tiny_moe(folder) if setup.model in {"experts", "replay"} else make_tiny_model(folder)
    adapter = make_tiny_adapter(folder.with_suffix(".adapter"), seed=1) if setup.model == "adapter" else None
    replays = setup.model == "replay"
    more = {"enable_return_routed_experts": True, "async_scheduling": False} if replays else {}
    settings = {
        "logprobs_mode": "processed_logprobs",
        "enforce_eager": True,
        "max_model_len": 512,
        "seed": 7,
        "block_size": 32,
    }
    request = None if adapter is None else LoRARequest("a", 1, str(adapter))
    with returned_routes() if replays else nullcontext(lambda llm: None) as bind:
        llm = LLM(str(model), distributed_executor_backend="uni", **settings, **more, **setup.engine)
        bind(llm)
        params = SamplingParams(temperature=setup.temperature, max_tokens=TOKENS, logprobs=0, ignore_eos=True)
        with Recorder(component="trainer") as recorder:
            recorder.config({"dtype": setup.trainer, "temperature": setup.temperature}, kind="trainer_config")
            for step in range(STEPS):
                outputs = llm.generate(prompts_of(PROMPTS, 12 + step), params, use_tqdm=False, lora_request=request)
                rows = [row for output in outputs for row in described(output)]
                routes = [output.outputs[0].routed_experts for output in outputs] if replays else None
                logprobs, used = trained(setup, model, adapter, rows, routes)
                recorder.training(
                    step=step,
                    sample_ids=[row["sample_id"] for row in rows],
                    token_ids=[row["token_ids"] for row in rows],
                    trainer_logprobs=logprobs,
                    **({} if used is None else {"routes": used}),
                )
        assert flush(60)


def trained(
    setup: Setup, model: Path, adapter: Path | None, rows: list[dict[str, Any]], routes: Any
) -> tuple[Any, Any]:
    """Return the trainer's log-probs, and the experts that it used."""
    import torch
    from tiny_model import make_merged
    from transformers import AutoModelForCausalLM

    where = model if adapter is None else make_merged(model.with_suffix(".merged"), model, adapter)
    policy = AutoModelForCausalLM.from_pretrained(where, dtype=getattr(torch, setup.trainer)).eval()
    found, used = [], []
    with torch.inference_mode():
        for index, row in enumerate(rows):
            tokens = torch.tensor([row["prompt_token_ids"] + row["token_ids"]])
            count = len(row["token_ids"])
            with replayed(policy, routes[index]) if routes is not None else nullcontext():
                logits = policy(tokens).logits[0, -count - 1 : -1].float()
            scores = torch.log_softmax(logits / setup.temperature, dim=-1)
            found.append(scores.gather(1, tokens[0, -count:, None])[:, 0].tolist())
            if routes is not None:
                used.append(routes[index][-count:])
    return found, used if routes is not None else None


@contextmanager
def replayed(policy: Any, routes: Any) -> Iterator[None]:
    """The trainer's routers take the experts of `routes` [positions, layers, experts], which has none for the last position."""
    import torch

    def choose(router: Any, number: int) -> Callable[[Any], Any]:
        def forward(hidden: Any) -> Any:
            hidden = hidden.reshape(-1, router.hidden_dim)
            logits = torch.nn.functional.linear(hidden, router.weight)
            probs = torch.softmax(logits, dim=-1, dtype=torch.float)
            chosen = torch.topk(probs, router.top_k, dim=-1).indices
            chosen[: len(routes)] = torch.as_tensor(routes[:, number].astype("int64"))
            scores = probs.gather(-1, chosen)
            if router.norm_topk_prob:
                scores = scores / scores.sum(dim=-1, keepdim=True)
            return logits, scores.to(logits.dtype), chosen

        return forward

    for number, layer in enumerate(policy.model.layers):
        if hasattr(layer.mlp, "gate") and hasattr(layer.mlp.gate, "top_k"):
            layer.mlp.gate.forward = choose(layer.mlp.gate, number)
    yield
    for layer in policy.model.layers:
        if hasattr(layer.mlp, "gate"):
            layer.mlp.gate.__dict__.pop("forward", None)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--record"]:
        record(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main(sys.argv[1:]))
