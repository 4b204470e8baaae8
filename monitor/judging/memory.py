"""Levels of earlier healthy runs of the same setup, which give a verdict to a new run without a baseline.

A setup consists of the recorded settings that decide log-probs. Of engines, these are the settings that start a new
baseline within a run (the macro `deciding`). Of the trainer, they name a precision, a temperature, a kernel or a
parallelism. Sampling parameters count as well. If the engines or the trainer's precision are not recorded, no
comparison is possible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from statistics import median
from typing import Any, Final, TypedDict

from logprobe.monitor import judgement, queries
from logprobe.monitor.judging.document import DiagnosisDocument
from logprobe.monitor.judging.frame import Frame
from logprobe.monitor.judging.judgement import Remembered
from logprobe.monitor.judging.setup import flat, from_documents, parsed, used
from logprobe.monitor.judging.thresholds import number
from logprobe.monitor.queries import Source

_TRAINER: Final = re.compile(
    r"dtype|precision|(^|[._])(bf16|fp16|fp8|tf32|tp|pp|cp|ep)($|[._])|quant|temperature|dropout|parallel|attn|attention|router|replay"
    r"|kernel|liger|fused|padding|packing|^framework$|^trial$|^model$|model_name"
)
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "structured_outputs",
)
_TRIAL: Final = "trainer.trial"


def settings_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the settings that decide log-probs by name, from rows of ``diagnosis_configs``. Return none for too few
    rows."""
    rows = list(rows)
    of_kind = used(rows)
    if not of_kind["engine_config"] or from_documents(rows).trainer_dtype is None:
        return {}
    settings: dict[str, set[str]] = {}
    for row in of_kind["engine_config"]:
        for name, value in _engine(row):
            settings.setdefault(name, set()).add(_text(value))
    for row in of_kind["sampling_params"]:
        document = parsed(row["document"])
        for name in _SAMPLING:
            if document.get(name) is not None:
                settings.setdefault(f"sampling.{name}", set()).add(_text(document[name]))
    for name, value in flat(parsed(of_kind["trainer_config"][-1]["document"])):
        if value is not None and _TRAINER.search(name.lower()):
            settings[f"trainer.{name}"] = {_text(value)}
    return {name: ", ".join(sorted(values)) for name, values in sorted(settings.items())}


def _engine(row: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of an engine summary, completed by a worker's choices."""
    if row["deciding"] is None:
        yield "engine", row["fingerprint"]
        return
    document = parsed(row["deciding"])
    summary = document["summary"]
    summary = summary if isinstance(summary, dict) else {"summary": summary}
    yield from ((name, value) for name, value in summary.items() if value is not None)
    for name, value in flat({name: part for name, part in document.items() if name != "summary"}):
        short = name.removeprefix("effective.")
        if value is not None and (short == name or summary.get(short) != value):
            yield name, value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def remembered(source: Source, run: str, settings: Mapping[str, str]) -> Remembered | None:
    """Return the levels of the known-good runs of the same setup, or None without any. Raises `QueryError`."""
    rows = queries.known_levels(source, run=run, setup=_digest(settings)).to_pylist() if settings else []
    judged = judgement.read(source, [row["run"] for row in rows], datetime.now(UTC)) if rows else {}
    good = [row for row in rows if judged[row["run"]].severity == "ok" or _is_trial(judged[row["run"]])]
    if not good:
        return None
    levels = [row["low"] for row in good] + [row["high"] for row in good]
    return Remembered(len(good), min(levels), max(levels), median(levels))


def _is_trial(judged: judgement.Judgement) -> bool:
    """Return whether the run is a trial of one step, which cannot be called healthy."""
    return judged.verdict == "calibrating" and not judged.alerts


def _digest(settings: Mapping[str, str]) -> str:
    return sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:32]


class KnownLevel(TypedDict):
    """Columns of ``diagnoses`` for a run with a known-good level."""

    setup: str
    low: float
    high: float


def known_level(frame: Frame, diagnosis: DiagnosisDocument) -> KnownLevel | None:
    """Return the level of a judged frame, or None if it is not known to be good.

    A good run is healthy by its own past, without this memory. Its level is within the reported range, and no finding
    requires an action. A trial of one step has no past. Its level alone counts, and only among trials.
    """
    level = diagnosis["level"]
    short = _TRIAL in frame.settings and diagnosis["verdict"] in {"calibrating", "healthy"}
    healthy = frame.growth.verdict == "healthy" and diagnosis["verdict"] == "healthy"
    if not frame.settings or not (healthy or short) or diagnosis["layer"] != "none" or level is None:
        return None
    k3 = _own(frame, level["numerics"])
    if level["status"] not in {"as expected", "unknown set-up"} or not k3:
        return None
    return {"setup": _digest(frame.settings), "low": min(k3), "high": max(k3)}


def _own(frame: Frame, numerics: float | None) -> list[float]:
    """Return K3 at the run's beginning and end, of tokens that the trainer's own weights sampled."""
    ends = [window.where(window.own) for window in (frame.first, frame.now)]
    return [end.k3 for end in ends if end.n >= number("fewest")] or ([] if numerics is None else [numerics])
