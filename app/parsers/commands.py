"""Every command of `logprobe`: its name, what it does, and what it takes. Imports nothing heavy.

A command is declared here and nowhere else: grammar and help follow from its entry, and ``run(arguments)`` of the
module of `logprobe.app.commands` that has its name does the work.
"""

from __future__ import annotations

import argparse
from typing import Final

from logprobe.app.parsers.arguments import (
    ANY_RUNS,
    AUTHOR,
    BY,
    JSON,
    JSON_OR_NULL,
    RUN,
    SCORER_MINUTES,
    Commands,
    actions,
    also,
    arg,
    count,
    engine_args,
    failing,
    one_of,
    pace,
    port,
    positive,
    step_list,
    steps,
)
from logprobe.collectors.kernel.pairs import PAIRS, RATIO_PAIRS
from logprobe.collectors.shipping.arguments import declare as declare_ship
from logprobe.monitor.budgets import KEEP_GIB, KEEP_STORE_GIB

RAW: Final = "text exactly as recorded, with control characters and formulas (docs/security.md)"
THRESHOLDS: Final = "a settings file (default: that of the data directory)"


def no_home(parser: argparse.ArgumentParser) -> None:
    """A home of real runs, named by the environment, is no place for a demo."""
    parser.set_defaults(home=None)


ALERTS: Final[Commands] = {
    "list": (
        "list firing alerts and active silences",
        arg("name RUN", "only this run", nargs="?"),
        arg("--all", "also alerts that are not firing"),
        arg("--history", "every message, oldest first"),
        JSON,
    ),
    "ack": (
        "acknowledge an alert",
        arg("episode EPISODE", "an id from `list`; RUN or RUN/RULE: everything firing there"),
        arg("--for SPAN", "snooze: notify again if it is still firing after 90s, 10m, 2h or 1d", dest="span"),
        AUTHOR,
        arg("--reason REASON", "why"),
    ),
    "silence": (
        "silence matching alerts for a while",
        arg("matchers FIELD=PATTERN", "run=exp-*, rule=few-*, or both", nargs="*"),
        arg("--for SPAN", "90s, 10m, 2h or 1d (default: %(default)s)", dest="span", default="1h"),
        arg("--end ID", "end this silence instead"),
        AUTHOR,
        arg("--reason REASON", "why (required for a new silence)"),
    ),
    "check": (
        "check thresholds",
        arg("file FILE", THRESHOLDS, nargs="?"),
        one_of(
            arg("--template", "print thresholds to begin with"),
            arg("--json", "the thresholds as one JSON document"),
        ),
    ),
    "test": (
        "send a test message to a channel, and report what does not work",
        arg("channel CHANNEL", "a name from the home's settings"),
    ),
    "backtest": (
        "show which messages thresholds would have sent, on recorded runs",
        arg("runs RUN", "a run of the home, or the folder of a recorded run", nargs="+"),
        arg("--thresholds FILE", THRESHOLDS, dest="file"),
        JSON,
    ),
}
INCIDENTS: Final[Commands] = {
    "list": ("list incidents, the open ones first", arg("name RUN", "only of this run", nargs="?"), JSON),
    "show": (
        "show a run's last incident: what happened, what changed before, the cause and what to do",
        RUN,
        JSON_OR_NULL,
    ),
}
FILES: Final = (
    arg("files FILE", "a name from `list`", nargs="*"),
    arg("--all", "all files, instead of naming them"),
    arg("--run RUN", "with --all: only those of this run"),
    AUTHOR,
    arg("--json", "the result for each file, as one JSON document"),
)
QUARANTINE: Final[Commands] = {
    "list": (
        "list files in quarantine, and files in the spool that cannot be read now",
        arg("--run RUN", "only files of this run"),
        arg("--json", "one JSON document; also lists files that wait in the spool"),
    ),
    "show": (
        "show why a file was moved aside, what is in it and what to do",
        arg("file FILE", "a name from `list`"),
        JSON,
    ),
    "retry": (
        "move files back to the spool to be ingested again",
        *FILES,
    ),
    "drop": (
        "permanently delete files from quarantine",
        *FILES,
    ),
}

COMMANDS: Final[Commands] = {
    "up": (
        "run the monitor service and the dashboard",
        arg("--port PORT", "dashboard port (0 picks a free one; default: %(default)s)", type=port, default=8501),
        arg(
            "--address --host ADDRESS",
            "address to bind; remote clients get read access, and can make changes with the token from `logprobe "
            "token` (default: %(default)s)",
            default="127.0.0.1",
        ),
        arg(
            "--public-url URL",
            "the URL that browsers use if the dashboard is behind a reverse proxy, e.g. https://host/logprobe "
            "(docs/security.md)",
        ),
        arg("--read-only", "no changes can be made from the dashboard"),
        arg("--no-app", "start only the monitor service"),
        arg(
            "--keep-gib N",
            "limit for the home's raw tokens, in GiB; the oldest are removed first, statistics and metrics stay; inf: "
            "no limit (default: %(default)s)",
            type=positive,
            default=KEEP_GIB,
        ),
        arg(
            "--keep-store-gib N",
            "limit for the store, in GiB; beyond it, the oldest steps' sequences are folded into sums and a sample, "
            "metrics stay exact; inf: no limit (default: %(default)s)",
            type=positive,
            default=KEEP_STORE_GIB,
        ),
        arg("--keep-days N", "maximum age of raw tokens (default: no limit)", type=positive),
        arg(
            "--service-address ADDRESS",
            "address the service binds, for trainers on other machines, which need LOGPROBE_TOKEN (default: 127.0.0.1)",
        ),
        arg("--service-port PORT", "service port (default: any free port)", type=port),
        arg("--health-port PORT", "port of the service's /healthz (default: any free port)", type=port),
        arg("--bucket ADDRESS", "also take what nodes ship to this bucket, e.g. s3://bucket/team (docs/scaling.md)"),
        arg(
            "--ray FOLDER",
            "also take what the nodes of the Ray cluster here record below FOLDER; {node} becomes Ray's id of the node "
            "(default: the path of --home)",
            nargs="?",
            const="",
        ),
        also("the pages Runs and Compare also show the runs of this home (may be repeated; docs/scaling.md)"),
    ),
    "run": (
        "start a training command with hooks for every framework that logprobe knows",
        arg("--run NAME", "name of the run (default: $LOGPROBE_RUN, else the framework's own)"),
        arg("program -- COMMAND", "what to start, e.g. python train.py", nargs=argparse.REMAINDER),
    ),
    "ship": (
        "send what waits on this machine to the bucket that it records for; return when nothing waits",
        declare_ship,
    ),
    "token": (
        "show the token for making changes from other machines",
        arg("--new", "replace the token; sessions that used the old one have to enter the new one"),
    ),
    "demo": (
        "show recorded runs and one that is trained live, through the whole pipeline",
        arg(
            "--run NAME",
            "only this recorded run, replayed (may be repeated; the last one goes on live)",
            action="append",
        ),
        arg("--speed STEPS_PER_S", "pace (default: %(default)s)", type=pace, default=2.0),
        arg("--port PORT", "dashboard port (0 picks a free one; default: 8501 if free)", type=port),
        arg("--data DIR", "folder with recorded runs (default: sample_data of the checkout)"),
        no_home,
    ),
    "runs": (
        "list the runs of a home",
        also("also list the runs of this home (may be repeated)"),
        arg("--json", "a JSON array, one object per run"),
    ),
    "status": (
        (
            "show a run's state: live or not, severity, alerts, last step, lag, losses, collectors; exit code 2 if "
            "critical; or list the runs"
        ),
        arg("name RUN", "a run (default: list the runs)", nargs="?"),
        JSON,
    ),
    "metrics": (
        "print the metrics of a run, step by step",
        arg("name RUN", "a run that `logprobe runs` lists", nargs="?"),
        arg("--list", "list every metric: key, meaning, formula"),
        steps("only these steps"),
        arg("--metric KEY", "only this metric (may be repeated)", action="append"),
        arg(
            "--slice DIMENSION",
            "by group of sequences instead of by step: weight_lag, weight_versions, length, replica, environment, "
            "dataset, cached_prefix, finish_reason, rank, tag:NAME",
        ),
        arg(
            "--profile DIMENSION",
            "by token, from raw tokens: position, turn, probability, log_ratio (quantiles of |d|)",
        ),
        arg("--pair", "with --profile: the two log-probs compared (default: backend)", choices=PAIRS),
        arg("--per-step", "with --slice or --profile: one row per step"),
        arg(
            "--as FRAMEWORK",
            "what another framework would log, from raw tokens: verl, ms-swift, slime, trl, pipelinerl, nemo-rl, "
            "prime-rl, openrlhf",
            dest="peer",
        ),
        arg(
            "--option NAME=VALUE",
            "with --as: a setting of that framework (docs/peers.md; may be repeated)",
            action="append",
        ),
        JSON_OR_NULL,
    ),
    "tokens": (
        "show the tokens of a step's worst sequence, coloured by their ratio",
        RUN,
        arg("--step N", "this step (default: the worst recent one)", type=int),
        arg("--sequence ID", "this sequence of the step (default: the worst)"),
        arg("--pair", "the two log-probs compared (default: %(default)s)", choices=RATIO_PAIRS, default="backend"),
        JSON,
    ),
    "recompute": (
        "compute a run's metrics again from raw tokens, after a definition has changed",
        RUN,
        steps("only these steps"),
        JSON,
    ),
    "diagnose": (
        "show which layer is at fault, since which step, and what to do",
        RUN,
        steps("limit to these steps"),
        JSON_OR_NULL,
    ),
    "bisect": (
        "change one setting at a time and say which of them make the mismatch",
        arg("name RUN", "a run whose prompts were recorded (docs/proof.md)", nargs="?"),
        arg("--sequences N", "of a run, at most (default: %(default)s)", type=count, default=64),
        arg(
            "--sample FILE",
            "instead of a run: JSON lines or Parquet with sample_id, prompt_ids, response_ids, rollout_logprobs, "
            "trainer_logprobs (docs/proof.md)",
        ),
        arg(
            "--model [VERSION=]PATH",
            "Hugging Face checkpoint, of a weight version where there are several (may be repeated; default of a RUN: "
            "those that its trainer named)",
            action="append",
            default=[],
        ),
        engine_args(),
        arg("--sampling JSON", 'of sequences that do not state theirs, e.g. {"temperature": 0.7, "top_p": 0.9}'),
        arg("--trainer MODULE:FUNCTION", "scores as the trainer does (docs/proof.md)"),
        arg("--trainer-args JSON", 'its settings, e.g. {"dtype": "bfloat16"}'),
        arg(
            "--reference-dtype",
            "of the reference (default: %(default)s)",
            choices=("float32", "float64"),
            default="float32",
        ),
        arg("--floor K3", "K3 that counts as agreement (default: %(default)s)", type=positive, default=3e-06),
        SCORER_MINUTES,
        arg(
            "--only-score", "change no setting: score again and say which side deviates: engine, its state, or trainer"
        ),
        arg(
            "--exact",
            "with --only-score: exit code 1 unless r and t are equal in every bit; names the first token and operation "
            "that are not",
        ),
        arg("--at STEP[,STEP]", "of a run: these steps, each by itself, in one table", type=step_list, default=[]),
        arg("--knobs NAME[,NAME]", "only these settings, e.g. dtype,kv_cache_dtype,trainer.dtype (default: all)"),
        arg("--against", "what the engine is compared with (default: reference)", choices=("reference", "trainer")),
        arg("--minutes N", "after which no arm is started, with --at of each step (default: no limit)", type=positive),
        arg(
            "--cache DIR",
            "where finished arms are kept (default: proof/ of the home, or logprobe/proof of the user's cache folder)",
        ),
        JSON_OR_NULL,
    ),
    "preflight": (
        (
            "check engine and trainer before a training, in about a minute and without a GPU; exit code 0 fine, 1 wrong, 2 "
            "unknown"
        ),
        arg("--model PATH|tiny", "folder of a Hugging Face checkpoint; tiny: one of random weights", required=True),
        arg("--run NAME", "the run to record (default: preflight-MODEL-TIME)"),
        arg("--answers N", "to sample (default: %(default)s)", type=count, default=20),
        arg("--tokens N", "of each answer (default: %(default)s)", type=count, default=64),
        arg("--temperature T", "of sampling (default: %(default)s)", type=positive, default=1.0),
        arg("--trainer MODULE:FUNCTION", "scores as the trainer does (docs/proof.md; default: transformers)"),
        arg("--trainer-args JSON", 'its settings, e.g. {"dtype": "bfloat16"}'),
        arg(
            "--trainer-dtype",
            "without --trainer: of the pass that stands for the trainer's (default: %(default)s)",
            choices=("float32", "bfloat16", "float16"),
            default="float32",
        ),
        arg("--recipe FILE", "of the configuration (docs/parity.md; default: the built-in recipe)"),
        arg("--strict", "every requirement of the recipe decides, and not only what log-probs mean"),
        engine_args("--enforce-eager --max-model-len 512"),
        SCORER_MINUTES,
        JSON_OR_NULL,
        failing(2, {"result": "unknown", "checks": []}),  # 1 says that something is wrong
    ),
    "accept": (
        "accept a finding: it neither alerts nor vetoes until it grows",
        RUN,
        arg("cause CAUSE", "a cause named by `logprobe diagnose` (default: list accepted findings)", nargs="?"),
        arg("--because REASON", 'the reason, such as "bf16 by choice"'),
        one_of(
            arg("--up-to K3", "K3 it may explain, in nats (default: twice what it explains now)", type=positive),
            arg("--like OTHER", "up to twice the K3 that this run had in its first steps"),
            arg("--withdraw", "withdraw the acceptance"),
        ),
        BY,
        JSON,
    ),
    "parity": (
        "compare a run's configuration and trend with a reference; exit code 2 if not at parity",
        RUN,
        arg(
            "--reference RUN|RECIPE.yaml",
            "a run of the same home, or a recipe (docs/parity.md; default: the built-in recipe)",
        ),
        JSON,
    ),
    "compare": (
        "show in which metrics runs are the same as, better or worse than a baseline",
        ANY_RUNS,
        arg("--baseline RUN", "the run to compare with, given the same way", required=True),
        arg(
            "--align",
            "how the runs' steps are aligned (default: %(default)s)",
            choices=("step", "tokens", "time", "onset"),
            default="step",
        ),
        arg("--metric KEY", "instead of the default metrics (may be repeated)", action="append"),
        JSON_OR_NULL,
        arg("--html FILE", "also write a report: one file that needs no network"),
    ),
    "report": (
        "write an incident report of each run: one HTML file that needs no network",
        ANY_RUNS,
        arg(
            "--html FILE",
            "output file, of several runs the folder for them (default: RUN.html in the working directory)",
        ),
    ),
    "alerts": ("list, acknowledge and silence alerts; try thresholds", actions(ALERTS, default="list")),
    "incidents": ("list incidents, or show the last one of a run", actions(INCIDENTS, default="list")),
    "mis": (
        "show or switch masked importance sampling, with its audit",
        RUN,
        arg(
            "do COMMAND",
            "on, off: switch it yourself; suggest, armed: what the controller may do by itself; stop: set the kill "
            "switch; release: clear it; preview: what the correction would do to recent steps (default: show)",
            nargs="?",
            choices=("on", "off", "suggest", "armed", "stop", "release", "preview"),
        ),
        arg("--preset NAME", "with preview: this correction, not the policy's (docs/correction.md)"),
        BY,
        arg("--force", "with on: override a refusal; the audit records it"),
        JSON,
    ),
    "sql": (
        "run a read-only SQL query",
        arg("query QUERY", 'e.g. "SELECT step, avg(reward) FROM sequences GROUP BY step"'),
        one_of(arg("--json", "a JSON array, one object per row"), arg("--csv", "comma-separated values with a header")),
        arg("--raw", f"with --csv: {RAW}"),
    ),
    "ingest": (
        "ingest the spool into the store",
        arg("--once", "ingest once and exit; `logprobe up` ingests continuously", action="store_true", required=True),
        arg("--json", "the report as one JSON document"),
    ),
    "quarantine": ("list, inspect, retry or drop files that were moved out of the spool", actions(QUARANTINE)),
    "import": (
        "import log-probs that another program, or another logprobe, wrote to files",
        arg(
            "files FILE",
            "token files of slime, miles, NeMo-RL, prime-rl or open-instruct, .jsonl or .parquet in logprobe's columns, "
            "NAME.logprobe, or folders of these",
            nargs="+",
        ),
        arg("--run NAME", "the run to import into (a bundle: default its original name)"),
        arg("--json", "the report as one JSON document"),
    ),
    "export": (
        "export a run as a table, or as a bundle for another logprobe",
        RUN,
        arg("file FILE", "NAME.parquet, NAME.csv, NAME.jsonl, or NAME.logprobe: a bundle"),
        arg("--what", "content of a table (default: %(default)s)", choices=("metrics", "tokens"), default="metrics"),
        arg("--overwrite", "replace FILE"),
        arg("--raw", f"with NAME.csv: {RAW}"),
        arg("--json", "with a bundle: print its manifest"),
    ),
    "push": (
        "log a run's metrics to TensorBoard, Weights & Biases or trackio, each step once",
        RUN,
        arg("--to", "target", required=True, choices=("tensorboard", "wandb", "trackio")),
        arg("--project NAME", "wandb or trackio project"),
        arg("--entity NAME", "wandb entity"),
        arg("--dir DIR", "folder for event files or wandb's files (default: below the home)"),
        arg("--offline", "wandb: write files only, for `wandb sync`"),
        arg("--page URL", "of the dashboard, for the link that goes along (default: none)"),
    ),
    "delete": (
        "permanently delete a run and any data that still arrives",
        arg("name RUN", "a run that `logprobe runs` lists (default: list deleted runs)", nargs="?"),
        arg("--yes", "do not ask"),
        arg("--force", "also while the run is being recorded"),
        arg("--release", "let the name of a deleted run be used again"),
        AUTHOR,
        JSON,
    ),
    "backup": (
        "copy the store and the settings of a home, also while its service runs",
        arg("folder FOLDER", "a folder that does not exist yet"),
        arg("--raw", "raw tokens, too"),
        JSON,
    ),
    "restore": (
        "put a backup back; what raw tokens and the spool have beyond it is taken in",
        arg("folder FOLDER", "a folder that `logprobe backup` made"),
        JSON,
    ),
    "compact": ("give the store's free space back to the disk; stop the service first", JSON),
    "rebuild": ("make the store fit the raw tokens and the spool, after it was lost or damaged", JSON),
    "check": ("compare the store with its raw files; exit code 2 if something is wrong", JSON),
    "completion": (
        "print a script that completes commands and options in a shell",
        arg("shell SHELL", "bash, zsh or tcsh", choices=("bash", "zsh", "tcsh")),
    ),
    "doctor": ("show what is installed, which hooks are live here and what cannot be measured", JSON),
}
