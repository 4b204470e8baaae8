"""Table of causes, read once from `signatures.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from logprobe.monitor.judging.document import Layer
from logprobe.monitor.settings.yaml_text import packaged

Kind = Literal["fault", "noise", "growth", "lag", "note"]

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Signature:
    """One cause.

    Attributes:
        cause: identifier.
        layer: layer of the system at fault.
        kind: fault (act), noise (judged by its level), growth or lag (judged by trend), note (no log-prob is wrong).
        hides: true if no other cause can be judged at the same time.
        masked: true if the affected tokens are excluded from every mean, which leaves other judgements intact.
        remedy: instruction to the operator.
        words: one sentence that states the cause.
        looks_at: description of the test in one line, for the documentation.
        column: group column whose contrast names the cause, or empty for causes of other tests.
        excluded_by: names of facts (`proofs.Facts`), each of which excludes the cause.
        told: sentences with numbers of the finding's evidence, by name. A sentence without its numbers is omitted.
        corrected: remaining remedy while a correction is on, or empty for the same one.
    """

    cause: str
    layer: Layer
    kind: Kind
    remedy: str
    words: str
    looks_at: str
    column: str = ""
    excluded_by: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    corrected: str = ""
    hides: bool = False
    masked: bool = False


def _table() -> dict[str, Signature]:
    table: dict[str, Signature] = {}
    for cause, row in packaged("logprobe.monitor.judging", "signatures.yaml").items():
        for key, allowed in (("layer", Layer), ("kind", Kind)):
            if row[key] not in get_args(allowed):
                raise ValueError(f"signatures.yaml: {cause} has {key} {row[key]!r}; use one of {get_args(allowed)}")
        lists = {key: tuple(row.get(key, ())) for key in ("excluded_by", "told")}
        table[cause] = Signature(cause, **{**row, **lists})
    return table


SIGNATURES: Final[Mapping[str, Signature]] = MappingProxyType(_table())
ORDER: Final = tuple(SIGNATURES)


def versions_of(lag: int) -> str:
    """Return a number of weight versions as text."""
    return f"{lag} version{'' if lag == 1 else 's'}"


def bounded(remedy: str, evidence: Mapping[str, Any]) -> str:
    """Return a remedy with the bound on the lag, if the evidence has one.

    >>> bounded("Bound the lag (fewer batches).", {"bound": 7})
    'Bound the lag to 7 versions (fewer batches).'
    """
    bound = evidence.get("bound")
    return (
        remedy if bound is None else re.sub("(ound the (weight )?lag)", rf"\1 to {versions_of(bound)}", remedy, count=1)
    )


def kind_of(cause: str) -> Kind | None:
    """Return the kind of a cause in a stored document, or None for an unknown or former cause."""
    return SIGNATURES[cause].kind if cause in SIGNATURES else None
