"""The Diagnosis page as blocks: verdict, findings by layer with their evidence, what is not measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.pages.blocks import Block, heading, row, table, text
from logprobe.app.dashboard.pages.verdict import banner
from logprobe.app.diagnosis_words import ADVICE, LAYERS, sure
from logprobe.app.numbers import number
from logprobe.monitor.diagnosis import CAUSES
from logprobe.monitor.diagnosis.expected import expected
from logprobe.monitor.diagnosis.result import LAYERS as ORDER

_HEAD: Final = ("test", "value", "expected", "verdict", "fix")
_CREDIBLE: Final = 0.5  # as the verdict has it


def diagnosis_blocks(view: RunView) -> list[Block]:
    """Blocks of `browser/report.js` for a run; only the verdict while it has not been diagnosed."""
    if view.judgement is None:
        return [banner(view)]
    document = view.judgement.document
    return [banner(view), *_course(view), *_layers(document), *_correction(document), *_not_measured(document)]


def _course(view: RunView) -> Iterator[Block]:
    reasons = view.judgement.growth.reasons if view.judgement else ()
    if reasons:
        yield heading("Course of the gap", "KL (k3) of engine and trainer, against the run's own beginning")
        yield from (text(f"{reason[:1].upper()}{reason[1:]}.") for reason in reasons)


def _layers(document: Mapping[str, Any]) -> Iterator[Block]:
    """Layer by layer, in the order in which they are ruled out."""
    for layer in ORDER:
        name, _, question = LAYERS[layer].partition(": ")
        findings = [finding for finding in document["findings"] if finding["layer"] == layer]
        yield heading(f"{name[:1].upper()}{name[1:]}", question)
        rows = [line for finding in findings for line in _finding(finding)]
        yield table(name, _HEAD, rows, empty=_nothing(document))
        yield from (text(finding["explanation"]) for finding in findings)
        yield from _ruled_out(layer, {finding["cause"] for finding in findings}, document)


def _nothing(document: Mapping[str, Any]) -> str:
    if document["verdict"] == "no_data":
        return "Nothing could be looked at."
    return "No finding in what was measured." if document["not_measured"] else "No finding."


def _ruled_out(layer: str, found: set[str], document: Mapping[str, Any]) -> Iterator[Block]:
    """What was looked for as well."""
    others = [cause.name.replace("_", " ") for cause in CAUSES if cause.layer == layer and cause.name not in found]
    if others and document["verdict"] != "no_data":
        yield text(f"No sign of: {', '.join(others)}.")


def _finding(finding: Mapping[str, Any]) -> Iterator[Block]:
    """The cause with what was seen of it; below it the evidence of which can be said what it should be, number by number."""
    credible = finding["confidence"] >= _CREDIBLE
    since = "" if finding["since_step"] is None else f", since step {finding['since_step']:,}"
    sureness = f"{sure(finding['confidence'])}, {finding['confidence']:.0%}{since}"
    evidence = finding["evidence"]
    seen = ", ".join(f"{_named(name)} {_value(value)}" for name, value in evidence.items() if not expected(name))
    cells = [finding["cause"].replace("_", " "), seen, "no sign of it", sureness, finding["fix"]]
    yield row(cells, tone="critical" if credible else "warning")
    for name, value in evidence.items():
        should = expected(name)
        if should is not None:
            held = {True: "as expected", False: "off", None: "–"}[should.holds(value)]
            yield row([_named(name), _value(value), should.words, held, ""])


def _named(evidence: str) -> str:
    """A piece of evidence in words."""
    return {"z": "difference, in standard errors", "k3_kl": "KL (k3)"}.get(evidence, evidence.replace("_", " "))


def _value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return str(value)
    return number(value)


def _correction(document: Mapping[str, Any]) -> Iterator[Block]:
    advice = document["correction"]
    yield heading("Correction", "whether importance sampling is the right medicine")
    words = ADVICE[advice["advice"]]
    yield text(f"{words[:1].upper()}{words[1:]}: {advice['why']}")


def _not_measured(document: Mapping[str, Any]) -> Iterator[Block]:
    yield heading("Not measured", "and how to measure it")
    rows = [row([item["what"], item["why"], item["how"]]) for item in document["not_measured"]]
    empty = "Everything that the diagnosis looks at was measured."
    yield table("not measured", ("what", "why", "to measure it"), rows, empty=empty)
