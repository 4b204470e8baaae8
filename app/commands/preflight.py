"""`logprobe preflight --model PATH`: compare an engine with a trainer's forward pass before a training starts.

Exit codes: 0 fine, 1 wrong, 2 unknown or wrong usage. The result is unknown if a decisive check could not be measured
or no normal level is known. The JSON form is public API, one document. Unknown values are null:

    {"result": "fine|wrong|unknown", "checks": [{"check", "outcome": "fine|wrong|unknown|note", "words"}],
     "run", "k3", "interval", "abs_diff_mean", "tokens", "sequences", "sampler", "trainer", "prompts", "diagnosis": {…}}

`logprobe.app.cli` reports errors, also as unknown: {"result": "unknown", "checks": [], "error": words}.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

import numpy as np

from logprobe.app.ingesting import take
from logprobe.app.surface.arguments import Arguments, home_path, refuse_usage
from logprobe.app.text import tables
from logprobe.app.text.diagnosis import verdict_line
from logprobe.app.view import story
from logprobe.collectors.errors import ConfigurationError, ServiceUnavailableError
from logprobe.collectors.plain_text import complain, harmless
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.judging.accepted import accepted
from logprobe.monitor.judging.diagnosing import diagnose
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.job import DiagnosisStage
from logprobe.monitor.judging.level import in_words
from logprobe.monitor.judging.parity import Parity, compare
from logprobe.monitor.judging.parity import recipe as parity_recipe
from logprobe.monitor.proof.paired import Gap, gap
from logprobe.monitor.proof.sample import TokenSequence
from logprobe.monitor.proof.scorers.jobs import TrialAnswer, TrialJob
from logprobe.monitor.proof.scorers.running import TINY, TRIAL, run_scorer
from logprobe.monitor.proof.scoring import REFERENCE, Scorers
from logprobe.monitor.proof.setup import Setup, checked, settings_of
from logprobe.monitor.reader import connect, open_reader
from logprobe.monitor.store.store import Store

Outcome = Literal["fine", "wrong", "unknown", "note"]
EXIT: Final[Mapping[str, int]] = {"fine": 0, "wrong": 1, "unknown": 2}
_TINY: Final = "tiny"
_VERSION: Final = 0
_TOKENS: Final = 64  # of an answer
_DTYPE: Final = "float32"  # of the pass that stands for the trainer's
_MARKS: Final[Mapping[Outcome, str]] = {"fine": "ok", "wrong": "WRONG", "unknown": "unknown", "note": "note"}


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one check. A note does not affect the result of the preflight."""

    check: str
    outcome: Outcome
    words: str


def run(arguments: Arguments) -> int:
    """Sample and score answers, record them, and report the verdict."""
    home = Home(home_path(arguments))
    if arguments.trainer is not None and not re.fullmatch(r"[\w.]+:\w+", arguments.trainer):
        refuse_usage(f"--trainer {arguments.trainer!r} is not MODULE:FUNCTION; write e.g. my_trainer:score")
    recipe = parity_recipe.shipped() if arguments.recipe is None else parity_recipe.read(Path(arguments.recipe))
    with tempfile.TemporaryDirectory() as folder:
        trial = _tried(arguments, _checkpoint(arguments, Path(folder)))
    with open_reader(home.path) as reader:
        diagnosis = diagnose(reader, trial["run"], accepted=accepted(reader, trial["run"]))
        parity = compare(reader, trial["run"], recipe=recipe, name=arguments.recipe or "the built-in recipe")
    checks = list(judged(trial, diagnosis, parity, strict=arguments.strict))
    result = verdict(checks)
    document = {
        "result": result,
        "checks": [asdict(check) for check in checks],
        **trial,
        "diagnosis": diagnosis,
    }
    tables.show(document, lambda: text(result, checks, trial, diagnosis), as_json=arguments.json)
    sys.stdout.flush()
    try:
        _remember(home, trial["run"])
    except Exception as error:  # noqa: BLE001 - the result stands, whatever becomes of its level
        complain(f"the level of {trial['run']} is not kept for later preflights: {error}")
    return EXIT[result]


def judged(trial: Trial, diagnosis: DiagnosisDocument, parity: Parity, *, strict: bool = False) -> Iterator[Check]:
    """Return the checks by the diagnosis and the comparison with the recipe.

    `strict`: true if every requirement of the recipe decides.
    """
    stand_in = trial["sampler"].startswith("transformers")
    yield Check("engine", "unknown" if stand_in else "fine", trial["sampler"])
    for check in parity.checks:
        if check.verdict == "at_parity":
            continue
        decides = strict or check.layer == "semantic"
        settings = ", ".join(f"{item.fact} = {item.words}" for item in check.settings[:3])
        message = f"{check.name}: {settings}; {check.fix}"
        outcome: Outcome = "wrong" if check.verdict == "not_at_parity" and decides else "note"
        yield Check("configuration", "unknown" if strict and check.verdict == "unknown" else outcome, message)
    for finding in diagnosis["findings"]:
        if finding["urgency"] != "informational":
            acts = finding["urgency"] == "act" or finding["vetoes"]
            message = f"{finding['cause']}: {finding['explanation']} {finding['fix']}"
            yield Check("finding", "wrong" if acts else "unknown", message)
    yield _level(diagnosis)


def _level(diagnosis: DiagnosisDocument) -> Check:
    level = diagnosis["level"]
    status = "not measured" if level is None else level["status"]
    memory = None if level is None else level["remembered"]
    words = in_words(level)
    if memory is not None and memory["words"] not in words:
        words += f"; {memory['words']}"
    outcome: Outcome = "fine" if status == "as expected" else "wrong" if status in {"above", "far above"} else "unknown"
    if outcome == "fine" and diagnosis["verdict"] == "critical":
        outcome = "unknown"  # a finding says why
    return Check("level", outcome, words)


def verdict(checks: Sequence[Check]) -> Literal["fine", "wrong", "unknown"]:
    """Return the worst outcome. Unknown is worse than fine."""
    outcomes = {check.outcome for check in checks}
    return "wrong" if "wrong" in outcomes else "unknown" if "unknown" in outcomes or not outcomes else "fine"


def _remember(home: Home, run: str) -> None:
    """Store the diagnosis and the level of the run, as the service does."""
    try:
        with connect(home):
            return
    except ServiceUnavailableError:
        pass
    with home.lock(), Store.open(home) as store:
        stage = DiagnosisStage(store)
        stage.run([row for row in stage.rows() if row["run"] == run])


def _checkpoint(arguments: Arguments, folder: Path) -> Path:
    """Return the path of the model. ``tiny`` stands for a model with random weights."""
    if arguments.model != _TINY:
        return Path(checked({"": Path(arguments.model).expanduser()})[""])
    _answer(TINY, {"folder": str(folder)}, arguments)
    return folder


class Trial(TypedDict):
    """Sampled and scored answers. `interval`: 95 % confidence interval of `k3`, or None for too few tokens."""

    run: str
    k3: float
    interval: tuple[float, float] | None
    abs_diff_mean: float
    tokens: int
    sequences: int
    sampler: str
    trainer: str
    prompts: str


def _tried(arguments: Arguments, model: Path) -> Trial:
    job: TrialJob = {
        "model": str(model),
        "arguments": arguments.engine_args,
        "answers": arguments.answers,
        "tokens": _TOKENS,
        "temperature": arguments.temperature,
    }
    sampled: TrialAnswer = _answer(TRIAL, job, arguments)
    sequences = [
        TokenSequence(
            f"answer-{number}",
            tuple(row["prompt_ids"]),
            tuple(row["response_ids"]),
            temperature=arguments.temperature,
        )
        for number, row in enumerate(sampled["sequences"])
    ]
    scorers = Scorers(sequences, Setup(models={"": model}, seconds=60 * arguments.scorer_minutes))
    settings = settings_of(arguments.trainer_args)
    if arguments.trainer is None:
        policy = scorers.forward(REFERENCE, {"dtype": _DTYPE, **settings}, lambda _: None)
    else:
        policy = scorers.forward(arguments.trainer, settings, lambda _: None)
    scorers.require(policy)
    rollout = tuple(np.array(row["rollout_logprobs"], np.float64) for row in sampled["sequences"])
    measured = gap("r", rollout, "t", policy)
    if measured is None:
        raise ConfigurationError(f"{model}: no token has log-probs of both sides; check the engine and the trainer")
    name = arguments.run or f"preflight-{Path(arguments.model).name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    _record(arguments, name, sampled, sequences, policy)
    take(Home(home_path(arguments)))
    return _document(arguments, name, sampled, measured)


def _answer(module: str, job: Mapping[str, Any], arguments: Arguments) -> Any:
    outcome = run_scorer(module, job, seconds=60 * arguments.scorer_minutes)
    if outcome.answer is None:
        raise ConfigurationError(
            f"nothing could be sampled from {arguments.model} ({outcome.error}); correct its cause and retry"
        )
    return outcome.answer


def _record(
    arguments: Arguments,
    name: str,
    sampled: TrialAnswer,
    sequences: Sequence[TokenSequence],
    policy: Sequence[Any],
) -> None:
    """Record the answers as a training of one step, with the configuration of the engine."""
    sides: dict[str, Any] = {
        "sample_ids": [sequence.sample_id for sequence in sequences],
        "token_ids": [np.array(sequence.response_ids) for sequence in sequences],
        "weight_version": _VERSION,
    }
    neutral = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}
    sampling = {"temperature": arguments.temperature, **neutral, "frequency_penalty": 0.0}
    with Recorder(home_path(arguments), name, component="preflight") as recorder:
        engine = None if sampled["config"] is None else recorder.config(sampled["config"])
        recorder.config(_trainer_document(arguments), kind="trainer_config")
        recorder.rollout(
            **sides,
            logprobs=[np.array(row["rollout_logprobs"], np.float32) for row in sampled["sequences"]],
            engine_config_id=engine,
            sampling=sampling,
        )
        recorder.training(step=1, **sides, trainer_logprobs=[np.asarray(values, np.float32) for values in policy])


def _trainer_document(arguments: Arguments) -> dict[str, object]:
    """Return the known settings of the trainer side, or the arguments of the user's function."""
    settings = settings_of(arguments.trainer_args)
    if arguments.trainer is None:
        dtype = {"framework": "transformers", "compute_dtype": settings.get("dtype", _DTYPE)}
        return {**dtype, "temperature": arguments.temperature, **settings, "trial": True}
    return {"framework": arguments.trainer, **settings, "trial": True}


def _document(arguments: Arguments, name: str, sampled: TrialAnswer, measured: Gap) -> Trial:
    return {
        "run": name,
        "k3": measured.k3,
        "interval": measured.interval,
        "abs_diff_mean": measured.abs_diff_mean,
        "tokens": measured.tokens,
        "sequences": len(sampled["sequences"]),
        "sampler": sampled["sampler"],
        "trainer": arguments.trainer or f"transformers, {settings_of(arguments.trainer_args).get('dtype', _DTYPE)}",
        "prompts": sampled["prompts"],
    }


def text(result: str, checks: Sequence[Check], trial: Trial, diagnosis: DiagnosisDocument) -> str:
    """Return the result, its reasons and the diagnosis as text."""
    low_high = "" if trial["interval"] is None else " (95 %: {:.2g} to {:.2g})".format(*trial["interval"])
    measured = f"K3 {trial['k3']:.3g}{low_high}, mean |d| {trial['abs_diff_mean']:.3g}"
    lines = [
        f"preflight {result}",
        *(f"  {_MARKS[check.outcome]:<8} {check.check}: {harmless(check.words)}" for check in checks),
        "",
        f"{measured}, {trial['tokens']:,} tokens of {trial['sequences']} answers to {trial['prompts']}",
        f"sampled by {trial['sampler']}; scored by {harmless(trial['trainer'])}",
        f"run {harmless(trial['run'])}: `logprobe up` shows it",
        "",
        story.terminal(verdict_line(diagnosis), story.of_diagnosis(diagnosis)),
    ]
    return "\n".join(lines)
