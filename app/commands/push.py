"""`logprobe push`: log a run's computed metrics somewhere else, each step once."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from logprobe.app.commands.ingest import take
from logprobe.app.parsers.arguments import home_path
from logprobe.app.processes import logger
from logprobe.app.runs import run_of, run_reader
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.home import Home
from logprobe.monitor.loggers import Logger, open_target, push


def run(arguments: argparse.Namespace) -> int:
    """Pushes everything that is there, also the newest step, and says how much was new."""
    home, settings = Home(home_path(arguments)), _settings(arguments)
    if home.spool.is_dir():
        take(home)
    with run_reader(arguments) as reader:
        target = open_target(settings, arguments.name, home)
        try:
            logged = push(reader, arguments.name, target)
            judgement = run_of(reader, arguments.name, datetime.now(UTC)).judgement
            if judgement.verdict is not None or judgement.alerts:
                target.stand(logger.standing(judgement, arguments.name, arguments.page))
        finally:
            target.close()
    print(
        f"{logged:,} steps of {harmless(arguments.name)} pushed to {settings.to}"
        + ("" if logged else "; it has them already")
    )
    return 0


def _settings(arguments: argparse.Namespace) -> Logger:
    given: dict[str, object] = {
        name: value
        for name in ("project", "entity", "dir", "offline")
        if (value := getattr(arguments, name)) not in {None, False}
    }
    return logger.checked("--to", [{"to": arguments.to, **given}])[0]
