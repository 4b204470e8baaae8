"""Diagnosis page: the side at fault, findings and evidence, missing inputs, and parity with the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import streamlit as st

from logprobe.alerts.rules.acceptance import ACCEPT, MARGIN, WITHDRAW
from logprobe.app.dashboard import acting, data, ui
from logprobe.app.dashboard.acting import BY, Field
from logprobe.app.dashboard.figures import Chart, Curve, Row, rows_chart
from logprobe.app.dashboard.theme import Theme
from logprobe.app.dashboard.told import tell
from logprobe.app.dashboard.ui import Line
from logprobe.app.dashboard.verdict import LatestDiagnosis, verdict_of
from logprobe.app.runs import Run
from logprobe.app.text.diagnosis import HEAD, arm_cells, headline
from logprobe.app.text.numbers import number
from logprobe.app.view import parity
from logprobe.app.view.story import findings, not_measured
from logprobe.monitor import queries
from logprobe.monitor.judging import culprit
from logprobe.monitor.judging.accepted import explained
from logprobe.monitor.judging.culprit import Picture
from logprobe.monitor.judging.document import DiagnosisDocument, FindingDocument
from logprobe.monitor.judging.parity import compare
from logprobe.monitor.judging.proven import latest

_PARITY_TONES: Final = {"at_parity": "good", "not_at_parity": "bad", "unknown": "unsure"}
_DASHES: Final = ("solid", "dash")  # of the affected tokens and of the others
_PACE: Final = 10.0  # times what a comparison took


def draw(run: Run) -> None:
    """Draw the page."""
    found = data.diagnosis_of(run)
    steps = data.frame_of(run)["step"].to_list()
    ui.verdict(verdict_of(run.judgement, found, steps))
    if found is not None:
        with ui.guarded("picture of the cause"):
            _picture(run, found, steps)
        tell(findings(found.document, found.standing))
        _accepting(run, found.document)
        tell(not_measured(found.document))
        with ui.guarded("experiment"):
            version = data.version_of(run)
            _experiment(
                data.kept(("experiment", run.name), version, lambda: latest(data.reader(), run.name, "bisect")),
                run.name,
            )
        with ui.guarded("parity"):
            _parity(run)


# --- What is wrong ---


def _picture(run: Run, found: LatestDiagnosis, steps: Sequence[int]) -> None:
    """Draw K3 of the affected tokens and of the others. The data is reread after a diagnosis, not after each step."""
    seen = [step for step in steps if step <= found.step]
    proof = data.kept(
        ("culprit", run.name), run.news, lambda: culprit.read(data.reader(), run.name, found.document, seen)
    )
    if proof is not None:
        ui.title("K3 by step", "some steps are left out" if proof.sampled else "")
        ui.plot("culprit", picture(proof, ui.theme(), ui.window(steps)))


def picture(proof: Picture, theme: Theme, window: tuple[int, int] | None = None) -> Chart:
    """Return the chart that shows the cause, on a logarithmic axis if all values permit one."""
    curves, newest = [], []
    for at, (name, points) in enumerate(proof.lines.items()):
        step, k3 = np.array(points, dtype=np.float64).reshape(-1, 2).T  # None is NaN
        curves.append(Curve(name, step, k3, theme.accent if at == 0 else theme.neutral, _DASHES[at], name))
        known = k3[np.isfinite(k3)]
        newest.append(f"{name} {number(float(known[-1]) if len(known) else None)}")
    values = np.concatenate([curve.y for curve in curves])
    limits = [] if proof.limit is None else [(proof.limit_name, proof.limit)]
    log = bool(np.isfinite(values).any() and np.nanmin(values) > 0)
    row = Row("K3", curves, unit="nats", log=log, limits=limits, height=170)
    since = "" if proof.since is None else f" Since step {proof.since:,}."
    alt = f"{proof.words}{since} Newest: {', '.join(newest)}."
    return rows_chart(
        f"{proof.cause} {window}",
        [row],
        theme,
        alt=alt,
        since=proof.since,
        window=window,
        legend=len(curves) > 1,
    )


def _experiment(document: Mapping[str, Any] | None, run: str) -> None:
    """Draw the newest bisection of the run, with verdict, noise floor and arms. Without one, show its command."""
    ui.title("Proof by experiment", "one setting changed at a time, on a real engine")
    if document is None:
        ui.write(f"None yet. Run: `logprobe bisect {run} --model VERSION=PATH` (`docs/compare.md`).")
        return
    baseline = document["baseline"]
    ui.write(headline(document))
    who = f"by {document['author'] or 'unknown'}, {document['at'][:16].replace('T', ' ')}"
    ui.write(f"K3 between r and t {number(baseline['k3'])}, noise floor {number(baseline['noise_floor'])}; {who}.")
    tones = {"this is it": "critical", "contributes": "warning"}
    lines = [Line(arm_cells(arm, document), tones.get(arm["verdict"], "")) for arm in document["arms"]]
    ui.table("experiment", HEAD, lines, empty="No side departs, so no setting was tried.")


# --- What is accepted ---


def _acceptances(run: Run) -> Sequence[Mapping[str, Any]]:
    """Return the acceptances of the run. They are reread with each new version, because an acceptance causes a new
    diagnosis.
    """
    version = (data.version_of(run), st.session_state.get("accepted"))
    place = ("acceptances", run.name)
    return data.kept(place, version, lambda: queries.acceptances_read(data.reader(), runs=[run.name]).to_pylist())


def _accept(run: Run, document: DiagnosisDocument, finding: FindingDocument) -> None:
    """Draw a button to accept a finding, with a limit suggested by the size of the finding."""
    cause, now = finding["cause"], explained(document, finding["cause"])
    suggested = None if now is None else MARGIN * now
    veto = " It still vetoes a correction: importance weights of a wrong distribution are wrong."
    words = (
        f"`{cause}` stays on this page; it neither alerts nor vetoes a correction until it explains more than the limit."
        f"{veto if finding['layer'] == 'semantic' else ''}"
    )
    limit = Field("up_to", "up to a K3 of", "" if suggested is None else f"{suggested:.2g}", required=suggested is None)

    def do(given: Mapping[str, str]) -> str:
        request = {"run": run.name, "cause": cause, "author": given["by"]}
        done = acting.ask(ACCEPT, {**request, "because": given["because"], "up_to": given["up_to"]})
        st.session_state["accepted"] = (cause, given["because"])
        return f"{cause} is accepted up to a K3 of {number(done['up_to'])}, from the next diagnosis on."

    label = f"Accept {cause.replace('_', ' ')}"
    acting.act(label, words, do, key=f"accept {cause}", fields=(Field("because", "because"), limit, BY))


def _accepting(run: Run, document: DiagnosisDocument) -> None:
    """Draw buttons to accept findings that need action, and list all acceptances."""
    accepted = _acceptances(run)
    for finding in document["findings"]:
        if finding["urgency"] != "informational" and finding["accepted"] is None:
            _accept(run, document, finding)
    if not accepted:
        return
    by_cause = {finding["cause"]: finding for finding in document["findings"]}
    ui.title("Accepted", "neither alerts nor vetoes a correction, up to the limit")
    lines = [_acceptance(entry, by_cause.get(entry["cause"]), document) for entry in accepted]
    ui.table("accepted", ("finding", "K3 now", "up to", "because", "by"), lines)
    entry = accepted[ui.pick("accepted finding", [each["cause"] for each in accepted], "accepted finding")]
    cause = entry["cause"]

    def do(given: Mapping[str, str]) -> str:
        acting.ask(WITHDRAW, {"run": entry["match"], "cause": cause, "author": given["by"]})
        st.session_state["accepted"] = (cause, None)
        return f"{cause} is no longer accepted, from the next diagnosis on."

    words = f"`{cause}` alerts and vetoes a correction again, in {entry['match']}."
    acting.act(f"Withdraw {cause.replace('_', ' ')}", words, do, key=f"withdraw {cause}")


def _acceptance(entry: Mapping[str, Any], finding: FindingDocument | None, document: DiagnosisDocument) -> Line:
    back = finding is not None and finding["accepted"] is None
    cells = [
        entry["cause"].replace("_", " ") + (": beyond what was accepted" if back else ""),
        "not found" if finding is None else number(explained(document, entry["cause"])),
        number(entry["up_to"]),
        entry["because"],
        f"{entry['author']}, {entry['accepted_at']:%Y-%m-%d %H:%M} UTC",
    ]
    return Line(cells, "warning" if back else "")


# --- Parity ---


def _parity(run: Run) -> None:
    ui.title("Parity", "the run's settings against those that engine and trainer need to agree")
    read = partial(compare, data.reader(), run.name, name=parity.SHIPPED)
    found = data.kept(("parity", run.name), data.version_of(run), read, pace=_PACE)
    ui.write(f"{parity.sentence(found)}.", _PARITY_TONES[found.verdict])
    tell(parity.sections(found))
