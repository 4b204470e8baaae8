"""How many steps pass from an onset to the corrected step: measured with the service at work, and written into docs/correction.md.

python tests/benchmarks/directive_delays.py            # about 15 minutes; rewrites the measured part of the page

A SYNTHETIC trainer records bfloat16-like noise, and from the onset on a backlog that makes every batch older; the service runs as in production, armed,
by the real clock. Steps of 0.3 s are waited for. A step of 10 s ends as soon as the service has diagnosed it and the controller has looked
at that: nothing more would happen in the rest of it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from marked_page import write_between  # noqa: E402 - beside the tests
from processes import service_process  # noqa: E402

from logprobe.collectors.recorder.recorder import Recorder  # noqa: E402
from logprobe.collectors.switch import CorrectionSwitch  # noqa: E402
from logprobe.monitor.judgement import JUDGEMENT  # noqa: E402
from logprobe.monitor.reader import Reader  # noqa: E402

PAGE = ROOT / "docs" / "correction.md"
BEGIN, END = "<!-- measured: tests/benchmarks/directive_delays.py -->", "<!-- end of what was measured -->"
RUN = "run"
ONSET = 260
LEVEL = 5e-4  # K3 of bfloat16
STEP_SECONDS = (0.3, 10.0)
DOUBLINGS = (10, 30)
LARGEST = 0.3  # K3
GIVE_UP = 500  # steps after the onset
SEQUENCES, TOKENS = 16, 64
SHORT = 1.0  # seconds; longer steps are cut short
LOOK = 1.5  # seconds in which the controller looks at a new diagnosis
START = 120.0
ENGINE = {"dtype": "bfloat16", "logprobs_mode": "processed_logprobs"}


@dataclass(frozen=True)
class Outcome:
    """Steps of one run; None: it did not come to that. `decided`: the newest step that the controller knew of."""

    step_seconds: float
    doubling: int
    critical: int | None
    decided: int | None
    heard: int | None  # by the trainer
    corrected: int | None

    def row(self) -> str:
        """A line of the table."""
        after = [_after(step) for step in (self.critical, self.decided, self.heard, self.corrected)]
        return f"| {self.step_seconds:g} s | {self.doubling} steps | {' | '.join(after)} |"


def _after(step: int | None) -> str:
    return "never" if step is None else str(step - ONSET)


def measure(step_seconds: float, doubling: int, seed: int) -> Outcome:
    """One run with a service of its own."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "logprobe.yaml").write_text("correction: {mode: armed}\n")
        with (
            service_process(home) as (reader, _),
            Recorder(home, RUN) as recorder,
            CorrectionSwitch(home, RUN, poll_seconds=0.2) as switch,
        ):
            recorder.config(ENGINE, kind="engine_config")
            recorder.config({"dtype": "bfloat16"}, kind="trainer_config")
            return _run(reader, recorder, switch, step_seconds, doubling, np.random.default_rng(seed))


def _run(
    reader: Reader,
    recorder: Recorder,
    switch: CorrectionSwitch,
    step_seconds: float,
    doubling: int,
    rng: np.random.Generator,
) -> Outcome:
    heard: int | None = None
    last = ONSET + GIVE_UP
    for step in range(last):
        began = time.monotonic()
        _record(recorder, step, doubling, rng)
        if step == ONSET - 1:
            assert recorder.flush()
            _diagnosed(reader, step, START)
        if step < ONSET:
            continue
        assert recorder.flush()
        if step_seconds > SHORT:
            _diagnosed(reader, step, step_seconds - LOOK)
            time.sleep(LOOK)
        else:
            time.sleep(max(0.0, step_seconds - (time.monotonic() - began)))
        if switch.current(last) is not None:
            heard = step
            break
    return _outcome(reader, step_seconds, doubling, heard)


def _record(recorder: Recorder, step: int, doubling: int, rng: np.random.Generator) -> None:
    """One step whose log-ratios have E[ρ] = 1; certain tokens vary less. From the onset on, weight lag and K3 grow together."""
    late = max(0, step - ONSET + 1)
    k3, lag = min(LARGEST, LEVEL * 2.0 ** (late / doubling)), -(-late // doubling)
    names, ids = [f"s{step}-{index}" for index in range(SEQUENCES)], [np.arange(TOKENS)] * SEQUENCES
    rollout = [-rng.exponential(1.2, TOKENS).astype(np.float32) - 0.02 for _ in range(SEQUENCES)]
    weight = [np.minimum(1.0, -r) for r in rollout]
    scale = np.sqrt(2 * k3 / np.mean([np.mean(w**2) for w in weight]))
    ratios = [scale * w * rng.standard_normal(TOKENS) - (scale * w) ** 2 / 2 for w in weight]
    recorder.rollout(sample_ids=names, token_ids=ids, logprobs=rollout, weight_version=step - lag)
    recorder.training(
        step=step,
        sample_ids=names,
        token_ids=ids,
        weight_version=step,
        trainer_logprobs=[np.minimum(r + d, -1e-6).astype(np.float32) for r, d in zip(rollout, ratios, strict=True)],
        advantages=rng.normal(0, 1, SEQUENCES).astype(np.float32),
        rewards=np.full(SEQUENCES, 0.5),
    )
    recorder.step(step, grad_norm=1.0)


def _diagnosed(reader: Reader, step: int, patience: float) -> None:
    """Waits until the diagnosis has seen `step`, at most so many seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        rows = reader.read("diagnosis_latest", run=RUN).to_pylist()
        if rows and rows[0]["step"] >= step:
            return
        time.sleep(0.2)


def _outcome(reader: Reader, step_seconds: float, doubling: int, heard: int | None) -> Outcome:
    told = reader.read("alert_history", run=RUN).to_pylist()
    critical = next((row["step"] for row in told if (row["rule"], row["severity"]) == (JUDGEMENT, "critical")), None)
    actions: list[dict[str, Any]] = reader.read("controller_actions", run=RUN).to_pylist()
    switched = next((each for each in actions if each["name"] == "switched_on"), None)
    if switched is None:
        sys.stderr.write(f"nothing was switched on: {[each['words'] for each in actions]}\n")
        return Outcome(step_seconds, doubling, critical, None, heard, None)
    corrected = json.loads(switched["details"])["from_step"]
    return Outcome(step_seconds, doubling, critical, switched["step"], heard, max(corrected, (heard or 0) + 1))


def table(outcomes: list[Outcome]) -> list[str]:
    """The measured part of the page, line by line."""
    return [
        "| step time | K3 doubles every | verdict critical | directive issued | heard by the trainer | first corrected step |",
        "|---|---|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
    ]


def main() -> int:
    """Measures, prints, and rewrites the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-seconds", type=float, action="append", help=f"default: {STEP_SECONDS}")
    parser.add_argument("--doubling", type=int, action="append", help=f"default: {DOUBLINGS}")
    parser.add_argument("--print-only", action="store_true", help="leave the page as it is")
    arguments = parser.parse_args()
    outcomes = []
    for seconds in arguments.step_seconds or STEP_SECONDS:
        for doubling in arguments.doubling or DOUBLINGS:
            outcomes.append(measure(seconds, doubling, seed=0))
            print(outcomes[-1].row(), flush=True)
    if not arguments.print_only:
        write_between(PAGE, BEGIN, END, table(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
