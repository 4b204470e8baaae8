"""Does a correction help, and does logprobe switch it on in time? A run whose batches grow old, with and without.

python -m rescue.run                 # with PYTHONPATH=tests:tests/support; make campaign NAME=rescue: all arms, three seeds; prints a table
python -m rescue.run --seeds 1 --arm armed --detail
python -m rescue.run --seeds 10 --arm mis --arm armed --load 4   # … on a machine with four busy loops for each core
python -m rescue.run --failure temperature                       # another failure: see FAILURES
python -m rescue.run --healthy 5 --steps 3000                    # healthy armed live runs: switched on? alerts?

From step `ONSET` on something is wrong with the engine (`FAILURES`), at first that batches are one version older every `EVERY` steps, as
when sampling falls behind training. The arms differ in what multiplies the loss: nothing, masked or truncated importance
weights from the first step, or what the service tells the trainer. In the arm `bounded` nothing multiplies the loss: a person reads the
judgement that first names staleness, and bounds the lag as its remedy says, `PERSON` steps later. The armed arm is paced like training, waits for nothing, and has healthy live runs and ended runs beside it in the same home.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, Final

import numpy as np
from rescue.policy import ANSWERS, Batch, Fault, Training
from run_columns import Columns

from logprobe.alerts.controller.policy import DEFAULT_CORRECTION
from logprobe.collectors.correction import CorrectionConfig, correct
from logprobe.collectors.correction.presets import preset
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.collectors.switch import CorrectionSwitch
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judgement import read
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.gather import SAMPLE_TOKENS
from logprobe.monitor.judging.judge import judge
from logprobe.monitor.judging.setup import Setup
from logprobe.monitor.reader import Reader, connect

ONSET: Final = 230
EVERY: Final = 5  # steps from one version of lag to the next
STEPS: Final = 520
PACE: Final = 0.35  # seconds of a step, at least
ENDED: Final = 3
ENDED_STEPS: Final = 300
ARMS: Final = ("none", "bounded", "mis", "tis", "armed")
PERSON: Final = 30  # steps from a diagnosis to an engine that was repaired
LOOKS: Final = 5  # steps between two looks of a person at the judgement
REPAIRABLE: Final = frozenset({"temperature_mismatch"})
RUN: Final = "rescued"
NEIGHBOURS: Final = ("neighbour-0", "neighbour-1")
_ALWAYS: Final = {"mis": DEFAULT_CORRECTION, "tis": preset("tis")}
_SIDE: Final = 40  # steps that a reward in the table is the mean of
_START: Final = 120.0
_END: Final = 1800.0  # seconds in which the service has to judge what was recorded
_LOOK: Final = 5.0  # seconds between two looks at the judgement: each costs the service some milliseconds
_ENGINE: Final = {"dtype": "bfloat16", "logprobs_mode": "processed_logprobs"}


@dataclass
class Outcome:
    """One run: reward and K3 by step, and what the controller did."""

    arm: str
    seed: int
    reward: list[float] = field(default_factory=list)
    k3: list[float] = field(default_factory=list)
    masked: list[float | None] = field(default_factory=list)  # None: no correction was applied
    actions: list[dict[str, Any]] = field(default_factory=list)
    neighbours: list[str] = field(default_factory=list)  # directives of the healthy runs beside it
    judgements: list[dict[str, Any]] = field(
        default_factory=list
    )  # each change of it, with the step that was trained then
    load: float = 0.0

    @property
    def before(self) -> float:
        """Mean reward just before the batches grow old."""
        return mean(self.reward[ONSET - _SIDE : ONSET])

    @property
    def end(self) -> float:
        """Mean reward of the last steps."""
        return mean(self.reward[-_SIDE:])

    @property
    def applied(self) -> int | None:
        """First corrected step."""
        return next((step for step, share in enumerate(self.masked) if share is not None), None)


def lag_of(step: int, onset: int = ONSET) -> int:
    """Versions that a batch is behind: one, as in training that samples one step ahead; more from `onset` on."""
    return 1 + max(0, (step - onset) // EVERY + 1)


def _since(step: int) -> int:
    return max(0, step - ONSET + 1)


Failure = Callable[[int], Fault]
HEALTHY: Final = "healthy"
FAILURES: Final[Mapping[str, Failure]] = {
    HEALTHY: lambda step: Fault(),
    "lag": lambda step: Fault(lag=lag_of(step)),
    "noise": lambda step: Fault(noise=0.005 * _since(step)),
    "temperature": lambda step: Fault(temperature=2.0 if _since(step) else 1.0),
    "blur": lambda step: Fault(blur=0.005 * _since(step)),
}


def learn(
    outcome: Outcome, training: Training, fault: Fault, config: CorrectionConfig | None
) -> tuple[Batch, Any, float]:
    """One step; → its batch, correction and gradient norm."""
    batch = training.faulty(fault)
    ratio = batch.trainer - batch.rollout
    outcome.reward.append(float(batch.rewards.mean()))
    outcome.k3.append(float((np.expm1(ratio) - ratio).mean()))
    correction = None
    if config is not None:
        correction = correct(
            config, batch.rollout, batch.trainer, np.ones_like(batch.rollout), advantages=batch.advantages
        )
    outcome.masked.append(None if correction is None else float((correction.weights == 0).mean()))
    return (
        batch,
        correction,
        training.update(batch, None if correction is None else correction.weights * correction.mask),
    )


def unmonitored(arm: str, seed: int, steps: int, failure: Failure) -> Outcome:
    """An arm without a service: it needs no pace."""
    outcome, training = Outcome(arm, seed), Training(seed)
    for step in range(steps):
        learn(outcome, training, failure(step), _ALWAYS.get(arm))
    return outcome


def bounded(seed: int, steps: int, failure: Failure) -> Outcome:
    """An uncorrected arm whose lag a person bounds by hand."""
    outcome, training = Outcome("bounded", seed), Training(seed)
    batches: list[Batch] = []
    for step in range(steps):
        fault, read = failure(step), next(iter(outcome.judgements), None)
        if read is not None and step >= read["trained"] + PERSON:
            fault = fault._replace(lag=min(fault.lag, read["bound"]))
        batches.append(learn(outcome, training, fault, None)[0])
        if read is None and step >= ONSET and step % LOOKS == 0:
            judgement = judge(frame_of(batches))
            stale = [f for f in judgement.findings if f.cause == "staleness" and f.urgency == "act"]
            if stale and judgement.lag is not None:
                outcome.judgements.append(
                    {"trained": step, "bound": judgement.lag["uncorrected"]["lag"], **judgement.lag}
                )
    return outcome


def frame_of(batches: list[Batch]) -> Frame:
    """What the judge reads of some steps; at most as many raw tokens as it reads of a run."""
    step = np.repeat(np.arange(len(batches)), len(batches[0].answers))
    lag = np.repeat([batch.lag for batch in batches], len(batches[0].answers))
    joined = {name: np.concatenate([getattr(b, name) for b in batches]) for name in ("answers", "rollout", "trainer")}
    columns = Columns(
        step=step,
        token=joined["answers"],
        r=joined["rollout"],
        t=joined["trainer"],
        mask=np.ones(joined["answers"].shape, bool),
        group=np.arange(len(step)) // ANSWERS,
        version=np.broadcast_to((step - lag)[:, None], joined["answers"].shape).astype(float),
        trainer_version=step.astype(float),
    )
    share = min(1.0, SAMPLE_TOKENS / joined["answers"].size)
    kept = np.repeat(np.random.default_rng(0).random(len(step) // ANSWERS) < share, ANSWERS)
    return columns.frame(setup=Setup((_ENGINE,), None, {"dtype": "bfloat16"}), kept=kept)


def repaired(failure: Failure, outcome: Outcome) -> Failure:
    """A person repairs the engine `PERSON` steps after logprobe has named its setting."""

    def at(step: int) -> Fault:
        named = next((seen["trained"] for seen in outcome.judgements if seen["cause"] in REPAIRABLE), step)
        return Fault() if step >= named + PERSON else failure(step)

    return at


def armed(seed: int, steps: int, pace: float, failure: Failure) -> Outcome:
    """The arm that the service watches, in a home with healthy live runs and ended ones."""
    with _home() as home:
        for number in range(ENDED):
            record(home, f"ended-{number}", seed + number, ENDED_STEPS, 0.0)
        with service(home), ExitStack() as beside:
            for number, run in enumerate(NEIGHBOURS):
                beside.enter_context(_beside(home, run, seed + 50 + number, steps, pace))
            outcome = Outcome("armed", seed)
            with connect(Home(home)) as reader:
                with watched(reader, outcome):
                    record(home, RUN, seed, steps, pace, repaired(failure, outcome), outcome)
                outcome.actions = actions(reader, RUN)
                outcome.neighbours = [words for run in NEIGHBOURS for words in _switched_on(reader, run)]
                outcome.load = os.getloadavg()[1]
        return outcome


@contextmanager
def watched(reader: Reader, outcome: Outcome) -> Iterator[None]:
    """Notes each change of the run's judgement while it trains."""
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK):
            judged = read(reader, [RUN], datetime.now(UTC))[RUN]
            seen = {name: getattr(judged, name) for name in ("severity", "verdict", "cause", "advice", "overdue")}
            seen["alerts"] = " ".join(sorted(alert.rule for alert in judged.alerts))
            if not outcome.judgements or seen.items() - outcome.judgements[-1].items():
                outcome.judgements.append({"trained": len(outcome.reward), "judged": judged.step, **seen})

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield
        finally:
            ended.set()
        looking.result()


def healthy(runs: int, seed: int, steps: int, pace: float) -> list[str]:
    """Healthy armed live runs, all at once; a line for each."""
    names = [f"healthy-{number}" for number in range(runs)]
    with _home() as home, service(home), ExitStack() as beside:
        trainings = [beside.enter_context(_beside(home, run, seed + n, steps, pace)) for n, run in enumerate(names)]
        for training in trainings:
            if training.wait() != 0:
                raise SystemExit("a healthy run ended with an error")
        with connect(Home(home)) as reader:
            deadline = time.monotonic() + _END
            while reader.status()["backlog"]["segments"] or any(
                run.behind for run in read(reader, names, datetime.now(UTC)).values()
            ):
                if time.monotonic() > deadline:
                    raise SystemExit("the service did not catch up with what was recorded")
                time.sleep(_LOOK)
            known = read(reader, names, datetime.now(UTC))
            return [
                f"{run}: recorded to {known[run].newest}, judged to {known[run].step}, "
                f"diagnosed to {known[run].step}, switched on: {'; '.join(_switched_on(reader, run)) or 'never'}, "
                f"alerts fired: {'; '.join(_fired(reader, run)) or 'none'}"
                for run in names
            ]


def _fired(reader: Reader, run: str) -> list[str]:
    rows = queries.alert_history(reader, run=run).to_pylist()
    return [
        f"{row['rule']} ({row['severity']}) at {row['step']}, {row['time']:%H:%M:%S}: {row['words']}"
        for row in rows
        if row["state"] == "firing"
    ]


@contextmanager
def _home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "logprobe.yaml").write_text("correction: {mode: armed}\n")
        yield Path(folder)


def record(
    home: Path,
    run: str,
    seed: int,
    steps: int,
    pace: float,
    failure: Failure = FAILURES[HEALTHY],
    outcome: Outcome | None = None,
) -> None:
    """Trains and records, `pace` seconds a step at least; waits for no service."""
    outcome, training = outcome or Outcome("armed", seed), Training(seed)
    with Recorder(home, run) as recorder, CorrectionSwitch(home, run) as switch:
        recorder.config(_ENGINE, kind="engine_config")
        recorder.config({"dtype": "bfloat16"}, kind="trainer_config")
        for step in range(steps):
            began = time.monotonic()
            batch, correction, norm = learn(outcome, training, failure(step), switch.current(step))
            _record(recorder, step, batch)
            recorder.step(step, grad_norm=norm, correction=correction)
            time.sleep(max(0.0, pace - (time.monotonic() - began)))
        assert recorder.flush(60)


def _record(recorder: Recorder, step: int, batch: Batch) -> None:
    names = [f"{step}-{index}" for index in range(len(batch.answers))]
    tokens = list(batch.answers)
    recorder.rollout(
        sample_ids=names,
        token_ids=tokens,
        logprobs=list(batch.rollout),
        weight_version=max(0, step - batch.lag),
    )
    recorder.training(
        step=step,
        sample_ids=names,
        token_ids=tokens,
        trainer_logprobs=list(batch.trainer),
        weight_version=step,
        advantages=batch.advantages,
        rewards=batch.rewards,
    )


def actions(reader: Reader, run: str) -> list[dict[str, Any]]:
    return [
        {**row, "time": str(row["time"]), "details": json.loads(row["details"])}
        for row in reader.read("controller_actions", run=run).to_pylist()
    ]


def _switched_on(reader: Reader, run: str) -> list[str]:
    return [action["words"] for action in actions(reader, run) if action["name"] == "switched_on"]


@contextmanager
def service(home: Path) -> Iterator[None]:
    with _process("-m", "logprobe.app.processes.service", "--home", str(home)) as service:
        deadline = time.monotonic() + _START
        while Home(home).owner() is None or not (home / "service.json").exists():
            if service.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the service did not start")
            time.sleep(0.2)
        yield


@contextmanager
def _beside(home: Path, run: str, seed: int, steps: int, pace: float) -> Iterator[subprocess.Popen[bytes]]:
    """A healthy live run in a process of its own."""
    arguments = ["--first-seed", str(seed), "--steps", str(steps), "--pace", str(pace)]
    with _process("-m", "rescue.run", "--beside", str(home), run, *arguments) as process:
        yield process


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """So many endless loops beside, of the usual priority."""
    with ExitStack() as all_loops:
        for _ in range(loops):
            all_loops.enter_context(_process("-c", "while True: pass"))
        yield


@contextmanager
def _process(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    # Each in a session of its own, as service, trainers and strangers are: Linux shares the processors between sessions.
    process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def table(outcomes: list[Outcome]) -> list[str]:
    """Markdown, a row for each arm."""
    lines = [
        "| arm | seeds | reward before | at the end | K3 at the end | corrected from step |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        of_arm = [each for each in outcomes if each.arm == arm]
        if of_arm:
            first = ", ".join("never" if each.applied is None else str(each.applied) for each in of_arm)
            lines.append(
                f"| {arm} | {len(of_arm)} | {_spread([o.before for o in of_arm])} | {_spread([o.end for o in of_arm])} "
                f"| {median(median(o.k3[-_SIDE:]) for o in of_arm):.2g} | {first} |"
            )
    return lines


def _spread(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def detail(outcome: Outcome) -> Iterator[str]:
    """What the controller did, and the run in between, for whoever looks into one."""
    yield f"{outcome.arm} {outcome.seed}: load {outcome.load:.1f}, neighbours {outcome.neighbours or 'untouched'}"
    yield from (f"  {each['step']:>4} {each['name']}/{each['reason']}: {each['words']}" for each in outcome.actions)
    for seen in outcome.judgements:
        if seen["trained"] >= ONSET - 30:
            words = [str(seen[name]) for name in ("severity", "verdict", "cause", "advice")]
            words += ["overdue"] * seen["overdue"] + [seen["alerts"]]
            yield f"  at {seen['trained']}, judged to {seen['judged']}: {', '.join(words)}"
    for step in range(ONSET - 30, len(outcome.reward), 20):
        span = slice(step, step + 20)
        shares = [share for share in outcome.masked[span] if share is not None]
        masked = f", masked {mean(shares):.0%}" if shares else ""
        yield f"  {step:>4} reward {mean(outcome.reward[span]):.3f}, K3 {np.median(outcome.k3[span]):.1e}{masked}"


def main() -> int:
    """Runs the arms asked for; prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each arm")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first run")
    parser.add_argument("--arm", choices=ARMS, action="append", help="default: all")
    parser.add_argument(
        "--failure", choices=FAILURES, default="lag", help="what is wrong with the engine from step 230 on"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--pace", type=float, default=PACE, help="seconds of an armed step, at least")
    parser.add_argument("--detail", action="store_true", help="what happened in each run")
    parser.add_argument("--json", type=Path, help="file for everything measured")
    parser.add_argument("--load", type=int, default=0, help="busy loops for each core, beside everything")
    parser.add_argument("--healthy", type=int, metavar="N", help="N healthy armed live runs at once, and nothing else")
    parser.add_argument("--beside", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.beside is not None:
        home, run = arguments.beside
        record(Path(home), run, arguments.first_seed, arguments.steps, arguments.pace)
        return 0
    with busy(arguments.load * (os.cpu_count() or 1)):
        if arguments.healthy is not None:
            print("\n".join(healthy(arguments.healthy, arguments.first_seed, arguments.steps, arguments.pace)))
        else:
            _run_arms(arguments)
    return 0


def _run_arms(arguments: argparse.Namespace) -> None:
    outcomes, failure = [], FAILURES[arguments.failure]
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
        for arm in arguments.arm or ARMS:
            outcomes.append(
                armed(seed, arguments.steps, arguments.pace, failure)
                if arm == "armed"
                else bounded(seed, arguments.steps, failure)
                if arm == "bounded"
                else unmonitored(arm, seed, arguments.steps, failure)
            )
            made = outcomes[-1]
            words = f"{arm} {seed}: reward {made.before:.3f} → {made.end:.3f}, corrected from step {made.applied}"
            print("\n".join(detail(made)) if arguments.detail else words, flush=True)
    print("\n".join(table(outcomes)))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], default=str))


if __name__ == "__main__":
    sys.exit(main())
