"""The command `logprobe`.

Exit codes: 0 success, 1 an error, 2 wrong usage, a critical run (`show`) or a violated recipe (`compare --recipe`),
130 interrupted. One line on stderr explains an error. ``logprobe --debug`` adds the traceback. A command with another
meaning of 1 declares a different error code (`Leaf.error_code`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Final

import click

from logprobe.app.surface.arguments import Arguments
from logprobe.app.surface.commands import SECTIONS, WORDS
from logprobe.app.surface.declared import build, invoked
from logprobe.app.text.terminal import complete_streams, steerless_streams
from logprobe.collectors.errors import LogprobeError, MissingExtraError
from logprobe.collectors.plain_text import complain, harmless

# Packages that come with an extra, by the name that is imported.
_EXTRAS: Final[dict[str, str]] = {
    "apscheduler": "serve",
    "obstore": "bucket",
    "duckdb": "serve",
    "plotly": "serve",
    "polars": "serve",
    "pydantic": "serve",
    "rich": "serve",
    "streamlit": "serve",
    "yaml": "serve",
    "torch": "torch",
    "vllm": "vllm",
}
_QUICK: Final = ("runs", "show", "sql", "alerts")  # none of them needs pandas
_INTERRUPTED: Final = 130
_COMPLETING: Final = "_LOGPROBE_COMPLETE"  # set by the shell's script, see docs/reference.md


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Return the exit code."""
    program = build(SECTIONS, _perform, WORDS, [_version()])
    if argv is None:  # a process of our own
        if _COMPLETING in os.environ:
            program.main(prog_name="logprobe", complete_var=_COMPLETING)
        complete_streams()
        _without_pandas(sys.argv[1:])
    context = None
    with steerless_streams():
        try:
            context = program.make_context("logprobe", list(sys.argv[1:] if argv is None else argv))
            with context:
                return int(program.invoke(context) or 0)
        except click.exceptions.Exit as done:
            return done.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            print(error.format_message(), file=sys.stderr)
            return 2
        except click.UsageError as error:
            return _wrong_usage(error)
        except (KeyboardInterrupt, click.Abort):
            return _INTERRUPTED
        except Exception as error:  # noqa: BLE001 - the boundary of the process: one line instead of a traceback
            return _failed(context, error)


def _version() -> click.Option:
    def show(context: click.Context, _: click.Parameter, asked: bool) -> None:  # noqa: FBT001 - as click calls it
        if asked:
            from logprobe.app.surface.version import installed_version  # noqa: PLC0415 - slow to look up

            print(f"logprobe {installed_version()}")
            context.exit()

    words = "show the version and exit"
    return click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, help=words, callback=show)


def _without_pandas(words: Sequence[str]) -> None:
    """Keep pandas from being imported by a command that does not need it."""
    if any(word in _QUICK for word in words[:3]):
        from logprobe.app.pandas_guard import without_pandas  # noqa: PLC0415 - not for --help

        without_pandas()


def _perform(does: str, arguments: Arguments) -> int:
    from logprobe.monitor.home import apply_umask  # noqa: PLC0415 - not for --help

    apply_umask()
    try:
        module, _, function = does.partition(":")
        work = getattr(importlib.import_module(f"logprobe.app.commands.{module}"), function or "run")
        with _talking() if arguments.debug else nullcontext():
            code = int(work(arguments))
        sys.stdout.flush()
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise MissingExtraError(
            f"`{click.get_current_context().command_path}` needs the package {error.name!r}; pip install "
            f"'logprobe[{extra}]'"
        ) from error
    return code


@contextmanager
def _talking() -> Iterator[None]:
    """Log logprobe's debug messages, for ``--debug``."""
    import logging  # noqa: PLC0415 - not for --help

    logger = logging.getLogger("logprobe")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.setLevel(level)


def _wrong_usage(error: click.UsageError) -> int:
    path = "logprobe" if error.ctx is None else error.ctx.command_path
    message = harmless(error.format_message().replace("\n", " ")).rstrip(".")
    print(f"logprobe: {message}; see: {path} --help", file=sys.stderr)
    return error.exit_code


def _failed(context: click.Context | None, error: Exception) -> int:
    """Print the error in one line and return the exit code."""
    leaf, as_json, debug = invoked(context)
    code = 1 if leaf is None else leaf.error_code
    if isinstance(error, BrokenPipeError):  # `logprobe … | head`
        _discard_output()
        return code
    if _is_interrupt(error):
        return _INTERRUPTED
    message = str(error) if isinstance(error, LogprobeError) else _unforeseen(error)
    complain(message)
    if debug:
        import traceback  # noqa: PLC0415 - only here

        traceback.print_exception(error)
    if leaf is not None and leaf.error_document is not None and as_json:
        import json  # noqa: PLC0415 - only here

        try:
            print(json.dumps({**leaf.error_document, "error": message}), flush=True)
        except OSError:  # full, or closed: the exit code still says it
            _discard_output()
    return code


def _unforeseen(error: Exception) -> str:
    return f"unexpected {type(error).__name__}: {error}; `logprobe --debug` shows where, please report it"


def _is_interrupt(error: Exception) -> bool:
    """Return true if `error` is DuckDB's answer to Ctrl-C during a statement.

    DuckDB has no class for this error.
    """
    return type(error) is RuntimeError and str(error) == "Query interrupted"


def _discard_output() -> None:
    """Discard the buffered output of stdout, to prevent an error at interpreter shutdown."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
