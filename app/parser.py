"""The grammar of the command line. Imports nothing heavy: ``logprobe --help`` works without extras, and at once."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NoReturn

from logprobe.app import alerts_parser
from logprobe.app.arguments import pace, port, positive, step_range

KEEP_GIB: Final = 50.0  # as `logprobe.monitor.retention.RetentionPolicy` has it
_HOME_HELP: Final = "folder that runs are recorded to (default: $LOGPROBE_HOME)"


class _Parser(argparse.ArgumentParser):
    """Says wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"logprobe: {message}; see: {self.prog} --help\n")


def build() -> argparse.ArgumentParser:
    """The parser of `logprobe`; ``command`` of what it parses names a module of `logprobe.app.commands`."""
    parser = _Parser(
        prog="logprobe",
        description="Live monitoring of the training-inference mismatch in reinforcement learning of language models.",
        epilog="`logprobe COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"logprobe {installed_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (words, declare) in _COMMANDS.items():
        command = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        command.add_argument("--home", metavar="DIR", default=os.environ.get("LOGPROBE_HOME") or None, help=_HOME_HELP)
        declare(command)
    return parser


def installed_version() -> str:
    """Version of this package."""
    try:
        return version("logprobe")
    except PackageNotFoundError:  # a checkout that was never installed
        return "unknown"


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=port, default=8501, help="of the dashboard; 0: any free one (default: %(default)s)"
    )
    parser.add_argument(
        "--address",
        "--host",
        default="127.0.0.1",
        help="that the dashboard listens on; other machines that reach it may look, and act with the token of `logprobe token` "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--public-url",
        metavar="URL",
        help="what browsers call the dashboard when a reverse proxy stands in front of it, e.g. https://host/logprobe (docs/security.md)",
    )
    parser.add_argument("--read-only", action="store_true", help="nothing can be done from the dashboard")
    parser.add_argument("--no-app", action="store_true", help="the monitor service only")
    parser.add_argument(
        "--keep-gib",
        type=positive,
        default=KEEP_GIB,
        metavar="N",
        help="raw tokens of the whole home, in GiB; the oldest go first, statistics and metrics stay; "
        "inf: no limit (default: %(default)s)",
    )
    parser.add_argument("--keep-days", type=positive, metavar="N", help="age of raw tokens (default: no limit)")
    parser.add_argument(
        "--service-address",
        metavar="ADDRESS",
        help="that the service listens on, for readers and trainers on other machines; they show LOGPROBE_TOKEN (default: 127.0.0.1)",
    )
    parser.add_argument("--service-port", type=port, metavar="PORT", help="of the service (default: any free one)")
    parser.add_argument(
        "--health-port", type=port, metavar="PORT", help="of the service's /healthz (default: any free one)"
    )


def _token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--new", action="store_true", help="make another one; who typed the old one has to type it")


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", action="append", metavar="NAME", help="only this recorded run (may be repeated)")
    parser.add_argument("--speed", type=pace, default=5.0, metavar="STEPS_PER_S", help="pace (default: %(default)s)")
    parser.add_argument("--port", type=port, help="of the dashboard; 0: any free one (default: 8501, or a free one)")
    parser.add_argument(
        "--data", metavar="DIR", help="folder with recorded runs (default: sample_data of the checkout)"
    )
    # A home of real runs, named by the environment, is no place for a demo.
    parser.set_defaults(home=None)


def _runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="a JSON array, one object per run")


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", nargs="?", help="a run that `logprobe runs` lists")
    parser.add_argument("--list", action="store_true", help="list every metric: key, meaning, formula")
    parser.add_argument("--steps", type=step_range, metavar="A:B", default=(None, None), help="only these steps")
    parser.add_argument("--metric", action="append", metavar="KEY", help="only this metric (may be repeated)")
    parser.add_argument(
        "--slice",
        metavar="DIMENSION",
        help="by part of the sequences and not by step: weight_lag, weight_versions, length, replica, environment, dataset, "
        "cached_prefix, finish_reason, rank, tag:NAME",
    )
    parser.add_argument(
        "--profile",
        metavar="DIMENSION",
        help="by token, from raw tokens: position, turn, probability, log_ratio (quantiles of |d|)",
    )
    parser.add_argument(
        "--pair",
        choices=("backend", "update", "total"),
        help="with --profile: the two log-probs compared (default: backend)",
    )
    parser.add_argument("--per-step", action="store_true", help="with --slice or --profile: every step by itself")
    parser.add_argument(
        "--as",
        dest="peer",
        metavar="FRAMEWORK",
        help="what another framework would log, from raw tokens: verl, ms-swift, slime, trl, pipelinerl, nemo-rl, prime-rl, "
        "openrlhf",
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="with --as: a setting of it (docs/peers.md; may be repeated)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
    parser.set_defaults(usage_error=parser.error)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument(
        "--steps", type=step_range, metavar="A:B", default=(None, None), help="look at these steps only"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")


def _parity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument(
        "--reference",
        metavar="RUN|RECIPE.yaml",
        help="a run of the same home, or a recipe (docs/parity.md; default: the recipe that comes with logprobe)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="RUN", nargs="+", help="a run of the home, HOME:RUN, a recorded run's folder, or a bundle"
    )
    parser.add_argument(
        "--baseline", metavar="RUN", required=True, help="what they are compared with, named the same way"
    )
    parser.add_argument(
        "--align",
        choices=("step", "tokens", "time", "onset"),
        default="step",
        help="what the runs' steps are aligned by (default: %(default)s)",
    )
    parser.add_argument("--metric", action="append", metavar="KEY", help="instead of the usual ones (may be repeated)")
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
    parser.add_argument("--html", metavar="FILE", help="also write a report: one file that needs no network")


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run of the home, HOME:RUN, a recorded run's folder, or a bundle")
    parser.add_argument("--html", metavar="FILE", help="where to (default: RUN.html in the working directory)")


def _mis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument(
        "do",
        metavar="COMMAND",
        nargs="?",
        choices=("on", "off", "suggest", "armed", "stop", "release", "preview"),
        help="on, off: switch it yourself; suggest, armed: what the controller may do by itself; stop: kill switch; release: take "
        "that back; preview: what the correction would do to the recent steps (default: show)",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="with preview: this correction, not the policy's (docs/correction.md)"
    )
    parser.add_argument("--by", metavar="NAME", help="who decides, for the audit (default: your user name)")
    parser.add_argument("--force", action="store_true", help="with on: against a refusal, which the audit notes")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help='e.g. "SELECT step, avg(reward) FROM sequences GROUP BY step"')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON array, one object per row")
    form.add_argument("--csv", action="store_true", help="comma-separated values with a header")


def _ingest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", required=True, help="ingest and end; `logprobe up` does it all the time"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "format",
        metavar="FORMAT",
        help="jsonl, parquet, nemo-rl, slime (also miles), prime-rl, open-instruct, scalars, tensorboard, wandb, bundle",
    )
    parser.add_argument("path", metavar="PATH", help="a file, or a folder with files as the format names them")
    parser.add_argument("--run", metavar="NAME", help="the run to add it to (bundle: default as it was called)")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("file", metavar="FILE", help="NAME.parquet, NAME.csv, NAME.jsonl, or NAME.logprobe: a bundle")
    parser.add_argument(
        "--what", choices=("metrics", "tokens"), default="metrics", help="of a table (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="of a bundle: its manifest")


def _push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("--to", required=True, choices=("tensorboard", "wandb", "trackio"), help="where to")
    parser.add_argument("--project", metavar="NAME", help="of wandb or trackio")
    parser.add_argument("--entity", metavar="NAME", help="of wandb")
    parser.add_argument("--dir", metavar="DIR", help="of event files; of wandb's files (default: below the home)")
    parser.add_argument("--offline", action="store_true", help="wandb: write files only, for `wandb sync`")


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")


_COMMANDS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "up": ("run the monitor service and the dashboard", _up),
    "token": ("show what has to be typed to act from a dashboard that other machines reach", _token),
    "demo": ("replay recorded runs live through the whole pipeline", _demo),
    "runs": ("list the runs of a home", _runs),
    "status": (
        "say how a run is doing: live or not, alerts, last step, lag, losses, collectors; exit code 2 when critical",
        _status,
    ),
    "metrics": ("print the metrics of a run, step by step", _metrics),
    "diagnose": ("say which layer is at fault, since which step, and what to do", _diagnose),
    "parity": ("compare a run's configuration and course with a reference; exit code 2 when not at parity", _parity),
    "compare": ("say in which metrics runs are the same as, better or worse than a baseline", _compare),
    "report": ("write an incident report of a run: one HTML file that needs no network", _report),
    "alerts": ("list, acknowledge, silence and try out alerts", alerts_parser.declare),
    "mis": ("show or switch masked importance sampling, and who decided what", _mis),
    "sql": ("answer a read-only SQL query", _sql),
    "ingest": ("take what lies in the spool into the store", _ingest),
    "import": ("bring in what another program, or another logprobe, recorded", _import),
    "export": ("write a run as a table, or as a bundle that another logprobe opens", _export),
    "push": ("log a run's metrics to TensorBoard, Weights & Biases or trackio, each step once", _push),
    "doctor": ("say what is installed, which hooks are live here and what cannot be measured", _doctor),
}
