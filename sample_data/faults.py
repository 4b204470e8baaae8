"""Makes the fault fixtures: `python sample_data/faults.py [NAME…] [--seed N] [--out DIR]`.

Each is a short run of a small policy against a real vLLM engine in this process, recomputed by a real trainer in torch and watched by
logprobe as any run would be. What an engine can do wrong, the engine does; what glue code does wrong, `fault_glue.py` does. Nothing
in what is recorded says which fault it is; that stands in ``expected.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from fault_case import Case
from fault_cases import CASES
from record import versions
from tools.exporting import export_run

from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.recorded import RecordedRun

HERE: Final = Path(__file__).parent
EXPECTED: Final = "expected.json"


def record(case: Case, *, seed: int, out: Path, policies: Path) -> RecordedRun:
    """Records `case` and exports it below `out`; raises `LogprobeError` when anything was lost."""
    with tempfile.TemporaryDirectory() as home:
        os.environ.update(LOGPROBE_HOME=home, LOGPROBE_RUN=case.name)  # read by the plugin when an engine is built
        with Recorder(home, case.name) as recorder:
            _train(case, seed, recorder, policies)
            complete = _flush(recorder)
        if not complete:
            raise LogprobeError(f"{case.name}: something was lost, so nothing is exported: {recorder.health}")
        return export_run(Path(home), case.name, out / case.name, about=_about(case, seed), overwrite=True)


def _train(case: Case, seed: int, recorder: Recorder, policies: Path) -> None:
    import torch
    from fault_language import Language, pretrained
    from fault_loop import Fleet, Loop
    from fault_trainer import Trainer

    language = Language(case.scale.size.vocabulary)
    model = pretrained(case.scale.size, seed, language, policies, say)
    torch.manual_seed(seed)
    temperature = case.sampling["temperature"]
    trainer = Trainer(model, temperature=temperature, view=case.view, learning_rate=case.scale.learning_rate)
    with _watched(case):
        fleet = Fleet(case, model, language, seed, recorder)
    loop = Loop(case, seed=seed, language=language, trainer=trainer, fleet=fleet, recorder=recorder)
    for number, scalars in enumerate(loop.steps()):
        if number % 10 == 0:
            say(f"{case.name} step {number}: reward {scalars['reward']:.3f}, length {scalars['response_length']:.0f}")
    complete = _flush(recorder)
    fleet.close()
    if not complete:
        raise LogprobeError(f"{case.name}: the engine's records are incomplete")


@contextmanager
def _watched(case: Case) -> Iterator[None]:
    """Has engines that are built meanwhile watched, or not, as the case says."""
    from logprobe.collectors.vllm.plugin import register

    home = os.environ["LOGPROBE_HOME"]
    if case.plugin:
        register()  # vLLM does so once per process, and this process has several engines
    else:
        del os.environ["LOGPROBE_HOME"]
    yield
    os.environ["LOGPROBE_HOME"] = home


def _flush(recorder: Recorder) -> bool:
    from logprobe.collectors.vllm.plugin import flush

    return flush() and recorder.flush()


def _about(case: Case, seed: int) -> dict[str, Any]:
    """What the manifest says beyond what was recorded."""
    command = shlex.join(["python", "sample_data/faults.py", case.name, "--seed", str(seed)])
    return {"command": command, "seed": seed, "versions": versions(), "measured": True, "settings": case.settings()}


def expect(out: Path, case: Case) -> None:
    """Notes in ``expected.json`` what a diagnosis of `case` should say."""
    file = out / EXPECTED
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    text = json.dumps(dict(sorted({**known, case.name: case.expected()}.items())), indent=2, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def _resized(case: Case, arguments: argparse.Namespace) -> Case:
    if arguments.steps is not None:
        case = case.scaled(steps=arguments.steps)
    if arguments.pretraining_steps is not None:
        case = case.scaled(size=replace(case.scale.size, steps=arguments.pretraining_steps))
    return case


def say(message: str) -> None:
    """Tells people how far it is."""
    print(message, file=sys.stderr, flush=True)


def main() -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to make: {', '.join(CASES)} (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=HERE / "faults", help="where the folders go (default: %(default)s)")
    parser.add_argument("--policies", type=Path, default=HERE.parent / "build" / "policies", help="kept between calls")
    parser.add_argument("--steps", type=int, help="fewer or more steps than a run has")
    parser.add_argument(
        "--pretraining-steps", type=int, help="of the policy; few make a policy that is sure of nothing"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(CASES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    try:
        for case in (_resized(CASES[name], arguments) for name in arguments.names or CASES):
            run = record(case, seed=arguments.seed, out=arguments.out, policies=arguments.policies)
            expect(arguments.out, case)
            say(f"{run.folder}: {run.manifest['steps']} steps, {run.manifest['training_tokens']} tokens")
    except LogprobeError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
