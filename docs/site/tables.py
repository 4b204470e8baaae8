"""Tables of the documentation that follow from declarations: commands, settings, metrics, causes, columns, presets, API.

`make docs` puts each in the place of its line `<!-- table: NAME -->`. In a checkout, with logprobe installed:

    python docs/site/tables.py           # names
    python docs/site/tables.py presets   # prints these tables
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from logprobe.alerts.controller.policy import Policy
from logprobe.alerts.rules.thresholds import Threshold
from logprobe.alerts.sending.channels.settings import AppriseSettings, SlackSettings, WebhookSettings
from logprobe.app.processes.service import Server
from logprobe.app.surface.commands import SECTIONS
from logprobe.app.surface.declared import Branch
from logprobe.collectors import environment
from logprobe.collectors.correction import CorrectionConfig
from logprobe.collectors.correction.presets import PRESETS
from logprobe.monitor.exporters.loggers import TensorBoardSettings, TrackioSettings, WandbSettings
from logprobe.monitor.judging.document import CREDIBLE, LAYERS
from logprobe.monitor.judging.explain import CONFIDENCES
from logprobe.monitor.judging.judgement import Confidence
from logprobe.monitor.judging.levels import BANDS, SETUPS
from logprobe.monitor.judging.signatures import SIGNATURES
from logprobe.monitor.metrics.definition import SEQUENCE_MEAN, Metric
from logprobe.monitor.metrics.pair_metrics import PAIR_METRICS
from logprobe.monitor.metrics.step_metrics import STEP_METRICS
from logprobe.monitor.settings import limits
from logprobe.monitor.store.raw_files import RAW_SCHEMAS

# The models of each section of `logprobe.yaml`.
SETTINGS: Final[Mapping[str, tuple[type[BaseModel], ...]]] = {
    "alerts": (Threshold,),
    "channels": (SlackSettings, WebhookSettings, AppriseSettings),
    "correction": (Policy,),
    "loggers": (TensorBoardSettings, WandbSettings, TrackioSettings),
    "server": (Server,),
}
# What the site documents from docstrings.
API: Final = (
    "collectors.recorder.recorder.Recorder",
    "collectors.weights.mark",
    "collectors.vllm.ids",
    "collectors.switch.CorrectionSwitch",
    "collectors.correction.config.CorrectionConfig",
    "collectors.correction.apply.correct",
    "collectors.correction.presets",
    "monitor.reading",
    "monitor.reader.Reader",
    "monitor.reader.open_reader",
    "monitor.analysis.slices.by",
    "monitor.analysis.profiles.of",
)
PLACE: Final = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)


@cache
def tables() -> dict[str, str]:
    """Every table, in Markdown, by its name."""
    return {
        "metrics-of-a-pair": _metrics(PAIR_METRICS),
        "metrics-of-a-step": _metrics(STEP_METRICS),
        "confidence": _confidence(),
        **{f"causes-{layer.replace('_', '-')}": _causes(layer) for layer in (*LAYERS, "unknown")},
        "expected-k3": _bands(),
        "recorded-k3": _recorded(),
        "limits": _limits(),
        "presets": _presets(),
        "columns": _columns(),
        "commands": _commands(),
        "settings": _settings(),
        "variables": _table(
            ("variable", "read by", "meaning"),
            ((f"`{name}`", entry.reader, entry.words) for name, entry in environment.VARIABLES.items()),
        ),
        "api": "\n\n".join(f"::: logprobe.{name}" for name in API),
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


def _bands() -> str:
    models = {True: "experts", False: "dense", None: "any"}
    return _table(
        ("row", "engine", "trainer", "model", "8 bits or fewer", "K3 from", "to", "source"),
        (
            (
                band.name,
                _either(band.engine),
                _either(band.trainer),
                models[band.experts],
                "yes" if band.quantized else "no",
                f"{band.low:g}",
                f"{band.high:g}",
                band.source,
            )
            for band in BANDS
        ),
    )


def _recorded() -> str:
    names = ("engine_dtype", "head", "kv_cache", "weights", "trainer_dtype", "experts", "replay", "also")
    return _table(
        ("set-up", *(name.replace("_", " ") for name in names), "K3 from", "to", "runs", "tokens", "source"),
        (
            (
                row.name,
                *(row.setup.get(name) or "–" for name in names),
                f"{row.low:g}",
                f"{row.high:g}",
                *("–" if count is None else f"{count:,}" for count in (row.runs, row.tokens)),
                row.source,
            )
            for row in SETUPS
        ),
    )


def _either(precisions: Sequence[str]) -> str:
    names = {"full": "float32", "half": "float16", "bf16": "bf16"}
    return " or ".join(names[precision] for precision in precisions) or "any"


def _limits() -> str:
    rows = ((f"`{limit.name}`", f"{limit.default:,} {limit.unit}".rstrip(), limit.words) for limit in limits.ALL)
    return _table(("limit", "default", "limits"), rows)


def _presets() -> str:
    rows = ((f"`{name}`", str(config), source) for name, (config, source) in PRESETS.items())
    return _table(("preset", "configuration", "source"), rows)


def _columns() -> str:
    names = dict.fromkeys(name for schema in RAW_SCHEMAS.values() for name in schema.names if name != "run")
    return _table(("column", "type", "in files of"), map(_column, names))


def _column(name: str) -> tuple[str, str, str]:
    kinds = [kind for kind, schema in RAW_SCHEMAS.items() if name in schema.names]
    return f"`{name}`", f"`{RAW_SCHEMAS[kinds[0]].field(name).type}`", ", ".join(kinds)


def _commands() -> str:
    return _table(("command", "what it does"), ((f"`{name}`", words) for name, words in commands()))


def commands() -> Iterator[tuple[str, str]]:
    """Name and words of every command; of one that has commands, theirs."""
    for name, entry in (pair for section in SECTIONS.values() for pair in section.items()):
        leaves = (
            {f"{name} {leaf}": of for leaf, of in entry.leaves.items()} if isinstance(entry, Branch) else {name: entry}
        )
        yield from ((called, leaf.words) for called, leaf in leaves.items())


def _settings() -> str:
    head = ("section", "key", "default", "meaning")
    return _table(head, ((f"`{section}`", *row) for section in SETTINGS for row in _keys(section)))


def _keys(section: str) -> Iterator[tuple[str, str, str]]:
    """Keys of a section, each once, whichever of its models have it."""
    yield from {
        name: (f"`{name}`", _default(entry), documented(model, name))
        for model in SETTINGS[section]
        for name, entry in model.model_fields.items()
    }.values()


def documented(model: type[BaseModel], name: str) -> str:
    """Return the text below a field in the source of its class, or of the class that it is inherited from."""
    owner = next(base for base in model.__mro__ if name in inspect.get_annotations(base))
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    for field, text in pairwise(getattr(tree, "body", ())):
        if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) == name and isinstance(text, ast.Expr):
            return " ".join(str(ast.literal_eval(text.value)).split())
    raise ValueError(f"{model.__name__}.{name} has no text below it; say what the setting means")


def _default(entry: FieldInfo) -> str:
    if entry.is_required():
        return "required"
    if isinstance(entry.default, CorrectionConfig):
        return f"`{entry.default}`"
    return "" if entry.default is None else f"`{_written(entry.default)}`"


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
