"""`logprobe accept RUN [CAUSE]`: findings that people live with: which there are, accepting one, taking it back.

The JSON form: ``{"run", "accepted": [{"cause", "because", "up_to", "was", "by", "at", "source"}], "findings": [{"cause", "k3", "vetoes"}],
"expectation": {"run", "k3", "steps", "same_setup"} | null}``; ``k3`` of a finding is what it explains now.
"""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from dataclasses import asdict
from typing import Any

from logprobe.alerts.acceptance.actions import ACCEPT, ACTIONS, WITHDRAW
from logprobe.app.parsers.arguments import home_path, require_run
from logprobe.app.text import tables
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor import queries
from logprobe.monitor.diagnosis.accepted import accepted, expectation, explained
from logprobe.monitor.diagnosis.result import MARGIN
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader
from logprobe.monitor.service.actions import perform


def run(arguments: argparse.Namespace) -> int:
    """Accepts, takes back, or lists."""
    home = Home(home_path(arguments))
    if arguments.cause is not None:
        sys.stderr.write(f"{harmless(_do(home, arguments))}\n")
    elif arguments.because or arguments.withdraw or arguments.up_to is not None:
        raise ConfigurationError(
            "no finding named: give its cause after the run, or only the run to list accepted findings"
        )
    document = describe(home, arguments.name, arguments.like)
    if arguments.json or arguments.cause is None:
        tables.show(document, lambda: words(document), as_json=arguments.json)
    return 0


def _do(home: Home, arguments: argparse.Namespace) -> str:
    """Does what is asked and says what was done. Raises `ConfigurationError`."""
    request = {"run": arguments.name, "cause": arguments.cause, "author": arguments.by or getpass.getuser()}
    if arguments.withdraw:
        perform(ACTIONS, home, WITHDRAW, request)
        return f"{arguments.cause} is no longer accepted: it alerts and vetoes again"
    if not arguments.because:
        raise ConfigurationError('--because is required, e.g. --because "bf16 by choice"')
    up_to = arguments.up_to if arguments.like is None else _like(home, arguments)
    done = perform(
        ACTIONS, home, ACCEPT, {**request, "because": arguments.because, "up_to": up_to, "source": "command"}
    )
    return f"{arguments.cause} is accepted up to a K3 of {number(done['up_to'])}; above that it counts again"


def _like(home: Home, arguments: argparse.Namespace) -> float:
    """The limit that another run lets expect. Raises `ConfigurationError` when its gap was not measured."""
    with open_reader(home) as reader:
        found = expectation(reader, arguments.name, arguments.like)
    if found is None:
        raise ConfigurationError(
            f"no K3 was measured in a run {arguments.like!r} of this home; `logprobe runs` lists them"
        )
    return MARGIN * found.k3


def describe(home: Home, run: str, reference: str | None = None) -> dict[str, Any]:
    """What is accepted of a run, what is found, and what another run lets expect. Raises `ConfigurationError` for an unknown run."""
    with open_reader(home) as reader:
        require_run(run, queries.app_runs(reader)["run"].to_pylist())
        rows = queries.diagnosis_latest(reader, run=run).to_pylist()
        known = json.loads(rows[0]["document"]) if rows else {"findings": []}
        expected = expectation(reader, run, reference)
        accepted_now = accepted(reader, run)
    return {
        "run": run,
        "accepted": [{"cause": each.cause, **each.document()} for each in accepted_now],
        "findings": [
            {"cause": each["cause"], "k3": explained(known, each["cause"]), "vetoes": each.get("vetoes")}
            for each in known["findings"]
        ],
        "expectation": None if expected is None else {**asdict(expected), "words": expected.words},
    }


def words(document: dict[str, Any]) -> str:
    """The document for people."""
    found = {each["cause"]: each["k3"] for each in document["findings"]}
    rows = [
        [each["cause"], number(found.get(each["cause"])), _limit(each), each["because"], each["by"], each["at"][:16]]
        for each in document["accepted"]
    ]
    head = ["accepted", "K3 now", "up to", "because", "by", "at (UTC)"]
    lines = [f"{tables.aligned(head, rows)}\n" if rows else f"no accepted findings in {harmless(document['run'])}\n"]
    others = sorted(found.keys() - {each["cause"] for each in document["accepted"]})
    if others:
        explains = ", ".join(f"{cause} (K3 {number(found[cause])})" for cause in others)
        lines.append(f"found and not accepted: {explains}\n")
    if document["expectation"] is not None:
        lines.append(f"expectation: {harmless(document['expectation']['words'])}\n")
    return "".join(lines)


def _limit(each: dict[str, Any]) -> str:
    if each["up_to"] is not None:
        return number(each["up_to"])
    return f"{MARGIN:g} × first steps" if each["was"] is None else number(MARGIN * each["was"])
