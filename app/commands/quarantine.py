"""`logprobe store quarantine`: list, retry or drop files that were quarantined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypedDict

from logprobe.app.surface.arguments import Arguments, home_path, login, refuse_usage
from logprobe.app.text import tables
from logprobe.app.text.lost_records import about_file
from logprobe.collectors.errors import ConfigurationError, LogprobeError
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.live import quarantine_actions
from logprobe.monitor.reader import open_reader

_ABOUT: Final = ("happened", "remedy")
_ASIDE: Final = ("path", "run", "reason", "message", "remedy", "bytes", "moved_at")
_STUCK: Final = ("path", "run", "error", "attempts", "retry_seconds")


class Outcome(TypedDict):
    """Outcome for a file. `error`: reason why the file is ``unchanged``."""

    file: str
    status: str
    error: str | None


def run(arguments: Arguments) -> int:
    """List, retry or drop quarantined files. Return the exit code."""
    if arguments.retry and arguments.drop:
        refuse_usage("--retry and --drop exclude each other; pass one of them")
    if arguments.retry or arguments.drop:
        return _change(arguments, quarantine_actions.RETRY if arguments.retry else quarantine_actions.DROP)
    if arguments.files:
        refuse_usage("FILE: pass --retry or --drop, too; without FILE, all are listed with what to do")
    return _list(arguments)


def _list(arguments: Arguments) -> int:
    with open_reader(home_path(arguments)) as reader:
        rows = queries.quarantine_list(reader, run=arguments.run).to_pylist()
        status = reader.status()
    files = [{**row, **dict(zip(_ABOUT, about_file(row["reason"]), strict=True))} for row in rows]
    waiting = status["stuck"]["files"] if "stuck" in status else []
    stuck = [file for file in waiting if arguments.run in {None, file["run"]}]
    if arguments.json:
        print(tables.dump({"files": files, "stuck": stuck}))
        return 0
    _print("in quarantine", files, _ASIDE)
    _print("in the spool, cannot be read now", stuck, _STUCK)
    return 0


def _print(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    if not rows:
        print(f"{title}: none")
        return
    print(f"{title}: {len(rows)}")
    print(tables.fitted(columns, [[row[name] for name in columns] for row in rows]))


def _change(arguments: Arguments, action: str) -> int:
    """Apply the action to each file and continue after a failure."""
    home = Home(home_path(arguments))
    done = [_outcome(home, action, file, login()) for file in _files(home, arguments)]
    lines = [f"{outcome['file']}: {outcome['error'] or outcome['status']}" for outcome in done]
    tables.show(done, lambda: lines, as_json=arguments.json)
    return 1 if any(outcome["error"] for outcome in done) else 0


def _outcome(home: Home, action: str, file: str, author: str) -> Outcome:
    try:
        handled = quarantine_actions.perform(home, action, {"file": file, "author": author})
    except LogprobeError as error:
        return {"file": file, "status": "unchanged", "error": str(error).partition("\n")[0]}
    return {"file": handled["file"], "status": handled["status"], "error": None}


def _files(home: Home, arguments: Arguments) -> list[str]:
    if bool(arguments.files) == arguments.all:
        raise ConfigurationError("no files named: give them as `logprobe store quarantine` prints them, or pass --all")
    if arguments.files:
        return list(arguments.files)
    with open_reader(home) as reader:
        return [row["path"] for row in queries.quarantine_list(reader, run=arguments.run).to_pylist()]
