"""`logprobe alerts accept RUN CAUSE`: accept a finding, or withdraw the acceptance.

RUN may be a pattern with a *. `logprobe show RUN` lists acceptances. The JSON form: ``{"run", "cause", "up_to"}``.
``up_to`` is null after a withdrawal.
"""

from __future__ import annotations

import sys

from logprobe.alerts.rules.acceptance import ACCEPT, ACTIONS, WITHDRAW
from logprobe.app.surface.arguments import Arguments, home_path, login
from logprobe.app.text import tables
from logprobe.app.text.numbers import number
from logprobe.collectors.errors import ConfigurationError
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.home import Home
from logprobe.monitor.service.actions import perform


def run(arguments: Arguments) -> int:
    """Accept a finding, or withdraw its acceptance. Raises `ConfigurationError`."""
    home = Home(home_path(arguments))
    request = {"run": arguments.name, "cause": arguments.cause, "author": login()}
    if arguments.withdraw:
        perform(ACTIONS, home, WITHDRAW, request)
        up_to, said = None, f"{arguments.cause} is no longer accepted: it alerts and vetoes again"
    elif not arguments.reason:
        raise ConfigurationError('--reason is required, e.g. --reason "bf16 by choice"')
    else:
        terms = {"because": arguments.reason, "up_to": arguments.up_to}
        up_to = perform(ACTIONS, home, ACCEPT, {**request, **terms})["up_to"]
        said = f"{arguments.cause} is accepted up to a K3 of {number(up_to)}; above that it counts again"
    sys.stderr.write(f"{harmless(said)}\n")
    if arguments.json:
        print(tables.dump({"run": arguments.name, "cause": arguments.cause, "up_to": up_to}))
    return 0
