"""`logprobe demo`: recorded runs, replayed live through recorder, spool, service and dashboard."""

from __future__ import annotations

import argparse

from logprobe.app.arguments import port


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--run", action="append", metavar="NAME", help="only this recorded run (may be repeated)")
    parser.add_argument("--speed", type=_speed, default=5.0, metavar="STEPS_PER_S", help="pace (default: %(default)s)")
    parser.add_argument("--port", type=port, help="of the dashboard; 0: any free one (default: 8501, or a free one)")
    parser.add_argument("--data", metavar="DIR", help="folder with recorded runs (default: sample_data of the checkout)")
    # A home of real runs, named by the environment, is no place for a demo.
    parser.set_defaults(home=None)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= 1e6:  # noqa: PLR2004 - also refuses NaN
        raise argparse.ArgumentTypeError(f"{text!r} is no pace; give steps per second, above 0")
    return speed


def run(arguments: argparse.Namespace) -> int:
    """Returns after Ctrl-C or SIGTERM."""
    from logprobe.app import demo

    demo.run(
        names=arguments.run, speed=arguments.speed, port=arguments.port, data=arguments.data, home=arguments.home
    )
    return 0
