"""Conversion of declarations to click commands, made on demand, and the options that all commands share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from logprobe.app.surface.arguments import Arguments, Checked
from logprobe.collectors.errors import LogprobeError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Param: TypeAlias = Callable[[], click.Parameter]
Perform: TypeAlias = Callable[[str, Arguments], int]  # `Leaf.does`, arguments → exit code
_WIDTH: Final = 100
_USUAL_WIDTH: Final = 80
_MORE: Final = "--home, --json and --debug: see `logprobe --help`."


@dataclass(frozen=True, slots=True)
class Leaf:
    """Declaration of a command. `does`: module of `logprobe.app.commands` with a function `run`, or
    ``module:function``."""

    words: str
    does: str
    params: tuple[Param, ...] = ()
    options: Mapping[str, Any] | None = None  # of `click.Command`
    error_code: int = 1
    error_document: Mapping[str, Any] | None = None  # what ``--json`` prints beside ``error``


Leaves: TypeAlias = Mapping[str, Leaf]


@dataclass(frozen=True, slots=True)
class Branch:
    """A command with subcommands."""

    words: str
    leaves: Leaves


Entries: TypeAlias = Mapping[str, Leaf | Branch]
Sections: TypeAlias = Mapping[str, Entries]


def option(
    names: str, words: str, *, dest: str = "", parse: Callable[[str], Any] | None = None, **options: Any
) -> Param:
    """Declare ``--flag`` or ``--option VALUE``. `options`: options of click. `dest`: name in `Arguments`."""
    parts = names.split()
    flags = [part for part in parts if part.startswith("--")]
    value = " ".join(part for part in parts if not part.startswith("--"))
    if value:
        options["metavar"] = value
    elif "type" not in options:
        options["is_flag"] = True
    if parse is not None:
        options["type"] = Checked(parse)
    if options.get("default") not in {None, ""} and not isinstance(options["default"], tuple):
        options.setdefault("show_default", True)
    return lambda: click.Option([*flags, *([dest] if dest else [])], help=words, **options)


def argument(name: str, value: str, *, complete: str | None = None, **options: Any) -> Param:
    """Declare a positional argument, shown as `value`. `complete`: kind of shell completion, ``run`` or ``file``."""
    if complete == "run":
        options["shell_complete"] = run_names
    elif complete == "file":
        options["type"] = click.Path()
    return lambda: click.Argument([name], metavar=value, **options)


def run_names(context: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the names of runs in the data directory that begin with `begun`, or none if they cannot be read."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a Tab needs it

    from logprobe.monitor import queries  # noqa: PLC0415
    from logprobe.monitor.reader import open_reader  # noqa: PLC0415

    try:
        with open_reader(_shared(context)["home"]) as reader:
            names = queries.app_runs(reader)["run"].to_pylist()
    except (LogprobeError, ImportError):
        return []
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _shared_options(*, hidden: bool) -> list[click.Parameter]:
    home = (
        "data directory, or the address of a bucket (default: $LOGPROBE_HOME, else one of your own: `logprobe doctor`)"
    )
    return [
        click.Option(["--home"], metavar="DIR", help=home, hidden=hidden, expose_value=False, callback=_keep),
        click.Option(["--json"], is_flag=True, help="one JSON document; unknown is null", hidden=hidden,
                     expose_value=False, callback=_keep),
        click.Option(["--debug"], is_flag=True, help="show where an error comes from", hidden=hidden,
                     expose_value=False, callback=_keep),
    ]  # fmt: skip


def _keep(context: click.Context, param: click.Parameter, value: Any) -> None:
    """Store the value of a shared option from any position of the command line."""
    if value not in {None, False} and param.name is not None:
        context.find_root().meta[param.name] = value


def _shared(context: click.Context) -> dict[str, Any]:
    from logprobe.collectors.addresses import default_home  # noqa: PLC0415 - not for --help

    given = context.find_root().meta
    home = given.get("home")
    return {"home": home or default_home(), "home_given": home, "json": "json" in given, "debug": "debug" in given}


class _Command(click.Command):
    """A command that also accepts the shared options, which its help does not list."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *_shared_options(hidden=True)]


class _Group(click.Group):
    """Commands by section, each made on demand. The error for a wrong name suggests the closest one."""

    def __init__(self, sections: Sections, perform: Perform, *, root: bool, **options: Any) -> None:
        super().__init__(subcommand_metavar="COMMAND", **options)
        self._sections = sections
        self._perform = perform
        self._root = root

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *_shared_options(hidden=not self._root)]

    def _entries(self) -> dict[str, Leaf | Branch]:
        return {name: entry for section in self._sections.values() for name, entry in section.items()}

    def list_commands(self, _: click.Context) -> list[str]:
        return list(self._entries())

    def get_command(self, _: click.Context, name: str) -> click.Command | None:
        entry = self._entries().get(name)
        if isinstance(entry, Branch):
            return _Group({"Commands": entry.leaves}, self._perform, root=False, name=name, help=_sentence(entry.words))
        return None if entry is None else _made(name, entry, self._perform)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        entries = self._entries()
        if args[0] not in entries and not args[0].startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches  # noqa: PLC0415 - only a mistake needs it

            near = get_close_matches(args[0], entries, n=1)
            ctx.fail(
                f"{args[0]!r} does not exist; did you mean {near[0]!r}?"
                if near
                else f"{args[0]!r} does not exist; commands: {', '.join(entries)}"
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        for title, entries in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.words) for name, entry in entries.items()], col_max=12)


def _made(name: str, leaf: Leaf, perform: Perform) -> click.Command:
    def run(**values: Any) -> int:
        context = click.get_current_context()
        context.find_root().meta["leaf"] = leaf
        return perform(leaf.does, SimpleNamespace(**values, **_shared(context)))

    return _Command(
        name,
        params=[make() for make in leaf.params],
        callback=run,
        help=_sentence(leaf.words),
        epilog=_MORE,
        **(leaf.options or {}),
    )


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def build(sections: Sections, perform: Perform, words: str, params: Iterable[click.Parameter] = ()) -> click.Group:
    """Return the command `logprobe` for click."""
    return _Group(
        sections,
        perform,
        root=True,
        name="logprobe",
        help=words,
        params=list(params),
        epilog="`logprobe COMMAND --help` explains a command.",
        context_settings={"terminal_width": _width()},
    )


def _width() -> int:
    """Return the width of help texts: the width of the terminal, without the slow import of `shutil`."""
    try:
        columns = int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(1).columns
    except (ValueError, OSError):
        columns = 0
    return min(columns or _USUAL_WIDTH, _WIDTH)


def invoked(context: click.Context | None) -> tuple[Leaf | None, bool, bool]:
    """Return the command that a context ran, and its flags for JSON output and tracebacks."""
    given = {} if context is None else context.find_root().meta
    return given.get("leaf"), "json" in given, "debug" in given


def leaves(sections: Sections) -> Iterable[tuple[tuple[str, ...], Leaf]]:
    """Return every executable command, by its words on the command line."""
    for section in sections.values():
        for name, entry in section.items():
            if isinstance(entry, Branch):
                yield from (((name, action), leaf) for action, leaf in entry.leaves.items())
            else:
                yield (name,), entry
