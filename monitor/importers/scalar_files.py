"""Scalar logs → step rows, under the names that their framework gave them.

They are not taken for metrics of our catalog, even where the names agree: those are functions of tokens, and no one can
say over which tokens another program's mean went.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor import limits
from logprobe.monitor.importers.rows import TRAINER_STEP, BadRowError, Row, scalars
from logprobe.monitor.importers.source import Place, Unit, file_digest, json_lines

_STEP_KEYS: Final = (TRAINER_STEP, "step", "global_step", "_step", "Step")
_TIME_KEYS: Final = ("_timestamp", "timestamp")
_SWIFT_STEP: Final = "global_step/max_steps"  # "12/100"
_CONSOLE: Final = re.compile(r"(?:^|\s)step:(\d+) - (.+)")  # of verl; Ray puts the process in front
_WRAPPED: Final = re.compile(r"(?:np|numpy)\.\w+\((.*)\)")  # as numpy 2 prints a scalar
_EXTREMES: Final = re.compile(r"__(MIN|MAX)$")  # the other columns of W&B's CSV of a chart


def logged(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """A line of a scalar log: verl's file logger, ms-swift's logging.jsonl, W&B's history, or a flat object with a
    step."""
    del place
    nested = value.get("data")
    numbers = nested if isinstance(nested, Mapping) else value
    yield scalars(
        _step(value),
        {name: number for name, number in numbers.items() if name not in {*_STEP_KEYS, *_TIME_KEYS, _SWIFT_STEP}},
        next((value[name] for name in _TIME_KEYS if value.get(name) is not None), None),
    )


def log_entries(path: Path) -> Iterator[Unit]:
    """A unit per line of a log; of a ``trainer_state.json``, per entry of its ``log_history``; of CSV, per row; of
    verl's console, per step."""
    if path.suffix == ".json":
        yield from _trainer_state(path)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    elif path.suffix in {".log", ".txt", ".out"}:
        yield from _console_lines(path)
    else:
        yield from json_lines(path)


def _trainer_state(path: Path) -> Iterator[Unit]:
    """A ``trainer_state.json``, or the bare list of its ``log_history``."""
    try:
        document = json.loads(path.read_bytes())
        history = document if isinstance(document, list) else document["log_history"]
        entries = [dict(entry) for entry in history]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: neither a trainer_state.json nor its log_history, a list of objects"
        ) from error
    for entry in entries:
        # Not the file: it is rewritten at every checkpoint, with the old entries in front.
        yield Unit(json.dumps(entry, sort_keys=True).encode(), entry)


def _csv_rows(path: Path) -> Iterator[Unit]:
    mark = file_digest(path)
    with path.open("rb") as file:
        for row in csv.DictReader(_texts(path, file)):
            yield Unit(mark, {name: _number(text) for name, text in row.items() if name and not _EXTREMES.search(name)})


def _texts(path: Path, file: BinaryIO) -> Iterator[str]:
    for number, (line, wrong) in enumerate(limits.lines(file)):
        if wrong is not None:
            raise ConfigurationError(f"{path}:{number + 1}: {wrong}")
        yield line.decode("utf-8" if number else "utf-8-sig")


def _console_lines(path: Path) -> Iterator[Unit]:
    """Only what a console logger wrote; other lines of a program's output are no units. A last line without an end is
    still being written."""
    with path.open("rb") as file:
        for content, _ in limits.lines(file):
            line = content.decode(errors="replace")
            match = _CONSOLE.search(line)
            if match and line.endswith("\n"):
                parts = (part.rpartition(":") for part in match[2].strip().split(" - "))
                numbers = {name: _number(_WRAPPED.sub(r"\1", value)) for name, _, value in parts if name}
                yield Unit(match[0].encode(), {"step": int(match[1]), "data": numbers})


def _number(text: Any) -> float | None:
    """A cell; empty or not a number: none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


def _step(value: Mapping[str, Any]) -> Any:
    stated = value.get(_SWIFT_STEP)
    if isinstance(stated, str) and stated.partition("/")[0].isdigit():
        return int(stated.partition("/")[0])
    for name in _STEP_KEYS:
        if value.get(name) is not None:
            return value[name]
    raise BadRowError(f"no step ({', '.join(_STEP_KEYS)} or {_SWIFT_STEP})")
