"""The command `logprobe`.

Exit codes: 0 done, 1 an error that the one line on stderr explains (``logprobe --debug`` adds the traceback), 2 wrong
usage, or `logprobe parity` not at parity, 130 interrupted. A command whose 1 says something else declares its own
(`failing`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import keyword
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from logprobe.app.parsers.command_line import build
from logprobe.app.text.terminal import complete_streams, steerless_streams
from logprobe.collectors.errors import LogprobeError, MissingExtraError
from logprobe.collectors.health import LOGGER
from logprobe.collectors.plain_text import complain
from logprobe.monitor.home import apply_umask
from logprobe.monitor.pandas_guard import without_pandas

# Packages that come with an extra, by the name that is imported.
_EXTRAS: Final[dict[str, str]] = {
    "apscheduler": "serve",
    "obstore": "bucket",
    "duckdb": "serve",
    "plotly": "serve",
    "polars": "serve",
    "shtab": "completion",
    "pydantic": "serve",
    "streamlit": "serve",
    "tsdownsample": "serve",
    "yaml": "serve",
    "torch": "torch",
    "vllm": "vllm",
}
_QUICK: Final = ("runs", "status", "metrics", "sql", "diagnose", "alerts", "ingest")  # none of them needs pandas


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    if argv is None:  # a process of our own
        complete_streams()
    with steerless_streams():
        arguments = build().parse_args(argv)
    if argv is None and arguments.command in _QUICK:
        without_pandas()
    level = LOGGER.level
    try:
        LOGGER.setLevel(logging.DEBUG if arguments.debug else level)
        with steerless_streams(raw=getattr(arguments, "raw", False)):
            return _guarded(arguments)
    finally:
        LOGGER.setLevel(level)


def _guarded(arguments: argparse.Namespace) -> int:
    try:
        apply_umask()
        return _run(arguments)
    except LogprobeError as error:
        return _fail(arguments, str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `logprobe … | head`
        _discard_output()
        return int(arguments.error_code)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: one line instead of a traceback
        if _is_interrupt(error):
            return 130
        why = f"unexpected {type(error).__name__}: {error}; `logprobe --debug` shows where, please report it"
        return _fail(arguments, why)


def _run(arguments: argparse.Namespace) -> int:
    try:
        code = int(_module(arguments.command).run(arguments))
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtraError(
            f"`logprobe {arguments.command}` needs the package {error.name!r}; pip install 'logprobe[{extra}]'"
        ) from error
    return code


def _module(command: str) -> ModuleType:
    name = f"{command}_" if keyword.iskeyword(command) else command.replace("-", "_")  # `import` can name no module
    return importlib.import_module(f"logprobe.app.commands.{name}")


def _is_interrupt(error: Exception) -> bool:
    """DuckDB answers Ctrl-C in the middle of a statement with its own error, without a cause or a class."""
    return type(error) is RuntimeError and str(error) == "Query interrupted"


def _discard_output() -> None:
    """What stdout still holds goes nowhere, so that nothing complains at interpreter shutdown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(arguments: argparse.Namespace, message: str) -> int:
    complain(message)
    if arguments.debug:
        traceback.print_exc()
    if arguments.error_document is not None and arguments.json:
        try:
            print(json.dumps({**arguments.error_document, "error": message}), flush=True)
        except OSError:  # full, or closed: the exit code still says it
            _discard_output()
    return int(arguments.error_code)


if __name__ == "__main__":
    sys.exit(main())
