"""The text format that Prometheus scrapes: OpenMetrics 1.0, as pure functions of families of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_SUFFIXES: Final = {"counter": "_total"}


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its samples differ in their labels only. `name` ends in the unit, where there is one."""

    name: str
    kind: Literal["gauge", "counter", "stateset"]
    words: str
    unit: str = ""
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: str) -> None:
        """One sample; an unknown value gives none."""
        if value is not None:
            self.samples.append((labels, value))


def states(family: Family, state: str, known: Iterable[str], **labels: str) -> None:
    """A state set: 1 for the state, 0 for the others."""
    for name in known:
        family.add(float(name == state), **labels, **{family.name: name})


def render(families: Iterable[Family]) -> str:
    """The exposition, with its end mark. Families without samples stand in it too, so that what is measured can be read off."""
    return "".join(line + "\n" for family in families for line in _lines(family)) + "# EOF\n"


def _lines(family: Family) -> Iterator[str]:
    yield f"# TYPE {family.name} {family.kind}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {escaped(family.words)}"
    for labels, value in family.samples:
        listed = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
        yield f"{family.name}{_SUFFIXES.get(family.kind, '')}{{{listed}}} {_number(value)}"


def escaped(text: str) -> str:
    r"""As label values and help texts have it: ``\\``, ``\"`` and ``\n``; lone surrogates, which UTF-8 cannot carry, as ``?``.

    >>> escaped('a "b"')
    'a \\"b\\"'
    """
    plain = text.encode(errors="replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
