"""`logprobe runs`: the table of the Runs page."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from logprobe.app.runs import runs_of
from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.app.text.numbers import number
from logprobe.app.text.runs import line, worst_first
from logprobe.collectors.errors import LogprobeError
from logprobe.collectors.plain_text import complain, harmless
from logprobe.monitor import queries
from logprobe.monitor.elsewhere import checked
from logprobe.monitor.home import Home
from logprobe.monitor.queries import Source
from logprobe.monitor.reader import open_reader

_COLUMNS: Final = (
    "run",
    "verdict",
    "since",
    "cause",
    "alerts",
    "k3",
    "state",
    "last_step",
)


def run(arguments: Arguments) -> int:
    """Print one line per run, the worst first. With --also, add the runs of each other data directory.

    Exit code 1 if a data directory could not be read. Its name is on stderr.
    """
    home, places = _places_of(arguments)
    lines, failed = (_lines_at(places[0]), 0) if len(places) == 1 else _lines_of_several(places)
    show(lines, as_json=arguments.json)
    if not lines:
        _say_unlisted(home)
    _say_deleted(home)
    return failed


def _places_of(arguments: Arguments) -> tuple[Home, list[str]]:
    """Return the data directory, and all places to read: itself first, then those of --also.

    Raises `ConfigurationError`.
    """
    home = Home(home_path(arguments))
    return home, [str(home.path), *checked(arguments.also, home)]


def _lines_of_several(places: Sequence[str]) -> tuple[list[dict[str, Any]], int]:
    """Return the lines of all data directories, and the exit code: 1 if one of --also could not be read."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only for --also

    lines: list[dict[str, Any]] = []
    failed = 0
    with ThreadPoolExecutor(len(places)) as pool:
        pending = {where: pool.submit(_lines_at, where) for where in places}
        for where, asked in pending.items():
            try:
                lines += [row | {"where": where} for row in asked.result()]
            except LogprobeError as error:
                if where == places[0]:
                    raise
                complain(str(error))
                failed = 1
    return lines, failed


def _lines_at(where: str) -> list[dict[str, Any]]:
    with open_reader(where) as reader:
        return lines_of(reader)


def lines_of(source: Source) -> list[dict[str, Any]]:
    """Describe each run, the worst first. Raises the `QueryError` and `ServiceUnavailableError` of the source."""
    runs = worst_first(runs_of(queries.app_runs(source), datetime.now(UTC)))
    names = [of_run.name for of_run in runs]
    glances = {row["run"]: row for row in queries.app_runs_glance(source, runs=names).to_pylist()} if names else {}
    return [line(of_run, glances.get(of_run.name)) for of_run in runs]


def show(lines: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print one line per run. The text form omits minor columns."""
    if as_json:
        print(tables.dump_lines(lines))
    elif lines:
        shown = [_shown(row) for row in lines]
        print(tables.fitted(list(shown[0]), [list(row.values()) for row in shown]))
    else:
        print("no runs yet", file=sys.stderr)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    alerts = ", ".join(row["alerts"]) + (f" ({row['acknowledged_by']})" if row["acknowledged_by"] else "")
    plain = {name: row[name] for name in (*_COLUMNS, *(("where",) if "where" in row else ()))}
    return plain | {
        "alerts": alerts or None,
        "k3": number(row["k3"]),
    }


def _say_unlisted(home: Home) -> None:
    """Warn if runs have files but are not listed in the store."""
    with suppress(OSError):
        if next(home.raw.glob("[!!]*/*/*.parquet"), None) is not None:
            complain(f"{home.raw} has files of runs that this store does not list; ingest them: logprobe up")


def _say_deleted(home: Home) -> None:
    """Print the names of deleted runs that are still being recorded."""
    if not any((home.path / "deleted").glob("*")):
        return
    from logprobe.monitor.service.deleting import listed, waits  # noqa: PLC0415 - twice as slow, and seldom needed

    for tombstone in listed(home).all():
        if waits(home, tombstone.run):
            message = (
                f"{tombstone.run} was deleted at {tombstone.deleted_at}; what still comes of it is removed. Use another "
                "name for a new run"
            )
            print(harmless(message), file=sys.stderr)
