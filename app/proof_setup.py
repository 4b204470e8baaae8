"""Conversion of the arguments of `logprobe bisect` to experiment objects."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from logprobe.app.surface.arguments import Arguments, home_path, login, refuse_usage, require_run
from logprobe.app.text import tables
from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.proof.recorded_sample import recorded_checkpoints, recorded_sample
from logprobe.monitor.proof.sample import TokenSequence, read_sample, stating
from logprobe.monitor.proof.setup import Setup, checked, settings_of
from logprobe.monitor.proof.storing import record
from logprobe.monitor.reader import open_reader

_NAMED: Final = 5  # weight versions in an error


@dataclass(frozen=True, slots=True)
class Task:
    """Sample with the settings of its scorers."""

    sequences: tuple[TokenSequence, ...]
    setup: Setup


def task_of(arguments: Arguments, step: int | None = None) -> Task:
    """Return sequences, checkpoints, engine and trainer. A given `step` limits the sequences.

    Raises `ConfigurationError` if an argument is missing or inconsistent with the sample.
    """
    if (arguments.sample is None) == (arguments.name is None):
        refuse_usage("pass a RUN or --sample FILE")
    if arguments.trainer is not None and not re.fullmatch(r"[\w.]+:\w+", arguments.trainer):
        raise ConfigurationError(f"--trainer {arguments.trainer!r} is not MODULE:FUNCTION; write e.g. my_trainer:score")
    setup = Setup(
        models=_models(arguments.model),
        arguments=arguments.engine_args,
        trainer=arguments.trainer,
        trainer_settings=settings_of(arguments.trainer_args),
        seconds=60 * arguments.scorer_minutes,
    )
    if arguments.sample is None:
        task = _of_run(arguments, setup, step)
    else:
        task = Task(read_sample(Path(arguments.sample)), replace(setup, models=checked(setup.models)))
    if arguments.sampling is not None:
        task = replace(task, sequences=stating(task.sequences, arguments.sampling, "--sampling"))
    _check_versions(task)
    _check_vocabulary(task)
    return task


def keep(arguments: Arguments, kind: str, document: Mapping[str, Any]) -> None:
    """Store the result in the run's data directory. Skip a sample file, which has no run."""
    if arguments.name is not None:
        record(Home(home_path(arguments)), arguments.name, kind, tables.plain(document), login())


def _of_run(arguments: Arguments, setup: Setup, step: int | None) -> Task:
    with open_reader(home_path(arguments)) as reader:
        require_run(arguments.name, queries.app_runs(reader)["run"].to_pylist())
        setup = replace(setup, models=checked({**recorded_checkpoints(reader, arguments.name), **setup.models}))
        return Task(*recorded_sample(reader, arguments.name, setup, most=arguments.sequences, step=step))


def _models(given: Sequence[str]) -> dict[str, Path]:
    paths: dict[str, Path] = {}
    for text in given:
        version, equals, path = text.partition("=")
        # A path may hold "=" too; a version never holds a slash.
        named = bool(equals) and "/" not in version
        paths[version if named else ""] = Path(path if named else text).expanduser()
    return paths


def _check_versions(task: Task) -> None:
    """Raise `ConfigurationError` if one checkpoint without a version would stand for several versions."""
    stated = {sequence.rollout_version for sequence in task.sequences} | {
        sequence.trainer_version for sequence in task.sequences
    }
    stated.discard(None)
    if len(stated) > 1 and set(task.setup.models) == {""}:
        names = ", ".join(sorted(str(version) for version in stated)[:_NAMED])
        names += f" and {len(stated) - _NAMED} more" if len(stated) > _NAMED else ""
        raise ConfigurationError(f"--model: the sample has weight versions {names}; pass --model VERSION=PATH for each")


def _check_vocabulary(task: Task) -> None:
    """Raise `ConfigurationError` if a token id exceeds a checkpoint's vocabulary.

    Ids of another tokenizer would otherwise be scored silently, or crash an engine.
    """
    largest = max(max((*sequence.prompt_ids, *sequence.response_ids)) for sequence in task.sequences)
    for path in task.setup.models.values():
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
        if size is not None and largest >= size:
            raise ConfigurationError(
                f"{path} has a vocabulary of {size} tokens, but the sample has token id {largest}; pass the "
                "checkpoint of the sample"
            )
