"""The experiment of `rescue.run` with real neighbours: a small transformer trained by TRL's GRPO, sampled by vLLM in bfloat16.

PYTHONPATH=tests:tests/frameworks .venv-trl/bin/python -m rescue.trl --arm none --arm mis --arm armed     # make campaign NAME=rescue-trl

From step `ONSET` on the engine's weights are one version older every five steps. The arms
differ in what multiplies the loss: nothing, masked importance weights from the first step, or what the service tells the trainer.
Each training is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median
from typing import Any, ClassVar, Final

from rescue.run import actions, lag_of, service

from logprobe.alerts.controller.policy import DEFAULT_CORRECTION
from logprobe.collectors.directives import DirectiveFile, Directives
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import read
from logprobe.monitor.reader import connect

ONSET: Final = 150
STEPS: Final = 400
RATE: Final = 2e-4
ARMS: Final = ("none", "mis", "armed")
RUN: Final = "rescued"
_SIDE: Final = 30  # steps that a reward in the table is the mean of
_K3: Final = f"SELECT value FROM step_metrics WHERE run = '{RUN}' AND metric = 'backend.k3_kl' ORDER BY step"
_PRETRAINED: Final = 0.42
_PROMPTS, _ANSWERS = 16, 8
_HIDDEN: Final = 128
_ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def make_model(folder: Path, seed: int) -> None:
    """A transformer that gets about `_PRETRAINED` of the digits right, by imitation, with its tokenizer."""
    import torch
    from rescue.policy import ANSWERED, ASKED, DIGITS, solution
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    words = [*map(str, range(DIGITS)), "=", "<pad>", "<bos>", "<eos>"]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(words), hidden_size=_HIDDEN, intermediate_size=3 * _HIDDEN, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, head_dim=64, max_position_embeddings=64, tie_word_embeddings=False,
            pad_token_id=11, bos_token_id=12, eos_token_id=13,
        )
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    right = 0.0
    while right < _PRETRAINED:
        asked = torch.randint(DIGITS, (256, ASKED))
        tokens = torch.cat([asked, torch.full((256, 1), DIGITS), solution(asked)], 1)
        logits = model(tokens[:, :-1]).logits[:, ASKED:]
        logprobs = logits.log_softmax(-1).gather(2, tokens[:, -ANSWERED:, None])
        optimizer.zero_grad()
        (-logprobs.mean()).backward()
        optimizer.step()
        right = float(logprobs.detach().exp().mean())
    model.save_pretrained(folder)


def reward(prompts: Sequence[str], completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Share of the digits that are right."""
    import torch
    from rescue.policy import ANSWERED, rewards

    asked = torch.tensor([[int(word) for word in prompt.split()[:-1]] for prompt in prompts])
    answers = torch.tensor([[*ids, *[-1] * ANSWERED][:ANSWERED] for ids in completion_ids])
    return [float(value) for value in rewards(asked, answers)]


def train(arm: str, folder: Path, seed: int, steps: int, rate: float) -> None:
    """One training, recorded into `LOGPROBE_HOME`; TRL's own log goes to `folder`/log.json."""
    import torch
    from datasets import Dataset
    from rescue.policy import ANSWERED, ASKED, DIGITS
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_generation import VLLMGeneration
    from trl_program import use_cpu_engine

    from logprobe.collectors.integrations.trl import watch

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        """GRPO whose engine has weights of `lag_of` steps ago, as in a pipeline that falls behind, and whose own correction is off."""

        history: ClassVar[deque[list[tuple[str, torch.Tensor]]]] = deque(maxlen=lag_of(steps, ONSET) + 1)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            step = int(self.state.global_step)
            self.history.append([(name, value.detach().clone()) for name, value in self.model.named_parameters()])
            behind = min(lag_of(step, ONSET), len(self.history) - 1)
            self.state.global_step = self._last_loaded_step = step - behind  # the version that is loaded
            self.vllm_generation.weights = self.history[-1 - behind]
            self.vllm_generation.sync_weights()
            self.state.global_step = self._last_loaded_step = step
            batch = super()._generate_and_score_completions(inputs)
            batch["importance_sampling_ratio"] = torch.ones_like(batch["importance_sampling_ratio"])
            return batch

    VLLMGeneration._iter_named_params = lambda self: self.weights
    torch.set_num_threads(1)
    use_cpu_engine("bfloat16")
    generator = torch.Generator().manual_seed(seed)
    asked = torch.randint(DIGITS, (steps * _PROMPTS, ASKED), generator=generator).tolist()
    prompts = [" ".join([*map(str, digits), "="]) for digits in asked]
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(folder / "out"), max_steps=steps, logging_steps=1, report_to=[], use_cpu=True, seed=seed, save_strategy="no",
            bf16=False, beta=0.0, learning_rate=rate, lr_scheduler_type="constant", max_grad_norm=1.0, disable_tqdm=True,
            per_device_train_batch_size=_PROMPTS * _ANSWERS, num_generations=_ANSWERS, max_completion_length=ANSWERED,
            generation_kwargs={"ignore_eos": True}, use_vllm=True, vllm_mode="colocate", vllm_max_model_length=32,
            vllm_importance_sampling_correction=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )  # fmt: skip
    home = Path(os.environ["LOGPROBE_HOME"])
    if arm == "mis":
        DirectiveFile(home, RUN).write(Directives(RUN).issue(0, DEFAULT_CORRECTION, "always"), None)
    watch(trainer, correction=arm != "none")
    trainer.train()
    (folder / "log.json").write_text(json.dumps(trainer.state.log_history))


def run(arm: str, seed: int, steps: int, rate: float) -> dict[str, Any]:
    """One arm: the reward and K3 of each step, and what the controller did."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as beside:
        folder, home = Path(name), Path(name) / "home"
        home.mkdir()
        make_model(folder / "model", seed)
        if arm == "armed":
            (home / "logprobe.yaml").write_text("correction: {mode: armed}\n")
        beside.enter_context(service(home))
        environment = {**os.environ, **_ENVIRONMENT, "LOGPROBE_HOME": str(home), "LOGPROBE_RUN": RUN}
        command = [sys.executable, "-m", "rescue.trl", "--train", arm, str(folder)]
        options = ["--first-seed", str(seed), "--steps", str(steps), "--rate", str(rate)]
        with (folder / "output.txt").open("w") as output:
            done = subprocess.run([*command, *options], env=environment, stdout=output, stderr=output, check=False)
        if done.returncode != 0:
            raise SystemExit((folder / "output.txt").read_text()[-4000:])
        rewards = [logged["reward"] for logged in json.loads((folder / "log.json").read_text()) if "reward" in logged]
        return {"arm": arm, "seed": seed, "reward": rewards, **recorded(home, steps)}


def recorded(home: Path, steps: int) -> dict[str, Any]:
    """K3 by step, the controller's actions and the last judgement."""
    with connect(Home(home)) as reader:
        deadline = time.monotonic() + 120
        while len(rows := reader.query(_K3).to_pylist()) < steps and time.monotonic() < deadline:
            time.sleep(1)
        judged = read(reader, [RUN], datetime.now(UTC)).get(RUN)
        return {
            "k3": [row["value"] for row in rows],
            "actions": [(f"{row['step']} {row['name']}", row["words"]) for row in actions(reader, RUN)],
            "judged": None if judged is None else f"{judged.verdict}, {judged.cause}, {judged.advice}",
        }


def detail(seen: dict[str, Any]) -> Iterator[str]:
    """What the controller did, and reward and K3 on the way."""
    yield from (f"  {name}: {words}" for name, words in seen["actions"])
    yield f"  {seen['judged']}"
    for step in range(0, len(seen["k3"]), 20):
        span = slice(step, step + 20)
        yield f"  {step:>4} reward {mean(seen['reward'][span]):.3f}, K3 {median(seen['k3'][span]):.1e}"


def main() -> int:
    """Runs the arms asked for; prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--arm", choices=ARMS, action="append", help="default: all")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rate", type=float, default=RATE, help="learning rate")
    parser.add_argument("--detail", action="store_true", help="what happened in each run")
    parser.add_argument("--train", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train is not None:
        train(arguments.train[0], Path(arguments.train[1]), arguments.first_seed, arguments.steps, arguments.rate)
        return 0
    print("| arm | seed | reward before | at the end | K3 at the end | controller |\n|---|---|---|---|---|---|")
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for arm in arguments.arm or ARMS:
            seen = run(arm, seed, arguments.steps, arguments.rate)
            if arguments.detail:
                print("\n".join(detail(seen)))
            before, end = mean(seen["reward"][ONSET - _SIDE : ONSET]), mean(seen["reward"][-_SIDE:])
            done = "; ".join(name for name, _ in seen["actions"]) or "nothing"
            k3 = median(seen["k3"][-_SIDE:])
            print(f"| {arm} | {seed} | {before:.2f} | {end:.2f} | {k3:.2g} | {done} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
