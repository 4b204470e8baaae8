"""The Diagnosis page as blocks: verdict, findings by layer with their evidence, what is not measured. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.pages.blocks import Block, heading, row, table, text
from logprobe.app.dashboard.pages.verdict import banner
from logprobe.app.diagnosis_words import ADVICE, LAYERS, sure
from logprobe.app.numbers import number
from logprobe.monitor.diagnosis.result import LAYERS as ORDER

_HEAD: Final = ("cause", "confidence", "evidence", "since", "fix")


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
        yield table(name, _HEAD, [_finding(finding) for finding in findings], empty=_nothing(document))
        yield from (text(finding["explanation"]) for finding in findings)


def _nothing(document: Mapping[str, Any]) -> str:
    if document["verdict"] == "no_data":
        return "Nothing could be looked at."
    return "No finding in what was measured." if document["not_measured"] else "No finding."


def _finding(finding: Mapping[str, Any]) -> Block:
    since = "–" if finding["since_step"] is None else f"step {finding['since_step']:,}"
    evidence = ", ".join(f"{name.replace('_', ' ')} {_value(value)}" for name, value in finding["evidence"].items())
    confidence = f"{sure(finding['confidence'])}, {finding['confidence']:.0%}"
    cells = [finding["cause"].replace("_", " "), confidence, evidence, since, finding["fix"]]
    return row(cells, tone="critical" if finding["confidence"] >= 0.5 else "warning")  # noqa: PLR2004 -- as the verdict has it


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
