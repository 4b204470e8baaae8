"""What Prometheus scrapes, in the OpenMetrics 1.0 text format: families of samples, written by prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Family(Metric):
    """One metric: its samples differ in their labels only. `name` ends in the unit, where there is one."""

    def __init__(self, name: str, kind: Literal["gauge", "counter", "stateset"], words: str, unit: str = "") -> None:
        super().__init__(name, words, kind, unit)
        self._sample_name = f"{name}_total" if kind == "counter" else name

    def add(self, value: float | None, **labels: str) -> None:
        """One sample; an unknown value gives none."""
        if value is not None:
            self.add_sample(self._sample_name, {name: _plain(text) for name, text in labels.items()}, value)


@dataclass(frozen=True, slots=True)
class _Scrape:
    """As prometheus_client asks for families."""

    families: Iterable[Family]

    def collect(self) -> Iterator[Family]:
        yield from self.families


def states(family: Family, state: str, known: Iterable[str], **labels: str) -> None:
    """A state set: 1 for the state, 0 for the others."""
    for name in known:
        family.add(float(name == state), **labels, **{family.name: name})


def render(families: Iterable[Family]) -> str:
    """The exposition, with its end mark. Families without samples are listed, too, so that what is measured can be read off."""
    return str(generate_latest(_Scrape(families)).decode())  # type: ignore[no-untyped-call]


def _plain(text: str) -> str:
    """`text` with ``?`` for lone surrogates, which UTF-8 cannot carry."""
    return text.encode(errors="replace").decode()
