"""Diagnosis: the evidence, layer by layer, what is not measured, and parity with the recipe or a reference run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

import streamlit as st

from logprobe.alerts.controller.standing import Standing
from logprobe.alerts.rules.acceptance import ACCEPT, WITHDRAW
from logprobe.app.dashboard.charts.curves import Curve, CurveRow, Happened, columns_of, curves_chart, dash_of
from logprobe.app.dashboard.charts.downsample import Window
from logprobe.app.dashboard.charts.look import Look
from logprobe.app.dashboard.charts.scales import floor_of
from logprobe.app.dashboard.data.comparing import PACE, state_of
from logprobe.app.dashboard.data.diagnosis import LatestDiagnosis
from logprobe.app.dashboard.data.feed import RunView
from logprobe.app.dashboard.data.stale_cache import StaleCache
from logprobe.app.dashboard.elements.blocks import BY, Block, action, details, heading, row, table, text
from logprobe.app.dashboard.elements.links import in_address
from logprobe.app.dashboard.elements.verdict import banner, links
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.views.acting import ask, attempt, blocked, said
from logprobe.app.dashboard.views.page import show
from logprobe.app.dashboard.views.report import report
from logprobe.app.dashboard.views.session import asked, feed, guarded, home, kept, read_once, theme
from logprobe.app.runs import Run
from logprobe.app.text.correction import advised, remedy
from logprobe.app.text.diagnosis import ADVICE, HEAD, LAYERS, arm_cells, evidence_name, headline, qualities, sure
from logprobe.app.text.numbers import number
from logprobe.monitor import queries
from logprobe.monitor.judging import culprit
from logprobe.monitor.judging.accepted import Expectation, expectation, explained
from logprobe.monitor.judging.culprit import Picture
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.expected import expected
from logprobe.monitor.judging.leading import alarms, in_reading_order
from logprobe.monitor.judging.parity import Check, Parity, Setting
from logprobe.monitor.judging.parity import compare as parity_of
from logprobe.monitor.judging.proven import latest
from logprobe.monitor.judging.result import LAYERS as ORDER
from logprobe.monitor.judging.result import MARGIN
from logprobe.monitor.judging.signatures import SIGNATURES


def picture(proof: Picture, theme: Theme, window: Window | None = None) -> Block:
    """K3 of the tokens concerned beside that of the others, on a logarithmic axis where all values allow one."""
    values = [value for points in proof.lines.values() for _, value in points if value is not None]
    log = bool(values) and min(values) > 0
    curves = [
        Curve(name, *columns_of(points), theme.accent if at == 0 else theme.neutral, dash_of(at))
        for at, (name, points) in enumerate(proof.lines.items())
    ]
    row = CurveRow(
        "K3",
        curves,
        unit="nats",
        note="some steps are left out" if proof.sampled else "",
        log=log,
        floor=floor_of(values, [] if proof.limit is None else [proof.limit]) if log else None,
        limits=[] if proof.limit is None else [(proof.limit_name, proof.limit)],
        height=170,
    )
    since = "" if proof.since is None else f" Since step {proof.since:,}."
    marks = [] if proof.since is None else [Happened(proof.since, f"since step {proof.since:,}", theme.alarm)]
    alt = f"{proof.words}{since} Newest: {_newest(proof)}."
    chart = curves_chart(f"{proof.cause}-k3", [row], theme, alt=alt, marks=marks, window=window)
    return {"type": "figure", "heading": heading("K3 by step"), "chart": chart}


def _newest(proof: Picture) -> str:
    last = {name: next((v for _, v in reversed(points) if v is not None), None) for name, points in proof.lines.items()}
    return ", ".join(f"{name} {number(value)}" for name, value in last.items())


RECIPE: Final = "the built-in recipe"  # what a run is held against when no reference is chosen
_SENTENCES: Final = {
    "at_parity": ("good", "At parity", "with {reference}: every requirement is met."),
    "not_at_parity": ("bad", "Not at parity", "with {reference}."),
    "unknown": (
        "unsure",
        "Cannot be determined",
        "whether it is at parity with {reference}: some facts were not recorded.",
    ),
}
_VERDICTS: Final = {
    "at_parity": ("good", "met"),
    "not_at_parity": ("bad", "not met"),
    "unknown": ("unsure", "unknown"),
}
_TRENDS: Final = {"tracks": "good", "leaves": "bad", "unknown": "unsure"}
_MOST: Final = 4  # settings of a check that are shown


def parity_data(
    parity: Parity, *, reference: str | None, others: Sequence[str], notes: Sequence[str] = ()
) -> dict[str, object]:
    """What `browser/parity.js` draws.

    Args:
        parity: of the run, with `reference` or with the recipe alone.
        reference: the run that was chosen; None: none.
        others: runs that can be chosen.
        notes: what of the address could not be had.
    """
    tone, word, rest = _SENTENCES[parity.verdict]
    checks = sorted(parity.checks, key=lambda check: ["not_at_parity", "unknown", "at_parity"].index(check.verdict))
    return {
        "reference": reference,
        "others": list(others),
        "notes": list(notes),
        "tone": tone,
        "word": word,
        "words": rest.format(reference=parity.reference),
        "checks": [_check(check, compared=reference is not None) for check in checks],
        "trends": [
            {
                "tone": _TRENDS[trend.verdict],
                "cells": [trend.label, trend.verdict, _step(trend.leaves_step), trend.reason],
            }
            for trend in parity.trajectories
        ],
        "settings": _settings(parity),
        "compare": "" if reference is None else _link(parity.run, reference),
    }


def _link(run: str, reference: str) -> str:
    return f"./?{urlencode({'page': 'compare', 'run': run, 'baseline': reference, 'runs': in_address([run])})}"


def _step(step: int | None) -> str:
    return "–" if step is None else f"{step:,}"


def _check(check: Check, *, compared: bool) -> dict[str, object]:
    tone, verdict = _VERDICTS[check.verdict]
    met = check.verdict == "at_parity"
    return {
        "name": check.name,
        "layer": (check.layer or "").replace("_", " "),
        "found": [_setting_cells(item, compared=compared) for item in check.settings[:_MOST]],
        "more": max(0, len(check.settings) - _MOST),
        "expected": check.expected,
        "tone": tone,
        "verdict": verdict if check.outcome == "met" or not met else "as the reference",
        "fix": "" if met else check.fix,
        "why": "" if met else check.why,
    }


def _setting_cells(item: Setting, *, compared: bool) -> list[str]:
    """Name, value, who set it, and the reference's value where it is another."""
    other = item.reference_words if compared and item.words != item.reference_words else ""
    return [item.fact, item.words, item.provenance or "", other]


def _settings(parity: Parity) -> list[list[str]]:
    """What differs from the reference: what parity depends on first."""
    looked_at = {item.fact: item for check in parity.checks for item in check.settings}
    relevant = [item for item in looked_at.values() if parity.trajectories and item.words != item.reference_words]
    rows = [[item.fact, item.words, item.reference_words, "yes"] for item in relevant]
    return rows + [[item.fact, item.words, item.reference_words, ""] for item in parity.differences]


_HEAD: Final = ("test", "value", "expected", "verdict", "fix")


@dataclass(frozen=True)
class Acceptances:
    """What people have accepted of a run, and what they may do about it.

    Attributes:
        accepted: rows of `acceptances_read`.
        expected: the gap that an earlier run lets expect; None: there is no such run.
        blocked: why nothing can be done from this page; "": it can.
    """

    accepted: Sequence[Mapping[str, Any]] = ()
    expected: Expectation | None = None
    blocked: str = "findings cannot be accepted here"


def diagnosis_blocks(
    view: RunView, acceptances: Acceptances | None = None, onward: Sequence[Block] = (), proof: Block | None = None
) -> list[Block]:
    """Blocks of `views/report.py` for a run; only the verdict while it has not been diagnosed.

    Args:
        view: of the run.
        acceptances: what people have accepted of it.
        onward: links of the verdict.
        proof: `picture` of the finding that leads; None: there is none.
    """
    if view.diagnosis is None:
        return [banner(view)]
    document, accepting = view.diagnosis.document, acceptances or Acceptances()
    return [
        banner(view) | {"links": list(onward)},
        *([] if proof is None else [proof]),
        *_trend(view),
        *_layers(view.diagnosis, accepting),
        *_accepted(document, accepting),
        *_correction(view.diagnosis),
        *_ruled_out(view.diagnosis, accepting),
        *_not_measured(document),
    ]


def _trend(view: RunView) -> Iterator[Block]:
    if view.diagnosis is not None and (reasons := view.diagnosis.growth.reasons):
        measured = "against the run's own baseline"
        yield heading("Trend of K3", f"{measured}, as of step {view.diagnosis.step:,}; the onset is an estimate")
        yield from (text(f"{reason[:1].upper()}{reason[1:]}.") for reason in reasons)


def _layers(diagnosis: LatestDiagnosis, acceptances: Acceptances) -> Iterator[Block]:
    """What alarms, layer by layer, in the order in which they are ruled out."""
    document = diagnosis.document
    alarming = [finding for finding in in_reading_order(document) if not _quiet(finding)]
    if not alarming:
        yield heading("Findings")
        yield text(_nothing(document))
    for layer in (*ORDER, "unknown"):
        if findings := [finding for finding in alarming if finding["layer"] == layer]:
            name, _, question = LAYERS[layer].partition(": ")
            yield heading(f"{name[:1].upper()}{name[1:]}", question)
            yield from _findings(name, findings, diagnosis, acceptances)


def _findings(
    name: str, findings: Sequence[FindingDocument], diagnosis: LatestDiagnosis, acceptances: Acceptances
) -> Iterator[Block]:
    document = diagnosis.document
    rows = [
        line
        for finding in findings
        for line in _finding(finding, document, diagnosis.standing, _offer(document, finding, acceptances))
    ]
    yield table(name, _HEAD, rows, empty="")
    yield from (text(finding["explanation"]) for finding in findings)


def _quiet(finding: FindingDocument) -> bool:
    """What needs no action: as it should be in this setup, or accepted."""
    return finding.get("urgency") == "informational" or finding.get("accepted") is not None


def _nothing(document: DiagnosisDocument) -> str:
    if document["verdict"] == "no_data":
        return "Nothing could be checked."
    return "No findings in what was measured." if document["not_measured"] else "No findings."


def _ruled_out(diagnosis: LatestDiagnosis, acceptances: Acceptances) -> Iterator[Block]:
    """Folded: what was found and needs no action, and what was looked for as well."""
    document = diagnosis.document
    quiet = [finding for finding in in_reading_order(document) if _quiet(finding)]
    if quiet:
        summary = "1 finding that needs no action" if len(quiet) == 1 else f"{len(quiet)} findings that need no action"
        yield details("quiet", summary, list(_findings("needs no action", quiet, diagnosis, acceptances)))
    causes = {finding["cause"] for finding in document["findings"]}
    absent = {
        layer: [c.cause for c in SIGNATURES.values() if c.layer == layer and c.cause not in causes] for layer in ORDER
    }
    if document["verdict"] != "no_data":
        lines = [
            text(f"{LAYERS[layer].partition(':')[0]}: {', '.join(names)}".replace("_", " "))
            for layer, names in absent.items()
        ]
        yield details("absent", f"{sum(map(len, absent.values()))} causes without a sign", lines)


def _finding(
    finding: FindingDocument, document: DiagnosisDocument, standing: Standing, offer: Sequence[Block]
) -> Iterator[Block]:
    """The cause with what was seen of it; below it the evidence of which can be said what it should be, number by
    number."""
    since = "" if finding["since_step"] is None else f", since step {finding['since_step']:,}"
    stated = "".join(f"; {words}" for words in qualities(finding, document))
    sureness = f"{sure(finding['confidence'])}, {finding['confidence']:.0%}{since}{stated}"
    evidence = finding["evidence"]
    seen = ", ".join(
        _stated(name, value) for name, value in evidence.items() if not expected(name) and value is not None
    )
    cells = [finding["cause"].replace("_", " "), seen, "should be absent", sureness, remedy(finding, standing)]
    judged = [(name, value, should) for name, value in evidence.items() if (should := expected(name)) is not None]
    yield row(cells, tone=_tone(finding), actions=[] if judged else offer)
    for at, (name, value, should) in enumerate(judged, start=1):
        held = {True: "as expected", False: "off", None: "–"}[should.holds(value)]
        last = at == len(judged)
        yield row([evidence_name(name), _value(value), should.words, held, ""], actions=offer if last else [])


def _tone(finding: FindingDocument) -> str:
    """What needs no action has no colour."""
    if finding.get("urgency") == "informational" or finding.get("accepted") is not None:
        return ""
    return "critical" if alarms(finding) else "warning"


def _offer(document: DiagnosisDocument, finding: FindingDocument, acceptances: Acceptances) -> list[Block]:
    """A button to accept it, with the limit that another run or its own size suggests; none where it is accepted."""
    if finding.get("accepted") is not None:
        return []
    cause, now = finding["cause"], explained(document, finding["cause"])
    suggested = (
        MARGIN * acceptances.expected.k3 if acceptances.expected is not None else None if now is None else MARGIN * now
    )
    why = (
        ""
        if acceptances.expected is None
        else f" The limit is {MARGIN:g} times what was expected: {acceptances.expected.words}."
    )
    vetoes = (
        " It still vetoes a correction: importance weights of a wrong distribution are wrong."
        if finding["layer"] == "semantic"
        else ""
    )
    explanation = (
        f"`{cause}` stays on this page; it neither alerts nor vetoes a correction until it explains more than the "
        f"limit.{why}{vetoes}"
    )
    limit = {"value": "" if suggested is None else f"{suggested:.2g}", "required": suggested is None}
    fields = [
        {"name": "because", "label": "because", "required": True},
        {"name": "up_to", "label": "up to a K3 of", **limit},
        BY,
    ]
    return [action("accept", "Accept", explanation, acceptances.blocked, args={"cause": cause}, fields=fields)]


def _accepted(document: DiagnosisDocument, acceptances: Acceptances) -> Iterator[Block]:
    """What people live with, also what is not found now or has grown beyond its limit; nothing where nothing is
    accepted or expected."""
    if acceptances.expected is not None:
        yield text(f"Expected: {acceptances.expected.words}.")
    if not acceptances.accepted:
        return
    by_cause = {finding["cause"]: finding for finding in document["findings"]}
    yield heading("Accepted", "neither alerts nor vetoes a correction, up to the limit")
    rows = [
        _acceptance(entry, by_cause.get(entry["cause"]), document, acceptances.blocked)
        for entry in acceptances.accepted
    ]
    yield table("accepted", ("finding", "K3 now", "up to", "because", "by"), rows, empty="Nothing.")


def _acceptance(
    entry: Mapping[str, Any], finding: FindingDocument | None, document: DiagnosisDocument, blocked: str
) -> Block:
    back = finding is not None and finding.get("accepted") is None
    limit = entry["up_to"] if entry["up_to"] is not None or entry["was"] is None else MARGIN * entry["was"]
    cells = [
        entry["cause"].replace("_", " ") + (": beyond what was accepted" if back else ""),
        "not found" if finding is None else number(explained(document, entry["cause"])),
        f"{MARGIN:g} × its first steps" if limit is None else number(limit),
        entry["because"],
        f"{entry['author'] or '–'}, {entry['accepted_at']:%Y-%m-%d %H:%M} UTC",
    ]
    words = f"`{entry['cause']}` alerts and vetoes a correction again."
    blocked = blocked or ("it is accepted in the home's logprobe.yaml" if entry["source"] == "policy" else "")
    withdraw = action("withdraw", "Withdraw", words, blocked, args={"cause": entry["cause"]})
    return row(cells, tone="warning" if back else "", actions=[withdraw])


def _stated(evidence: str, value: object) -> str:
    """A piece of evidence with its value, of a list."""
    between = ": " if isinstance(value, str) else " "
    return f"{evidence_name(evidence)}{between}{_value(value).replace('_', ' ') if evidence == 'or' else _value(value)}"


def _value(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        return str(value)
    return number(value)


def _correction(diagnosis: LatestDiagnosis) -> Iterator[Block]:
    advice = diagnosis.document["correction"]
    yield heading("Correction", "whether importance sampling is the right remedy")
    words = advised(diagnosis.document, diagnosis.standing) or f"{ADVICE[advice['advice']]}: {advice['why']}"
    yield text(f"{words[:1].upper()}{words[1:]}")


def _not_measured(document: DiagnosisDocument) -> Iterator[Block]:
    yield heading("Not measured", "and how to measure it")
    rows = [row([item["what"], item["why"], item["how"]]) for item in document["not_measured"]]
    empty = "All inputs of the diagnosis were measured."
    yield table("not measured", ("what", "why", "to measure it"), rows, empty=empty)


def experiment_blocks(document: Mapping[str, Any] | None, run: str) -> Iterator[Block]:
    """The newest bisection of a run: verdict, noise floor and arms; how to run one where there is none."""
    yield heading("Proof by experiment", "one setting changed at a time, on a real engine")
    if document is None:
        yield text(f"None yet. Run: `logprobe bisect {run} --model VERSION=PATH` (`docs/proof.md`).")
        return
    baseline = document["baseline"]
    yield text(headline(document))
    yield text(
        f"K3 between r and t {number(baseline['k3'])}, noise floor {number(baseline['noise_floor'])}; "
        f"by {document['author'] or 'unknown'}, {document['at'][:16].replace('T', ' ')}."
    )
    tones = {"this is it": "critical", "contributes": "warning"}
    rows = [row(arm_cells(arm), tone=tones.get(arm["verdict"], "")) for arm in document["arms"]]
    yield table("experiment", HEAD, rows, empty="No side departs, so no setting was tried.")


_KEY: Final = "diagnosis"
_DONE: Final = "accepted at"  # when something was last accepted or withdrawn in this session


def _acceptances(run: Run, view: RunView) -> Acceptances:
    """Read again whenever the run has something new: accepting makes it diagnosed again, and something was just
    done."""
    version = f"{view.version} {st.session_state.get(_DONE)} {asked('reference')}"
    acceptances = read_once(f"acceptances {run.name}", version, lambda: _read_acceptances(run.name))
    if acceptances is None:
        return Acceptances(blocked=blocked(run.name) or "accepted findings could not be read")
    return replace(acceptances, blocked=blocked(run.name))


def _experiment(run: Run, view: RunView) -> Mapping[str, Any] | None:
    """The newest bisection; read again whenever the run has something new, as finishing one makes it diagnosed
    again."""
    return read_once(f"experiment {run.name}", view.version, lambda: latest(feed(), run.name, "bisect"))


def _proof(run: Run, view: RunView) -> Picture | None:
    """Read again with every diagnosis, not with every step."""
    diagnosis = view.diagnosis
    if diagnosis is None:
        return None
    steps = view.series.steps[view.series.steps <= diagnosis.step].tolist()
    version = f"{run.name} {diagnosis.at} {diagnosis.step}"
    return read_once(f"proof {run.name}", version, lambda: culprit.read(feed(), run.name, diagnosis.document, steps))


def _read_acceptances(run: str) -> Acceptances:
    reference = asked("reference")
    expected = expectation(feed(), run, None if reference == run else reference)
    return Acceptances(queries.acceptances_read(feed(), run=run).to_pylist(), expected)


def _do(run: str, wanted: Mapping[str, Any]) -> str:
    """Does what was confirmed; says what came of it. Raises `LogprobeError`."""
    request = {"run": run, "cause": wanted.get("cause"), "author": wanted.get("by")}
    st.session_state[_DONE] = wanted.get("at")
    if wanted.get("id") == "withdraw":
        ask(WITHDRAW, request)
        return f"{wanted.get('cause')} is no longer accepted, from the next diagnosis on."
    because, up_to = wanted.get("because"), wanted.get("up_to")
    done = ask(ACCEPT, {**request, "because": because, "up_to": up_to, "source": "page"})
    return f"{wanted.get('cause')} is accepted up to a K3 of {number(done['up_to'])}, from the next diagnosis on."


@cache
def _parities() -> StaleCache:
    return StaleCache(16, rest=0, times=PACE)


def draw(run: Run, view: RunView) -> None:
    """Draws the page."""
    with guarded(_KEY):
        place = f"{_KEY} {run.name}"
        proof = _proof(run, view)
        seen = None if proof is None else picture(proof, theme(), Look.of(asked, view.series.steps).window)
        blocks = [
            *said(place),
            *diagnosis_blocks(view, _acceptances(run, view), links(view, run, "diagnosis"), seen),
            *experiment_blocks(_experiment(run, view), run.name),
        ]
        wanted = report(_KEY, "diagnosis", blocks)
        attempt(place, wanted, lambda asked: _do(run.name, asked))
    with guarded("parity"):
        _parity(run)


def _parity(run: Run) -> None:
    runs = {listed.name: listed for listed in feed().snapshot(run.name).runs or ()}
    name = asked("reference")
    reference = runs.get(name or "") if name != run.name else None
    parity = kept(f"parity {run.name} {reference and reference.name}", lambda: _read(run, reference))
    if parity is None:
        return
    data = parity_data(
        parity,
        reference=None if reference is None else reference.name,
        others=[other for other in runs if other != run.name],
        notes=_notes(name, run, runs),
    )
    show("parity", "parity", data)


def _notes(name: str | None, run: Run, runs: Mapping[str, Any]) -> list[str]:
    if name == run.name:
        return ["A run cannot be its own reference."]
    return [] if name is None or name in runs else [f"There is no run called {name} here."]


def _read(run: Run, reference: Run | None) -> Parity:
    other = None if reference is None else reference.name
    states = (state_of(run), None if reference is None else state_of(reference))
    name = (str(home()), run.name, other)
    return _parities().get(name, states, lambda: parity_of(feed(), run.name, reference=other, name=RECIPE)).value
