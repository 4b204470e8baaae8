"""`logprobe try --model PATH`: the mismatch between an engine and a forward pass of one's own model, without a GPU and without a training.

The JSON form is public API, one document:

    {"run", "k3", "interval", "abs_diff_mean", "tokens", "sequences", "sampler", "trainer", "prompts"}
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from logprobe.app.commands import diagnose
from logprobe.app.commands.ingest import take
from logprobe.app.parsers.arguments import home_path
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.collectors.recorder.recorder import Recorder
from logprobe.monitor.home import Home
from logprobe.monitor.proof.paired import Gap, gap
from logprobe.monitor.proof.sample import TokenSequence
from logprobe.monitor.proof.scorers.running import TINY, TRIAL, run_scorer
from logprobe.monitor.proof.scoring import REFERENCE, Scorers, Setup, checked

_TINY: Final = "tiny"
_VERSION: Final = 0


def run(arguments: argparse.Namespace) -> int:
    """Samples, scores, records, and says what came of it."""
    home_path(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = _tried(arguments, _checkpoint(arguments, Path(folder)))
    if arguments.json:
        tables.show(found, lambda: "", as_json=True)
        return 0
    print(_text(found))
    arguments.name, arguments.steps = found["run"], (None, None)
    return diagnose.run(arguments)


def _checkpoint(arguments: argparse.Namespace, folder: Path) -> Path:
    """The model to try; ``tiny``: one of random weights."""
    if arguments.model != _TINY:
        return Path(checked({"": Path(arguments.model).expanduser()})[""])
    _answer(TINY, {"folder": str(folder)}, arguments)
    return folder


def _tried(arguments: argparse.Namespace, model: Path) -> dict[str, Any]:
    job = {
        "model": str(model),
        "arguments": arguments.engine_args,
        "answers": arguments.answers,
        "tokens": arguments.tokens,
    }
    sampled = _answer(TRIAL, job, arguments)
    sequences = [
        TokenSequence(f"answer-{number}", tuple(row["prompt_ids"]), tuple(row["response_ids"]))
        for number, row in enumerate(sampled["sequences"])
    ]
    scorers = Scorers(sequences, Setup(models={"": model}, seconds=60 * arguments.scorer_minutes))
    policy = scorers.forward(REFERENCE, {"dtype": arguments.trainer_dtype}, lambda _: None)
    scorers.require(policy)
    rollout = tuple(np.array(row["rollout_logprobs"], np.float64) for row in sampled["sequences"])
    measured = gap("r", rollout, "t", policy)
    if measured is None:
        raise ConfigurationError(f"{model}: nothing could be compared")
    name = arguments.run or f"try-{Path(arguments.model).name}-{time.strftime('%H%M%S')}"
    _record(arguments, name, sampled, sequences, policy)
    take(Home(home_path(arguments)))
    return _document(arguments, name, sampled, measured)


def _answer(module: str, job: Mapping[str, Any], arguments: argparse.Namespace) -> Mapping[str, Any]:
    outcome = run_scorer(module, job, seconds=60 * arguments.scorer_minutes)
    if outcome.answer is None:
        raise ConfigurationError(f"nothing could be sampled from {arguments.model}: {outcome.error}")
    return outcome.answer


def _record(
    arguments: argparse.Namespace,
    name: str,
    sampled: Mapping[str, Any],
    sequences: Sequence[TokenSequence],
    policy: Sequence[Any],
) -> None:
    """As a training of one step would, with the engine's own configuration."""
    sides: dict[str, Any] = {
        "sample_ids": [sequence.sample_id for sequence in sequences],
        "token_ids": [np.array(sequence.response_ids) for sequence in sequences],
        "weight_version": _VERSION,
    }
    with Recorder(home_path(arguments), name, component="try") as recorder:
        engine = None if sampled["config"] is None else recorder.config(sampled["config"])
        recorder.config({"framework": "transformers", "compute_dtype": arguments.trainer_dtype}, kind="trainer_config")
        recorder.rollout(
            **sides,
            logprobs=[np.array(row["rollout_logprobs"], np.float32) for row in sampled["sequences"]],
            engine_config_id=engine,
        )
        recorder.training(step=1, **sides, trainer_logprobs=[np.asarray(values, np.float32) for values in policy])


def _document(arguments: argparse.Namespace, name: str, sampled: Mapping[str, Any], measured: Gap) -> dict[str, Any]:
    return {
        "run": name,
        "k3": measured.k3,
        "interval": measured.interval,
        "abs_diff_mean": measured.abs_diff_mean,
        "tokens": measured.tokens,
        "sequences": len(sampled["sequences"]),
        "sampler": sampled["sampler"],
        "trainer": f"transformers, {arguments.trainer_dtype}",
        "prompts": sampled["prompts"],
    }


def _text(found: Mapping[str, Any]) -> str:
    low_high = "" if found["interval"] is None else " (95 %: {:.2g} to {:.2g})".format(*found["interval"])
    return (
        f"K3 {found['k3']:.3g}{low_high}, mean |d| {found['abs_diff_mean']:.3g}, "
        f"{found['tokens']:,} tokens of {found['sequences']} answers to {found['prompts']}\n"
        f"sampled by {found['sampler']}; scored by {found['trainer']}\n"
        f"run {harmless(found['run'])}: `logprobe up` shows it\n"
    )
