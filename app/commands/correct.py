"""`logprobe correct RUN [off|armed|on]`: show the effect of importance sampling on a run, or switch it.

off: no correction applies, regardless of trainer and service (the kill switch). armed: the controller switches a
correction on when it is the right remedy. on: a correction is switched on now, unless it is refused. The JSON form:
``{"run", "state": as in `logprobe show`, "preview": {"step", "config", "fingerprint", "preview": {"steps", "tokens",
"masked_tokens", …} | null, "refusal": {"reason", "words", "about"} | null, "instead"}}``. The exit code is 1 if a
switch or the correction of ``--preset`` is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

from logprobe.alerts.controller.job import perform
from logprobe.alerts.controller.standing import Standing
from logprobe.app.surface.arguments import Arguments, home_path, login, refuse_usage
from logprobe.app.text import tables
from logprobe.app.view.correction import CorrectionState, Foreseen, foresee, foreseen, state_of
from logprobe.app.view.correction import words as facts
from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.home import Home
from logprobe.monitor.reader import open_reader

_COMMANDS: Final = {"off": "stop", "armed": "armed", "on": "on"}


def run(arguments: Arguments) -> int:
    """Switch or show the correction. Return 1 if it is refused."""
    if arguments.preset is not None and arguments.state is not None:
        refuse_usage("--preset only previews; to switch on a correction, name it in the settings (docs/correction.md)")
    home = Home(home_path(arguments))
    if arguments.state is not None:
        return _switch(home, arguments)
    preview = foresee(home, arguments.name, arguments.preset)
    with open_reader(home) as reader:
        state = state_of(reader, home, arguments.name, Standing.read(reader, arguments.name))
    document = {"run": arguments.name, "state": state, "preview": preview}
    tables.show(document, lambda: _text(state, preview), as_json=arguments.json)
    return int(arguments.preset is not None and preview["refusal"] is not None)


def _switch(home: Home, arguments: Arguments) -> int:
    """Carry out the command and print the actions taken. Release a kill switch first."""
    asked = {"run": arguments.name, "by": login(), "force": arguments.force}
    stopped = DirectiveFile(home.path, arguments.name).stop_path.exists()
    commands = [*(["release"] if stopped and arguments.state != "off" else []), _COMMANDS[arguments.state]]
    actions: list[Any] = []
    for command in commands:
        actions += perform(home, {**asked, "command": command})["actions"]
    if arguments.json:
        print(tables.dump({"run": arguments.name, "actions": actions}))
    for action in actions:
        print(harmless(action["words"]), file=sys.stderr)
    if not actions:
        print("no change: already in that state", file=sys.stderr)
    return int(any(action["name"] == "refused" for action in actions))


def _text(state: CorrectionState, preview: Foreseen) -> str:
    lines = [tables.paragraph(text, first=f"{name:<20} ") for name, text in facts(state) if text]
    previewed = [f"{name:<17} {harmless(value)}" for name, value in foreseen(preview)]
    return "\n".join([*lines, *_actions(state), "", "what it would do to recent steps", *previewed, ""])


def _actions(state: CorrectionState) -> Iterator[str]:
    if state["actions"]:
        rows = [[action["step"], action["name"], action["reason"], action["words"]] for action in state["actions"]]
        yield ""
        yield tables.fitted(["step", "action", "reason", "why"], rows)
