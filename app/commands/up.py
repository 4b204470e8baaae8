"""`logprobe up`: run the monitor service and the dashboard until Ctrl-C."""

from __future__ import annotations

from typing import Final

from logprobe.app.dashboard.access.settings import Access, checked_url
from logprobe.app.ingesting import take
from logprobe.app.processes.stack import Stack
from logprobe.app.processes.supervisor import stop_on_signals
from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.collectors.addresses import checked as checked_address
from logprobe.collectors.environment import unknown
from logprobe.collectors.plain_text import complain
from logprobe.monitor.elsewhere import checked
from logprobe.monitor.home import Home

_TAKEN: Final = "{segments} segments, {tokens:,} tokens ingested; {quarantined} files moved aside\n"


def run(arguments: Arguments) -> int:
    """Run until Ctrl-C or SIGTERM, or with ``--once`` until the backlog is ingested."""
    if arguments.once:
        report = take(Home(home_path(arguments)))
        tables.show(report, lambda: _TAKEN.format(**report), as_json=arguments.json)
        return 0
    for words in unknown():
        complain(words)
    stack = stack_of(arguments)
    with stop_on_signals() as stop:
        stack.run(stop)
    complain("stopped")
    return 0


def stack_of(arguments: Arguments) -> Stack:
    """Return the processes that the arguments request, without starting them. Raises the errors of `Stack`."""
    home = Home(home_path(arguments))
    return Stack(
        home,
        access=_access(arguments),
        port=arguments.port,
        app=not arguments.no_app,
        options=[] if arguments.bucket is None else [f"--bucket={checked_address(arguments.bucket)}"],
        nodes=None if arguments.ray is None else arguments.ray or str(home.path),
        also=checked(arguments.also, home),
    )


def _access(arguments: Arguments) -> Access:
    public_url = None if arguments.public_url is None else checked_url(arguments.public_url)
    return Access(address=arguments.address, public_url=public_url, read_only=arguments.read_only)
