"""`logprobe alerts accept RUN [CAUSE]`: findings that people live with: which there are, accepting one, taking it back.

The JSON form: ``{"run", "accepted": [{"cause", "because", "up_to", "was", "by", "at", "source"}], "findings":
[{"cause", "k3", "vetoes"}], "expectation": {"run", "k3", "steps", "same_setup"} | null}``; ``k3`` of a finding is what
it explains now.
"""

from __future__ import annotations

import json
import sys
from typing import TypedDict

from logprobe.alerts.rules.acceptance import ACCEPT, ACTIONS, WITHDRAW
from logprobe.app.surface.arguments import Arguments, home_path, login, require_run
from logprobe.app.text import tables
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.judging.accepted import accepted, expectation, explained
from logprobe.monitor.judging.document import AcceptanceDocument, DiagnosisDocument
from logprobe.monitor.judging.judgement import MARGIN
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.actions import perform


def run(arguments: Arguments) -> int:
    """Accept, withdraw, or list."""
    home = Home(home_path(arguments))
    if arguments.cause is not None:
        sys.stderr.write(f"{harmless(_do(home, arguments))}\n")
    elif arguments.reason or arguments.withdraw or arguments.up_to is not None:
        raise ConfigurationError(
            "no finding named: give its cause after the run, or only the run to list accepted findings"
        )
    document = describe(home, arguments.name, arguments.like)
    if arguments.json or arguments.cause is None:
        tables.show(document, lambda: words(document), as_json=arguments.json)
    return 0


def _do(home: Home, arguments: Arguments) -> str:
    """Do what is asked and return what was done. Raises `ConfigurationError`."""
    request = {"run": arguments.name, "cause": arguments.cause, "author": login()}
    if arguments.withdraw:
        perform(ACTIONS, home, WITHDRAW, request)
        return f"{arguments.cause} is no longer accepted: it alerts and vetoes again"
    if not arguments.reason:
        raise ConfigurationError('--reason is required, e.g. --reason "bf16 by choice"')
    up_to = arguments.up_to if arguments.like is None else _like(home, arguments)
    done = perform(ACTIONS, home, ACCEPT, {**request, "because": arguments.reason, "up_to": up_to, "source": "command"})
    return f"{arguments.cause} is accepted up to a K3 of {number(done['up_to'])}; above that it counts again"


def _like(home: Home, arguments: Arguments) -> float:
    """Return the limit that another run suggests. Raises `ConfigurationError` when its K3 was not measured."""
    with open_reader(home) as reader:
        expected = expectation(reader, arguments.name, arguments.like)
    if expected is None:
        raise ConfigurationError(
            f"no K3 was measured in a run {arguments.like!r} of this home; `logprobe runs` lists them"
        )
    return MARGIN * expected.k3


class Accepted(AcceptanceDocument):
    """One acceptance with its cause."""

    cause: str


class Found(TypedDict):
    """A finding. `k3`: what it explains now; None: not known."""

    cause: str
    k3: float | None
    vetoes: bool | None


class Expected(TypedDict):
    """The K3 that another run lets expect."""

    run: str
    k3: float
    steps: int
    same_setup: bool
    words: str


class Acceptances(TypedDict):
    """Accepted findings, present findings and the level of another run, or None without one."""

    run: str
    accepted: list[Accepted]
    findings: list[Found]
    expectation: Expected | None


def describe(home: Home, run: str, reference: str | None = None) -> Acceptances:
    """Read accepted and present findings and the level of another run. Raises `ConfigurationError` for an
    unknown run."""
    with open_reader(home) as reader:
        require_run(run, queries.app_runs(reader)["run"].to_pylist())
        rows = queries.diagnosis_latest(reader, run=run).to_pylist()
        expected = expectation(reader, run, reference)
        accepted_now = accepted(reader, run)
    diagnosis: DiagnosisDocument | None = json.loads(rows[0]["document"]) if rows else None
    return {
        "run": run,
        "accepted": [{"cause": acceptance.cause, **acceptance.document()} for acceptance in accepted_now],
        "findings": [] if diagnosis is None else _findings(diagnosis),
        "expectation": None
        if expected is None
        else {
            "run": expected.run,
            "k3": expected.k3,
            "steps": expected.steps,
            "same_setup": expected.same_setup,
            "words": expected.words,
        },
    }


def _findings(diagnosis: DiagnosisDocument) -> list[Found]:
    return [
        {
            "cause": finding["cause"],
            "k3": explained(diagnosis, finding["cause"]),
            "vetoes": finding["vetoes"],
        }
        for finding in diagnosis["findings"]
    ]


def words(document: Acceptances) -> str:
    """Return the document as text."""
    k3 = {finding["cause"]: finding["k3"] for finding in document["findings"]}
    rows = [
        [
            accepted["cause"],
            number(k3.get(accepted["cause"])),
            _limit(accepted),
            accepted["because"],
            accepted["by"],
            (accepted["at"] or "")[:16],
        ]
        for accepted in document["accepted"]
    ]
    head = ["accepted", "K3 now", "up to", "because", "by", "at (UTC)"]
    lines = [f"{tables.fitted(head, rows)}\n" if rows else f"no accepted findings in {harmless(document['run'])}\n"]
    others = sorted(k3.keys() - {accepted["cause"] for accepted in document["accepted"]})
    if others:
        explains = ", ".join(f"{cause} (K3 {number(k3[cause])})" for cause in others)
        lines.append(f"found and not accepted: {explains}\n")
    if document["expectation"] is not None:
        lines.append(f"expectation: {harmless(document['expectation']['words'])}\n")
    return "".join(lines)


def _limit(accepted: Accepted) -> str:
    if accepted["up_to"] is not None:
        return number(accepted["up_to"])
    return f"{MARGIN:g} × first steps" if accepted["was"] is None else number(MARGIN * accepted["was"])
