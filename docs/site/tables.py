"""Tables of the documentation that follow from declarations: metrics, causes, presets, commands, options of other frameworks.

`make docs` puts each in the place of its line `<!-- table: NAME -->`. In a checkout, with logprobe installed:

    python docs/site/tables.py           # names
    python docs/site/tables.py presets   # prints these tables
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from logprobe.app.surface.commands import SECTIONS
from logprobe.collectors.correction.presets import PRESETS
from logprobe.monitor import limits
from logprobe.monitor.judging.explain import CONFIDENCES
from logprobe.monitor.judging.judgement import Confidence
from logprobe.monitor.judging.leading import CREDIBLE
from logprobe.monitor.judging.result import LAYERS
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.judging.thresholds import PRIORS
from logprobe.monitor.metrics.definition import SEQUENCE_MEAN, Metric
from logprobe.monitor.metrics.pair_metrics import PAIR_METRICS
from logprobe.monitor.metrics.step_metrics import STEP_METRICS
from logprobe.monitor.peers import PEERS
from logprobe.monitor.peers.batch import Peer

PLACE: Final = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)


@cache
def tables() -> dict[str, str]:
    """Every table, in Markdown, by its name."""
    return {
        "metrics-of-a-pair": _metrics(PAIR_METRICS),
        "metrics-of-a-step": _metrics(STEP_METRICS),
        "confidence": _confidence(),
        **{f"causes-{layer.replace('_', '-')}": _causes(layer) for layer in (*LAYERS, "unknown")},
        "expected-k3": _priors(),
        "limits": _limits(),
        "presets": _presets(),
        "commands": _table(
            ("command", "what it does"),
            ((f"`{name}`", entry.words) for section in SECTIONS.values() for name, entry in section.items()),
        ),
        **{f"options-{name}": _options(peer) for name, peer in PEERS.items()},
    }


def filled(page: str, made: Mapping[str, str]) -> str:
    """The page with each table in its place. Raises `KeyError` for the name of no table."""
    return PLACE.sub(lambda place: made[place[1]], page)


def _metrics(metrics: Sequence[Metric]) -> str:
    head = ("key", "formula", "over", "unit", "worse when", "meaning", "also reported by")
    return _table(head, map(_metric, _families(metrics)))


def _families(metrics: Sequence[Metric]) -> Iterable[list[Metric]]:
    """Metrics of one meaning: a mean with that of its sequences, one lag in several units, a mean with its maximum."""
    families: dict[str, list[Metric]] = {}
    for metric in metrics:
        families.setdefault(metric.words.removesuffix(f" {SEQUENCE_MEAN}"), []).append(metric)
    return families.values()


def _metric(family: Sequence[Metric]) -> tuple[str, ...]:
    first = family[0]
    needs = f" Needs {', '.join(first.needs)}." if first.needs else ""
    return (
        ", ".join(f"`{metric.key}`" for metric in family),
        _formula(family),
        ", ".join(dict.fromkeys(metric.grain for metric in family)),
        ", ".join(dict.fromkeys(metric.unit for metric in family)),
        first.worse,
        first.words + needs,
        first.source,
    )


def _formula(family: Sequence[Metric]) -> str:
    """The first one's where the page says how the others follow; else with the words in which they differ in front."""
    *others, last = dict.fromkeys(metric.formula.partition("; lag =")[0] for metric in family)
    if family[0].grain != family[-1].grain:
        return family[0].formula
    return ", ".join([*(formula.partition(" over ")[0] for formula in others), last])


def _confidence() -> str:
    words = {
        Confidence.CERTAIN: "it was counted",
        Confidence.KNOWN: "the settings or records say so, and the numbers agree",
        Confidence.INFERRED: "numbers alone, by a test that only this cause passes",
        Confidence.POSSIBLE: f"other causes would look the same; below {CREDIBLE} a finding does not decide the layer",
    }
    rows = ((level.name.lower(), str(CONFIDENCES[level]), text) for level, text in words.items())
    return _table(("confidence", "number", "basis"), rows)


def _causes(layer: str) -> str:
    rows = ((f"`{c.cause}`", c.words, c.looks_at, c.remedy) for c in SIGNATURES.values() if c.layer == layer)
    return _table(("cause", "what is wrong", "evidence", "remedy"), rows)


def _priors() -> str:
    models = {True: "experts", False: "dense", None: "any"}
    return _table(
        ("engine", "trainer", "model", "8 bits or fewer", "K3 from", "to", "source"),
        (
            (
                _either(p.engine),
                _either(p.trainer),
                models[p.experts],
                "yes" if p.quantized else "no",
                f"{p.low:g}",
                f"{p.high:g}",
                p.source,
            )
            for p in PRIORS
        ),
    )


def _either(precisions: tuple[str, ...]) -> str:
    names = {"full": "float32", "half": "float16", "bf16": "bf16"}
    return " or ".join(names[precision] for precision in precisions) or "any"


def _limits() -> str:
    rows = ((f"`{limit.name}`", f"{limit.default:,} {limit.unit}".rstrip(), limit.words) for limit in limits.ALL)
    return _table(("limit", "default", "limits"), rows)


def _presets() -> str:
    rows = ((f"`{name}`", str(config), source) for name, (config, source) in PRESETS.items())
    return _table(("preset", "configuration", "source"), rows)


def _options(peer: Peer) -> str:
    rows = (
        (f"`{name}`", f"`{_written(option.default)}`", option.words + _listed(option.choices))
        for name, option in peer.options.items()
    )
    return _table(("option", "default", "meaning"), rows)


def _listed(choices: Iterable[Any]) -> str:
    listed = ", ".join(f"`{_written(choice)}`" for choice in choices)
    return f": {listed}" if listed else ""


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in _lines(head, rows))


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    yield list(head)
    yield ["---"] * len(head)
    for row in rows:
        yield [cell.replace("|", "\\|").replace("\n", " ") for cell in row]


if __name__ == "__main__":
    made = tables()
    print("\n\n".join(made[name] for name in sys.argv[1:]) or "\n".join(made))
