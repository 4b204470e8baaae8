"""`logprobe mis RUN`: masked importance sampling of a run: whether it is on, what was decided, and switching it.

The JSON form: ``{"run", "mode", "phase", "stopped", "from_step", "config", "actions": […]}``.
"""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from typing import Any

from logprobe.alerts.controller import policy_file
from logprobe.alerts.controller.job import perform
from logprobe.app import tables
from logprobe.app.arguments import home_path, require_run
from logprobe.collectors.directives import DirectiveFile
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

_WORDS = 110  # characters of an action's sentence in the table


def run(arguments: argparse.Namespace) -> int:
    """Shows, or does what COMMAND says; 1 when it was refused."""
    home = Home(home_path(arguments))
    refused = False
    if arguments.do is not None:
        request = {"run": arguments.name, "command": arguments.do, "by": arguments.by or getpass.getuser()}
        done = perform(home, {**request, "force": arguments.force})
        refused = any(action["name"] == "refused" for action in done["actions"])
        for action in done["actions"]:
            print(tables.harmless(action["words"]), file=sys.stderr)
        if not done["actions"]:
            print("nothing to do: it is so already", file=sys.stderr)
    document = describe(home, arguments.name)
    if arguments.json:
        print(tables.dump(document))
    elif arguments.do is None:
        sys.stdout.write(words(document))
    return int(refused)


def describe(home: Home, run: str) -> dict[str, Any]:
    """Where the correction of a run stands. Raises `ConfigurationError` for an unknown run."""
    with open_reader(home) as reader:
        require_run(run, reader.read("app_runs")["run"].to_pylist())
        rows = reader.read("controller_read", run=run).to_pylist()
        actions = reader.read("controller_actions", run=run).to_pylist()
    control = json.loads(rows[0]["control"]) if rows else {}
    policy = policy_file.load(home.path)(run)
    return {
        "run": run,
        "mode": control.get("mode") or policy.mode.value,
        "phase": control.get("phase", "idle"),
        "stopped": DirectiveFile(home.path, run).stop_path.exists(),
        "from_step": control.get("from_step"),
        "config": control.get("config") or policy.correction.to_dict(),
        "actions": [{**action, "details": json.loads(action["details"])} for action in actions],
    }


def words(document: dict[str, Any]) -> str:
    """The document for people."""
    stated = {name: value for name, value in document["config"].items() if value not in {None, False}}
    facts = [
        ("run", document["run"]),
        ("mode", document["mode"]),
        ("phase", document["phase"] + ("; the kill switch is set, so nothing applies" if document["stopped"] else "")),
        ("from step", tables.cell(document["from_step"])),
        ("correction", ", ".join(f"{name}={value}" for name, value in stated.items())),
    ]
    lines = [f"{name:<12} {tables.harmless(value)}" for name, value in facts]
    if not document["actions"]:
        return "\n".join([*lines, "actions      none"]) + "\n"
    rows = [[a["step"], a["name"], a["reason"], a["words"]] for a in document["actions"]]
    table = tables.aligned(["step", "action", "reason", "why"], rows, widest=_WORDS)
    return "\n".join([*lines, "", table]) + "\n"
