"""All commands of `logprobe`, with help and parameters. Imports nothing heavy.

Grammar, help and completion derive from the entry of a command. ``run(arguments)`` of its module in
`logprobe.app.commands` does the work.
"""

from __future__ import annotations

from typing import Final

import click

from logprobe.app.surface.arguments import count, pace, port, positive, step, step_range
from logprobe.app.surface.declared import Branch, Entries, Leaf, Leaves, Param, Sections, argument, option
from logprobe.collectors.kernel.pairs import RATIO_PAIRS

WORDS: Final = "Live monitoring of the training-inference mismatch in reinforcement learning of language models."
BOTH: Final = (None, None)

RUN: Final = argument("name", "RUN", complete="run")
MAYBE_RUN: Final = argument("name", "[RUN]", complete="run", required=False)
REASON: Final = option("--reason REASON", "why")
TRAINER: Final = option("--trainer MODULE:FUNCTION", "scores as the trainer does (docs/compare.md)")
TRAINER_ARGS: Final = option("--trainer-args JSON", 'its settings, e.g. {"dtype": "bfloat16"}')
MINUTES: Final = option("--scorer-minutes N", "limit of each scorer", parse=positive, default=15.0)


def engine_args(default: str) -> Param:
    """Declare the arguments of a fresh engine."""
    return option("--engine-args ARGS", 'as `vllm serve` takes them, e.g. "--dtype bfloat16"', default=default)


START: Final[Entries] = {
    "preflight": Leaf(
        "check engine and trainer before a training: exit code 0 fine, 1 wrong, 2 unknown",
        "preflight",
        (
            option(
                "--model PATH|tiny", "folder of a Hugging Face checkpoint; tiny: one of random weights", required=True
            ),
            option("--run NAME", "the run to record (default: preflight-MODEL-TIME)"),
            option("--answers N", "to sample", parse=count, default=20),
            option("--temperature T", "of sampling", parse=positive, default=1.0),
            TRAINER,
            TRAINER_ARGS,
            option("--recipe FILE", "of the configuration (docs/compare.md; default: the built-in recipe)"),
            option("--strict", "every requirement of the recipe decides, and not only what log-probs mean"),
            engine_args("--enforce-eager --max-model-len 512"),
            MINUTES,
        ),
        error_code=2,  # 1 says that something is wrong
        error_document={"result": "unknown", "checks": []},
    ),
    "run": Leaf(
        "start a training command with hooks for every framework that logprobe knows",
        "run",
        (
            option("--run NAME", "name of the run (default: $LOGPROBE_RUN, else the framework's own)"),
            argument("program", "-- COMMAND…", nargs=-1, type=click.UNPROCESSED),
        ),
        options={"context_settings": {"allow_interspersed_args": False}},
    ),
    "up": Leaf(
        "run the monitor service and the dashboard",
        "up",
        (
            option("--once", "ingest what waits, and exit"),
            option("--port PORT", "dashboard port (0: any free one)", parse=port, default=8501),
            option(
                "--address ADDRESS",
                "address to bind; other machines may read, and act with the token that is in the data directory",
                default="127.0.0.1",
            ),
            option("--public-url URL", "the URL that browsers use behind a reverse proxy (docs/cluster.md)"),
            option("--read-only", "no changes can be made from the dashboard"),
            option("--no-app", "start only the monitor service"),
            option("--bucket ADDRESS", "also take what nodes ship to this bucket, e.g. s3://bucket/team"),
            option(
                "--ray FOLDER",
                "also take what the nodes of the Ray cluster here record below FOLDER; {node}: Ray's id of the node",
                is_flag=False,
                flag_value="",
            ),
            option("--also DIR", "show the runs of this data directory, too (may be repeated)", multiple=True),
        ),
    ),
    "demo": Leaf(
        "train a small run that is rescued while you watch, beside recorded ones",
        "demo",
        (
            option("--speed STEPS_PER_S", "pace", parse=pace, default=2.0),
            option("--port PORT", "dashboard port (0: any free one; default: 8501 if free)", parse=port),
        ),
    ),
    "doctor": Leaf("show what is installed, which hooks are live here and what cannot be measured", "doctor"),
}

READ: Final[Entries] = {
    "runs": Leaf(
        "list the runs, the worst first",
        "runs",
        (option("--also DIR", "list the runs of this data directory, too (may be repeated)", multiple=True),),
    ),
    "show": Leaf(
        "show a run: since which step it is off, where, why, and what to do; exit code 2 if it is critical",
        "show",
        (
            MAYBE_RUN,
            option("--steps A:B", "only these steps", parse=step_range, default=BOTH),
            option("--tokens", "the tokens of a step's worst sequence, coloured by their ratio"),
            option("--metrics", "the metrics, step by step; without RUN: every metric with its formula"),
            option("--html FILE", "write the report: one file that needs no network"),
            option("--sequence ID", "with --tokens: this sequence of the step (default: the worst)"),
            option("--metric KEY", "with --metrics: only this metric (may be repeated)", multiple=True),
            option(
                "--slice DIMENSION",
                "with --metrics: by weight_lag, weight_versions, length, replica, environment, dataset, cached_prefix, "
                "finish_reason, rank or tag:NAME",
            ),
            option("--per-step", "with --slice: one row per step"),
            option("--pair", "with --tokens: the two log-probs", type=click.Choice(RATIO_PAIRS)),
            option(
                "--as FRAMEWORK",
                "with --metrics: what verl, ms-swift, slime, trl, pipelinerl, nemo-rl, prime-rl or openrlhf would log",
                dest="peer",
            ),
            option("--option NAME=VALUE", "with --as: a setting of that framework (may be repeated)", multiple=True),
        ),
    ),
    "compare": Leaf(
        "show in which metrics runs are the same as, better or worse than a baseline, or meet a recipe",
        "compare",
        (
            argument("names", "RUN…", nargs=-1, required=True, complete="run"),
            option("--baseline RUN", "the run to compare with; a run is a name, or HOME:RUN"),
            option(
                "--recipe FILE|RUN",
                "instead: is the run set up as this says (none named: the built-in recipe); exit code 2 if not",
                is_flag=False,
                flag_value="",
            ),
            option(
                "--align",
                "how the steps are aligned",
                type=click.Choice(("step", "tokens", "time", "onset")),
                default="step",
            ),
            option("--metric KEY", "instead of the default metrics (may be repeated)", multiple=True),
        ),
    ),
    "sql": Leaf(
        "run a read-only SQL query",
        "sql",
        (
            argument("query", "QUERY"),
            option("--csv", "comma-separated values with a header"),
        ),
    ),
    "export": Leaf(
        "export a run: to a table, a bundle for another logprobe, TensorBoard, W&B or trackio",
        "export",
        (
            RUN,
            option(
                "--to TARGET",
                "NAME.parquet, NAME.csv, NAME.jsonl; NAME.logprobe: a bundle; tensorboard, wandb or trackio: its metrics, "
                "each step once",
                required=True,
            ),
            option("--what", "content of a table", type=click.Choice(("metrics", "tokens")), default="metrics"),
            option("--overwrite", "replace the file"),
            option("--project NAME", "of wandb or trackio"),
            option("--dir DIR", "folder of event files or wandb's files (default: below the data directory)"),
            option("--offline", "wandb: write files only, for `wandb sync`"),
            option("--page URL", "of the dashboard, for the link that goes along"),
        ),
    ),
    "import": Leaf(
        "import log-probs that another program, or another logprobe, wrote to files",
        "import_",
        (
            argument("files", "FILE…", nargs=-1, required=True, complete="file"),
            option("--run NAME", "the run to import into (a bundle: default its original name)"),
        ),
    ),
}

ALERTS: Final[Leaves] = {
    "list": Leaf(
        "list firing alerts and active silences",
        "alerts:show_alerts",
        (
            MAYBE_RUN,
            option("--all", "also alerts that are not firing"),
            option("--history", "every message, oldest first"),
        ),
    ),
    "ack": Leaf(
        "acknowledge an alert",
        "alerts:acknowledge",
        (
            argument("episode", "EPISODE"),
            REASON,
        ),
    ),
    "silence": Leaf(
        "silence matching alerts for a while",
        "alerts:silence",
        (
            argument("matchers", "FIELD=PATTERN…", nargs=-1),
            option("--for SPAN", "90s, 10m, 2h or 1d", dest="span", default="1h"),
            option("--end ID", "end this silence instead"),
            REASON,
        ),
    ),
    "accept": Leaf(
        "accept a finding in a run, or in runs like 'prod-*': it neither alerts nor vetoes until it grows",
        "accept",
        (
            RUN,
            argument("cause", "CAUSE"),
            REASON,
            option("--up-to K3", "K3 it may explain, in nats (default: twice what it explains now)", parse=positive),
            option("--withdraw", "withdraw the acceptance"),
        ),
    ),
    "try": Leaf(
        "check thresholds, and show which messages they would have sent about recorded runs",
        "alerts:try_thresholds",
        (
            argument("runs", "[RUN…]", nargs=-1, complete="run"),
            option("--thresholds FILE", "a settings file (default: that of the data directory)", dest="file"),
            option("--template", "print thresholds to begin with"),
        ),
    ),
    "ping": Leaf(
        "send a test message to a channel, and report what does not work",
        "alerts:ping",
        (argument("channel", "CHANNEL"),),
    ),
}

ACT: Final[Entries] = {
    "alerts": Branch("list, acknowledge, silence and try alerts; accept findings", ALERTS),
    "correct": Leaf(
        "show what importance sampling does or would do to a run, or switch it",
        "correct",
        (
            RUN,
            argument("state", "[off|armed|on]", type=click.Choice(("off", "armed", "on")), required=False),
            option("--force", "with on: override a refusal; the audit records it"),
            option("--preset NAME", "preview this correction, e.g. tis or mis (docs/correction.md)"),
        ),
    ),
    "bisect": Leaf(
        "change one setting at a time and say which of them make the mismatch",
        "bisect",
        (
            MAYBE_RUN,
            option("--sample FILE", "instead of a run: JSON lines or Parquet (docs/compare.md)"),
            option("--sequences N", "of a run, at most", parse=count, default=64),
            option("--at STEP", "of a run: only this step", parse=step),
            option("--model [VERSION=]PATH", "checkpoint, of a weight version (may be repeated)", multiple=True),
            engine_args(""),
            option("--sampling JSON", 'of sequences that do not state theirs, e.g. {"temperature": 0.7}'),
            TRAINER,
            TRAINER_ARGS,
            option("--only-score", "change no setting: score again and say which side deviates"),
            option("--exact", "with --only-score: exit code 1 unless r and t are equal in every bit"),
            option("--knobs NAME[,NAME]", "only these settings, e.g. dtype,trainer.dtype (default: all)"),
            option("--minutes N", "after which no arm is started", parse=positive),
            MINUTES,
            option("--cache DIR", "where finished arms are kept (default: proof/ of the data directory)"),
        ),
    ),
}

OPERATE: Final[Entries] = {
    "ship": Leaf(
        "send what waits on this machine to the bucket that it records for; return when nothing waits",
        "ship",
        (option("--seconds N", "give up after so long", parse=positive),),
    ),
    "store": Branch(
        "check, copy and clean what is kept",
        {
            "check": Leaf("compare the archive's files with their checksums; exit code 2 if one is damaged", "check"),
            "copy": Leaf(
                "copy the data directory without its index, also while the service runs",
                "copy",
                (argument("folder", "FOLDER", complete="file"),),
            ),
            "quarantine": Leaf(
                "list files that were moved out of the spool with the reason, take them again or drop them",
                "quarantine",
                (
                    argument("files", "[FILE…]", nargs=-1),
                    option("--retry", "ingest the files again"),
                    option("--drop", "delete the files for good"),
                    option("--all", "all files, instead of naming them"),
                    option("--run RUN", "only files of this run"),
                ),
            ),
            "delete": Leaf(
                "delete a run for good, and what still arrives of it; without RUN: list deleted runs",
                "delete",
                (
                    MAYBE_RUN,
                    option("--yes", "do not ask"),
                    option("--force", "also while the run is being recorded"),
                ),
            ),
        },
    ),
}

SECTIONS: Final[Sections] = {"Start": START, "Read": READ, "Act": ACT, "Operate": OPERATE}
