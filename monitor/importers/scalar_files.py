"""Scalar logs → step rows, under the names that their framework gave them.

They are not taken for metrics of our catalog, even where the names agree: those are functions of tokens, and nobody can say over
which tokens another program's mean went.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from logprobe.collectors.errors import ConfigurationError
from logprobe.monitor.importers.rows import BadRowError, Row, scalars
from logprobe.monitor.importers.source import Place, Unit, file_digest, json_lines

_STEP_KEYS: Final = ("step", "global_step", "_step", "Step")
_TIME_KEYS: Final = ("_timestamp", "timestamp")
_SWIFT_STEP: Final = "global_step/max_steps"  # "12/100"
_EXTREMES: Final = re.compile(r"__(MIN|MAX)$")  # the other columns of W&B's CSV of a chart


def logged(value: Mapping[str, Any], place: Place) -> Iterable[Row]:
    """A line of a scalar log: verl's file logger, ms-swift's logging.jsonl, W&B's history, or a flat object with a step."""
    del place
    nested = value.get("data")
    numbers = nested if isinstance(nested, Mapping) else value
    yield scalars(
        _step(value),
        {name: number for name, number in numbers.items() if name not in {*_STEP_KEYS, *_TIME_KEYS, _SWIFT_STEP}},
        next((value[name] for name in _TIME_KEYS if value.get(name) is not None), None),
    )


def log_entries(path: Path) -> Iterator[Unit]:
    """A unit per line of a log; of a ``trainer_state.json``, per entry of its ``log_history``; of CSV, per row."""
    if path.suffix == ".json":
        yield from _trainer_state(path)
    elif path.suffix == ".csv":
        yield from _csv_rows(path)
    else:
        yield from json_lines(path)


def _trainer_state(path: Path) -> Iterator[Unit]:
    try:
        history = json.loads(path.read_bytes())["log_history"]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path}: no trainer_state.json (it has no log_history)") from error
    for entry in history:
        # Not the file: it is written anew at every checkpoint, with the old entries in front.
        yield Unit(json.dumps(entry, sort_keys=True).encode(), entry)


def _csv_rows(path: Path) -> Iterator[Unit]:
    mark = file_digest(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        for row in csv.DictReader(file):
            yield Unit(mark, {name: _number(text) for name, text in row.items() if name and not _EXTREMES.search(name)})


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
