"""`logprobe probe RUN --url URL`: the running engine scores a few of its newest sequences again, once.

The JSON form is public API, one document, unknown is null:

    {"run", "version", "gap": {"a": "r", "b": "r_again", "k3", "abs_diff_mean", "interval", "tokens", "broken"},
     "cached": {…}, "uncached": {…}, "sequences", "scored_tokens", "reason", "why"}

Exit code 3: it could not be measured; `reason` says why.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from logprobe.app.parsers.arguments import home_path
from logprobe.app.processes import probe_part
from logprobe.app.runs import run_reader
from logprobe.app.text import tables
from logprobe.app.text.numbers import interval
from logprobe.collectors.plain_text import harmless
from logprobe.monitor.home import Home
from logprobe.monitor.proof.live.look import SETTLE, Look, confirmed, look
from logprobe.monitor.reader import open_reader

_NOT_MEASURED: Final = 3


def run(arguments: argparse.Namespace) -> int:
    """Looks once; records nothing."""
    given = {
        "url": arguments.url,
        "replica": arguments.replica,
        "sequences": arguments.sequences,
        "share": arguments.share,
    }
    options = {"key_env": arguments.key_env, **({} if arguments.running is None else {"running": arguments.running})}
    (settings,) = probe_part.checked("logprobe probe", [{**given, **options}])
    home = Home(home_path(arguments))
    with run_reader(arguments) as reader:
        seen = look(reader, home, arguments.name, probe_part.engine(settings), settings)
    if seen.gap is not None:
        time.sleep(SETTLE.total_seconds())
        with open_reader(home.path) as reader:
            seen = confirmed(seen, reader, home, settings.replica)
    tables.show(seen.document(), lambda: text(seen), as_json=arguments.json)
    return 0 if seen.gap is not None else _NOT_MEASURED


def text(seen: Look) -> str:
    """The look for people."""
    if seen.gap is None:
        return f"not measured: {harmless(seen.why)}\n"
    rows = [
        [name, gap.k3, interval(gap.interval), gap.abs_diff_mean, gap.tokens, gap.broken or None]
        for name, gap in (("all", seen.gap), ("with cached prompt tokens", seen.cached), ("without", seen.uncached))
        if gap is not None
    ]
    header = ["sequences", "K3", "95 %", "mean |d|", "tokens", "broken"]
    summary = f"{seen.sequences} sequences of weight version {seen.version}, {seen.scored} tokens scored"
    return f"{tables.aligned(header, rows)}\n\n{harmless(summary)}\n"
