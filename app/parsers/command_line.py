"""The parser of the command line. Imports nothing heavy: ``logprobe --help`` works without extras, and at once."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NoReturn

from logprobe.app.parsers import alerts, proof, quarantine, ray
from logprobe.app.parsers.arguments import login, memory, pace, port, positive, step_range
from logprobe.collectors.kernel.pairs import PAIRS, RATIO_PAIRS
from logprobe.collectors.relay.arguments import declare as declare_relay

KEEP_GIB: Final = 50.0  # as `logprobe.monitor.store.retention.RetentionPolicy` has it
_RAW_HELP: Final = "text exactly as recorded, with control characters and formulas (docs/security.md)"
KEEP_STORE_GIB: Final = 10.0  # as `logprobe.monitor.store.folding.StoreBudget` has it
_HOME_HELP: Final = "folder that runs are recorded to (default: $LOGPROBE_HOME)"


# As argparse refuses a word that is none of those it knows.
_CHOICE: Final = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_QUOTED: Final = re.compile(r"'([^']*)'")


class _Parser(argparse.ArgumentParser):
    """Says wrong usage in one line."""

    def error(self, message: str) -> NoReturn:
        unknown = _CHOICE.search(message)
        near = () if unknown is None else get_close_matches(unknown[1], _QUOTED.findall(unknown[2]), n=1)
        if unknown is not None and near:
            message = f"{message[: unknown.start()]}{unknown[1]!r} does not exist; did you mean {near[0]!r}?"
        self.exit(2, f"logprobe: {message}; see: {self.prog} --help\n")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"logprobe {installed_version()}")
        parser.exit()


def build() -> argparse.ArgumentParser:
    """The parser of `logprobe`; ``command`` of what it parses names a module of `logprobe.app.commands`."""
    parser = _Parser(
        prog="logprobe",
        description="Live monitoring of the training-inference mismatch in reinforcement learning of language models.",
        epilog="`logprobe COMMAND --help` explains a command.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show program's version number and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (words, declare) in _COMMANDS.items():
        command = commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
        command.add_argument("--home", metavar="DIR", default=os.environ.get("LOGPROBE_HOME") or None, help=_HOME_HELP)
        declare(command)
    return parser


def installed_version() -> str:
    """Version of this package."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - a tenth of what a quick command takes

    try:
        return version("logprobe")
    except PackageNotFoundError:  # a checkout that was never installed
        return "unknown"


def _up(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=port, default=8501, help="dashboard port (0 picks a free one; default: %(default)s)"
    )
    parser.add_argument(
        "--address",
        "--host",
        default="127.0.0.1",
        help="address to bind; remote clients get read access, and can make changes with the token from `logprobe token` "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--public-url",
        metavar="URL",
        help="the URL that browsers use if the dashboard is behind a reverse proxy, e.g. https://host/logprobe (docs/security.md)",
    )
    parser.add_argument("--read-only", action="store_true", help="no changes can be made from the dashboard")
    parser.add_argument("--no-app", action="store_true", help="start only the monitor service")
    parser.add_argument(
        "--keep-gib",
        type=positive,
        default=KEEP_GIB,
        metavar="N",
        help="limit for the home's raw tokens, in GiB; the oldest are removed first, statistics and metrics stay; "
        "inf: no limit (default: %(default)s)",
    )
    parser.add_argument(
        "--keep-store-gib",
        type=positive,
        default=KEEP_STORE_GIB,
        metavar="N",
        help="limit for the store, in GiB; beyond it, the oldest steps' sequences are folded into sums and a sample, metrics stay exact; "
        "inf: no limit (default: %(default)s)",
    )
    parser.add_argument("--keep-days", type=positive, metavar="N", help="maximum age of raw tokens (default: no limit)")
    parser.add_argument(
        "--memory-limit",
        type=memory,
        metavar="SIZE",
        help="memory for SQL queries, e.g. 4GiB; two run at once, each with half of it, and none spills to disk "
        "(default: a quarter of the machine, at most 4GiB)",
    )
    parser.add_argument(
        "--service-address",
        metavar="ADDRESS",
        help="address the service binds, for readers and trainers on other machines, which need LOGPROBE_TOKEN (default: 127.0.0.1)",
    )
    parser.add_argument("--service-port", type=port, metavar="PORT", help="service port (default: any free port)")
    parser.add_argument(
        "--health-port", type=port, metavar="PORT", help="port of the service's /healthz (default: any free port)"
    )
    parser.add_argument(
        "--relay-port", type=port, metavar="PORT", help="receive from `logprobe relay` on other machines (default: off)"
    )
    parser.add_argument(
        "--relay-address", metavar="ADDRESS", help="address to bind for --relay-port (default: 0.0.0.0)"
    )
    parser.add_argument(
        "--reader-port",
        type=port,
        metavar="PORT",
        help="answer reads of other machines over TLS, which need LOGPROBE_TOKEN (default: off)",
    )
    parser.add_argument(
        "--reader-address", metavar="ADDRESS", help="address to bind for --reader-port (default: 0.0.0.0)"
    )
    _also(parser, "the Compare page also offers the runs of this home or service (may be repeated; docs/scaling.md)")


def _certificate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", action="append", metavar="NAME", help="name or address that nodes connect to (may be repeated)"
    )
    parser.add_argument("--days", type=int, default=398, metavar="N", help="validity in days (default: %(default)s)")


def _relay_token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="of the writer, e.g. a team (default: list writers)")
    parser.add_argument(
        "--run", action="append", metavar="PATTERN", help="run it may write, with * and ? (may be repeated)"
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=24.0,
        metavar="HOURS",
        help="how long the writer's earlier tokens stay valid (default: %(default)g)",
    )
    parser.add_argument("--rotate", action="store_true", help="make another token for a writer that has one")
    parser.add_argument("--revoke", action="store_true", help="remove the writer and all its tokens")
    parser.add_argument("--json", action="store_true", help="list as JSON")


def _run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run", metavar="NAME", help="name of the run (default: $LOGPROBE_RUN, else the framework's own)"
    )
    parser.add_argument(
        "program", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to start, e.g. python train.py"
    )


def _token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--new", action="store_true", help="replace the token; sessions that used the old one have to enter the new one"
    )


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run", action="append", metavar="NAME", help="only this recorded run (may be repeated)")
    parser.add_argument("--speed", type=pace, default=2.0, metavar="STEPS_PER_S", help="pace (default: %(default)s)")
    parser.add_argument("--port", type=port, help="dashboard port (0 picks a free one; default: 8501 if free)")
    parser.add_argument(
        "--data", metavar="DIR", help="folder with recorded runs (default: sample_data of the checkout)"
    )
    # A home of real runs, named by the environment, is no place for a demo.
    parser.set_defaults(home=None)


def _runs(parser: argparse.ArgumentParser) -> None:
    _also(parser, "also list the runs of this home or service (may be repeated)")
    parser.add_argument("--json", action="store_true", help="a JSON array, one object per run")


def _also(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("--also", action="append", default=[], metavar="DIR|grpc+tls://HOST:PORT", help=words)
    _ca(parser)


def _ca(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="certificates to trust of services at grpc+tls://, PEM (default: $LOGPROBE_SERVICE_CA)",
    )


def _status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", nargs="?", help="a run (default: list the runs)")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _tokens(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("--step", type=int, metavar="N", help="this step (default: the worst recent one)")
    parser.add_argument("--sequence", metavar="ID", help="this sequence of the step (default: the worst)")
    parser.add_argument(
        "--pair", choices=RATIO_PAIRS, default="backend", help="the two log-probs compared (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _metrics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", nargs="?", help="a run that `logprobe runs` lists")
    parser.add_argument("--list", action="store_true", help="list every metric: key, meaning, formula")
    parser.add_argument("--steps", type=step_range, metavar="A:B", default=(None, None), help="only these steps")
    parser.add_argument("--metric", action="append", metavar="KEY", help="only this metric (may be repeated)")
    parser.add_argument(
        "--slice",
        metavar="DIMENSION",
        help="by group of sequences instead of by step: weight_lag, weight_versions, length, replica, environment, dataset, "
        "cached_prefix, finish_reason, rank, tag:NAME",
    )
    parser.add_argument(
        "--profile",
        metavar="DIMENSION",
        help="by token, from raw tokens: position, turn, probability, log_ratio (quantiles of |d|)",
    )
    parser.add_argument(
        "--pair",
        choices=PAIRS,
        help="with --profile: the two log-probs compared (default: backend)",
    )
    parser.add_argument("--per-step", action="store_true", help="with --slice or --profile: one row per step")
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
        help="with --as: a setting of that framework (docs/peers.md; may be repeated)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
    parser.set_defaults(usage_error=parser.error)


def _recompute(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("--steps", type=step_range, metavar="A:B", default=(None, None), help="only these steps")
    _ray(parser, "compute")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _ray(parser: argparse.ArgumentParser, do: str) -> None:
    words = f"{do} on the Ray cluster at this address, from one of its nodes; auto: the one that runs here (docs/scaling.md)"
    parser.add_argument("--ray", metavar="ADDRESS", help=words)


def _diagnose(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("--steps", type=step_range, metavar="A:B", default=(None, None), help="limit to these steps")
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")


def _accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument(
        "cause",
        metavar="CAUSE",
        nargs="?",
        help="a cause named by `logprobe diagnose` (default: list accepted findings)",
    )
    parser.add_argument("--because", metavar="REASON", help='the reason, such as "bf16 by choice"')
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--up-to", type=positive, metavar="K3", help="K3 it may explain, in nats (default: twice what it explains now)"
    )
    limit.add_argument("--like", metavar="OTHER", help="up to twice the K3 that this run had in its first steps")
    limit.add_argument("--withdraw", action="store_true", help="withdraw the acceptance")
    parser.add_argument("--by", metavar="NAME", help="your name, for the audit (default: your user name)")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _parity(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument(
        "--reference",
        metavar="RUN|RECIPE.yaml",
        help="a run of the same home, or a recipe (docs/parity.md; default: the built-in recipe)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _compare(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="RUN",
        nargs="+",
        help="a run of the home, HOME:RUN, grpc+tls://HOST:PORT/RUN, a recorded run's folder, or a bundle",
    )
    parser.add_argument("--baseline", metavar="RUN", required=True, help="the run to compare with, given the same way")
    parser.add_argument(
        "--align",
        choices=("step", "tokens", "time", "onset"),
        default="step",
        help="how the runs' steps are aligned (default: %(default)s)",
    )
    parser.add_argument(
        "--metric", action="append", metavar="KEY", help="instead of the default metrics (may be repeated)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
    parser.add_argument("--html", metavar="FILE", help="also write a report: one file that needs no network")
    _ray(parser, "read runs in files")
    _ca(parser)


def _report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names",
        metavar="RUN",
        nargs="+",
        help="a run of the home, HOME:RUN, grpc+tls://HOST:PORT/RUN, a recorded run's folder, or a bundle",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="output file, of several runs the folder for them (default: RUN.html in the working directory)",
    )
    _ray(parser, "report on runs in files")
    _ca(parser)


def _mis(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument(
        "do",
        metavar="COMMAND",
        nargs="?",
        choices=("on", "off", "suggest", "armed", "stop", "release", "preview"),
        help="on, off: switch it yourself; suggest, armed: what the controller may do by itself; stop: set the kill switch; release: clear "
        "it; preview: what the correction would do to recent steps (default: show)",
    )
    parser.add_argument(
        "--preset", metavar="NAME", help="with preview: this correction, not the policy's (docs/correction.md)"
    )
    parser.add_argument("--by", metavar="NAME", help="your name, for the audit (default: your user name)")
    parser.add_argument("--force", action="store_true", help="with on: override a refusal; the audit records it")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _sql(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("query", metavar="QUERY", help='e.g. "SELECT step, avg(reward) FROM sequences GROUP BY step"')
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="a JSON array, one object per row")
    form.add_argument("--csv", action="store_true", help="comma-separated values with a header")
    parser.add_argument("--raw", action="store_true", help=f"with --csv: {_RAW_HELP}")


def _ingest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", required=True, help="ingest once and exit; `logprobe up` ingests continuously"
    )
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "format",
        metavar="FORMAT",
        help="jsonl, parquet, nemo-rl, slime (also miles), prime-rl, open-instruct, scalars, tensorboard, wandb, bundle",
    )
    parser.add_argument("path", metavar="PATH", help="a file, or a folder of files named as the format names them")
    parser.add_argument("--run", metavar="NAME", help="the run to import into (bundle: default its original name)")
    parser.add_argument("--follow", action="store_true", help="keep importing what appears there, until Ctrl-C")
    parser.add_argument(
        "--files", metavar="PATTERN", help="only files of this name, e.g. '*_0.pt' (default: the format's)"
    )
    _ray(parser, "read the files")
    parser.add_argument("--json", action="store_true", help="the report as one JSON document")


def _export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("file", metavar="FILE", help="NAME.parquet, NAME.csv, NAME.jsonl, or NAME.logprobe: a bundle")
    parser.add_argument(
        "--what", choices=("metrics", "tokens"), default="metrics", help="content of a table (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument("--raw", action="store_true", help=f"with NAME.csv: {_RAW_HELP}")
    parser.add_argument("--json", action="store_true", help="with a bundle: print its manifest")


def _push(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run that `logprobe runs` lists")
    parser.add_argument("--to", required=True, choices=("tensorboard", "wandb", "trackio"), help="target")
    parser.add_argument("--project", metavar="NAME", help="wandb or trackio project")
    parser.add_argument("--entity", metavar="NAME", help="wandb entity")
    parser.add_argument(
        "--dir", metavar="DIR", help="folder for event files or wandb's files (default: below the home)"
    )
    parser.add_argument("--offline", action="store_true", help="wandb: write files only, for `wandb sync`")


def _delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", metavar="RUN", nargs="?", help="a run that `logprobe runs` lists (default: list deleted runs)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="also while the run is being recorded")
    parser.add_argument("--release", action="store_true", help="let the name of a deleted run be used again")
    parser.add_argument("--author", default=login(), help="your name, for the audit (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder that does not exist yet")
    parser.add_argument("--raw", action="store_true", help="raw tokens, too")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder that `logprobe backup` made")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document")


_COMMANDS: Final[dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]]] = {
    "up": ("run the monitor service and the dashboard", _up),
    "run": ("start a training command with hooks for every framework that logprobe knows", _run),
    "relay": ("send what this machine records to a service on another machine", declare_relay),
    "ray": ("run a relay on every node of a Ray cluster", ray.declare),
    "certificate": ("make or renew the TLS certificate that the service shows to relays and readers", _certificate),
    "relay-token": ("make, list or revoke the tokens that relays authenticate with", _relay_token),
    "token": ("show the token for making changes from other machines", _token),
    "demo": ("show recorded runs, the last of them live, through the whole pipeline", _demo),
    "runs": ("list the runs of a home", _runs),
    "status": (
        "show a run's state: live or not, severity, alerts, last step, lag, losses, collectors; exit code 2 if critical; or list the runs",
        _status,
    ),
    "metrics": ("print the metrics of a run, step by step", _metrics),
    "tokens": ("show the tokens of a step's worst sequence, coloured by their ratio", _tokens),
    "recompute": ("compute a run's metrics again from raw tokens, after a definition has changed", _recompute),
    "diagnose": ("show which layer is at fault, since which step, and what to do", _diagnose),
    "score": (
        "rescore recorded tokens and report which side deviates: engine, its state, or trainer",
        proof.declare_score,
    ),
    "bisect": ("change one setting at a time and say which of them make the mismatch", proof.declare_bisect),
    "probe": (
        "let the running engine score a few of its newest sequences again and say whether its state is sound",
        proof.declare_probe,
    ),
    "try": ("measure the mismatch of your own model, without a GPU and without a training", proof.declare_try),
    "accept": ("accept a finding: it neither alerts nor vetoes until it grows", _accept),
    "parity": ("compare a run's configuration and trend with a reference; exit code 2 if not at parity", _parity),
    "compare": ("show in which metrics runs are the same as, better or worse than a baseline", _compare),
    "report": ("write an incident report of each run: one HTML file that needs no network", _report),
    "alerts": ("list, acknowledge and silence alerts; try rules", alerts.declare),
    "mis": ("show or switch masked importance sampling, with its audit", _mis),
    "sql": ("run a read-only SQL query", _sql),
    "ingest": ("ingest the spool into the store", _ingest),
    "quarantine": ("list, inspect, retry or drop files that were moved out of the spool", quarantine.declare),
    "import": ("import what another program, or another logprobe, recorded", _import),
    "export": ("export a run as a table, or as a bundle for another logprobe", _export),
    "push": ("log a run's metrics to TensorBoard, Weights & Biases or trackio, each step once", _push),
    "delete": ("permanently delete a run and any data that still arrives", _delete),
    "backup": ("copy the store and the settings of a home, also while its service runs", _backup),
    "restore": ("put a backup back; what raw tokens and the spool have beyond it is taken in", _restore),
    "rebuild": ("make the store fit the raw tokens and the spool, after it was lost or damaged", _doctor),
    "check": ("compare the store with its raw files; exit code 2 if something is wrong", _doctor),
    "doctor": ("show what is installed, which hooks are live here and what cannot be measured", _doctor),
}
