"""The parser of `logprobe score`, `logprobe bisect`, `logprobe probe` and `logprobe try`. Imports nothing heavy."""

from __future__ import annotations

import argparse

from logprobe.app.parsers.arguments import positive


def declare_score(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `logprobe score`."""
    _what(parser)
    parser.add_argument(
        "--exact",
        action="store_true",
        help="exit code 1 unless r and t are equal in every bit; names the first token that is not",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
    parser.set_defaults(usage_error=parser.error)


def declare_bisect(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `logprobe bisect`."""
    _what(parser)
    parser.add_argument(
        "--knobs",
        metavar="NAME[,NAME]",
        help="only these settings, e.g. dtype,kv_cache_dtype,trainer.dtype (default: all)",
    )
    parser.add_argument(
        "--against",
        choices=("reference", "trainer"),
        default="reference",
        help="what the engine is compared with (default: %(default)s)",
    )
    parser.add_argument(
        "--minutes", type=positive, metavar="N", help="after which no arm is started (default: no limit)"
    )
    parser.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="runs arms on the Ray cluster at this address, from one of its nodes; auto: the one that runs here (docs/proof.md)",
    )
    parser.add_argument(
        "--cache",
        metavar="DIR",
        help="where finished arms are kept (default: proof/ of the home, or logprobe/proof of the user's cache folder)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")
    parser.set_defaults(usage_error=parser.error)


def declare_try(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `logprobe try`."""
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH|tiny",
        help="folder of a Hugging Face checkpoint; tiny: one of random weights",
    )
    parser.add_argument("--run", metavar="NAME", help="the run to record (default: try-MODEL-TIME)")
    parser.add_argument("--answers", type=_count, default=16, metavar="N", help="to sample (default: %(default)s)")
    parser.add_argument("--tokens", type=_count, default=64, metavar="N", help="of each answer (default: %(default)s)")
    parser.add_argument(
        "--trainer-dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="of the pass that stands for the trainer's (default: %(default)s)",
    )
    _engine_args(parser, "--enforce-eager --max-model-len 512")
    _scorer_minutes(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")


def declare_probe(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `logprobe probe`."""
    parser.add_argument(
        "name", metavar="RUN", help="a run whose engine is running and whose prompts are recorded (docs/proof.md)"
    )
    parser.add_argument("--url", required=True, metavar="URL", help="of `vllm serve`, e.g. http://localhost:8000")
    parser.add_argument(
        "--replica", metavar="NAME", help="the engine's LOGPROBE_REPLICA, where the run has several engines"
    )
    parser.add_argument(
        "--sequences", type=int, default=4, metavar="N", help="to score again, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--share",
        type=float,
        default=0.001,
        metavar="X",
        help="of the run's sampled tokens that probes may score again in all (default: %(default)s)",
    )
    parser.add_argument(
        "--running", type=int, metavar="N", help="requests in the engine above which it counts as busy (default: 32)"
    )
    parser.add_argument("--key-env", metavar="NAME", help="environment variable with the engine's API key")
    parser.add_argument("--json", action="store_true", help="one JSON document; unknown is null")


def _what(parser: argparse.ArgumentParser) -> None:
    """What is scored, and with what."""
    parser.add_argument("name", metavar="RUN", nargs="?", help="a run whose prompts were recorded (docs/proof.md)")
    parser.add_argument(
        "--sequences", type=_count, default=64, metavar="N", help="of a run, at most (default: %(default)s)"
    )
    parser.add_argument(
        "--sample",
        metavar="FILE",
        help="instead of a run: JSON lines or Parquet with sample_id, prompt_ids, response_ids, rollout_logprobs, trainer_logprobs (docs/proof.md)",
    )
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[VERSION=]PATH",
        help="Hugging Face checkpoint, of a weight version where there are several (may be repeated; default of a RUN: those that its trainer named)",
    )
    _engine_args(parser)
    parser.add_argument("--trainer", metavar="MODULE:FUNCTION", help="scores as the trainer does (docs/proof.md)")
    parser.add_argument("--trainer-args", metavar="JSON", help='its settings, e.g. {"dtype": "bfloat16"}')
    parser.add_argument(
        "--reference-dtype",
        choices=("float32", "float64"),
        default="float32",
        help="of the reference (default: %(default)s)",
    )
    parser.add_argument(
        "--floor", type=positive, default=3e-6, metavar="K3", help="K3 that counts as agreement (default: %(default)s)"
    )
    _scorer_minutes(parser)


def _engine_args(parser: argparse.ArgumentParser, default: str = "") -> None:
    parser.add_argument(
        "--engine-args",
        default=default,
        metavar="ARGS",
        help='as `vllm serve` takes them, e.g. "--dtype bfloat16" (default: "%(default)s")',
    )


def _scorer_minutes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--scorer-minutes", type=positive, default=15.0, metavar="N", help="limit of each scorer (default: %(default)s)"
    )


def _count(text: str) -> int:
    """An argparse type: a whole number above 0."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of sequences")
    return int(text)
