"""`logprobe show RUN`: show a run in one view, or its data with ``--tokens`` or ``--metrics``.

The exit code is 2 if the run is critical. The JSON forms are those of `logprobe.app.view.run_view`,
`logprobe.app.view.tokens` and `logprobe.app.view.metrics`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from logprobe.app.runs import run_reader
from logprobe.app.surface.arguments import Arguments, home_path, refuse_usage

_CRITICAL: Final = 2
_OF_METRICS: Final = ("metric", "slice", "per_step", "peer", "option")
_FLAGS: Final = {"per_step": "--per-step", "peer": "--as"}


def run(arguments: Arguments) -> int:
    """Print the requested view."""
    _check(arguments)
    if arguments.metrics:
        from logprobe.app.view import metrics  # noqa: PLC0415 - each form loads what it needs

        return metrics.show(arguments)
    if arguments.tokens:
        from logprobe.app.view import tokens  # noqa: PLC0415

        return tokens.show(arguments)
    return _show(arguments)


def _check(arguments: Arguments) -> None:
    """End with a usage error if options exclude one another."""
    given = [_FLAGS.get(name, f"--{name}") for name in _OF_METRICS if getattr(arguments, name)]
    if sum((arguments.metrics, arguments.tokens, bool(arguments.html))) > 1:
        refuse_usage("--tokens, --metrics and --html exclude one another; pass one of them")
    if given and not arguments.metrics:
        refuse_usage(f"{', '.join(given)}: pass --metrics, too")
    if arguments.sequence and not arguments.tokens:
        refuse_usage("--sequence: pass --tokens, too")
    if arguments.pair and not arguments.tokens:
        refuse_usage("--pair: pass --tokens, too")
    if arguments.name is None and not arguments.metrics:
        refuse_usage("no run named; pass RUN, see `logprobe runs`")


def _show(arguments: Arguments) -> int:
    from logprobe.app.text import tables  # noqa: PLC0415
    from logprobe.app.view import html, run_view, story  # noqa: PLC0415

    with run_reader(arguments) as reader:
        home, whole = Path(home_path(arguments)), bool(arguments.html)
        view = run_view.read(reader, home, arguments.name, steps=arguments.steps, account=whole)
    if arguments.html:
        html.write(Path(arguments.html), html.report(view))
        print(f"wrote {arguments.html}", file=sys.stderr)
        return 0
    tables.show(
        view.document(), lambda: story.terminal(story.headline(view), story.of_view(view)), as_json=arguments.json
    )
    return _CRITICAL if view.severity == "critical" else 0
