"""`logprobe store quarantine`: list, show, retry or drop files that were quarantined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypedDict

import pyarrow as pa

from logprobe.app.surface.arguments import Arguments, home_path, login, refuse_usage
from logprobe.app.text import tables
from logprobe.app.text.lost_records import about_file
from logprobe.collectors.errors import ConfigurationError, LogprobeError, SegmentError
from logprobe.collectors.spool.safe_read import read_regular
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.live import quarantine_actions
from logprobe.monitor.reader import open_reader

_ASIDE: Final = ("path", "run", "reason", "bytes", "moved_at")
_STUCK: Final = ("path", "run", "error", "attempts", "retry_seconds")


class Outcome(TypedDict):
    """Outcome for a file. `error`: reason why the file is ``unchanged``."""

    file: str
    status: str
    error: str | None


def run(arguments: Arguments) -> int:
    """List, show, retry or drop quarantined files. Return the exit code."""
    if arguments.retry and arguments.drop:
        refuse_usage("--retry and --drop exclude each other; pass one of them")
    if arguments.retry or arguments.drop:
        return _change(arguments, quarantine_actions.RETRY if arguments.retry else quarantine_actions.DROP)
    return _show(arguments) if arguments.files else _list(arguments)


def _list(arguments: Arguments) -> int:
    with open_reader(home_path(arguments)) as reader:
        files = queries.quarantine_list(reader, run=arguments.run).to_pylist()
        status = reader.status()
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


def _show(arguments: Arguments) -> int:
    """Print the reason, the content and the remedy of each quarantined file."""
    home = Home(home_path(arguments))
    with open_reader(home) as reader:
        rows = {row["path"]: row for row in queries.quarantine_list(reader, run=None).to_pylist()}
    documents = [_described(home, rows, file) for file in arguments.files]
    lines = [
        f"{key.replace('_', ' '):<10} {tables.fact(value)}\n"
        for document in documents
        for key, value in document.items()
    ]
    tables.show(documents, lambda: "".join(lines), as_json=arguments.json)
    return 0


def _described(home: Home, rows: Mapping[str, Mapping[str, Any]], file: str) -> dict[str, Any]:
    name = quarantine_actions.full_name(file)
    if name not in rows:
        raise ConfigurationError(f"no file {file!r} in quarantine; see `logprobe store quarantine`")
    happened, remedy = about_file(rows[name]["reason"])
    return {**rows[name], "happened": happened, "remedy": remedy, "content": _content(home.path / name)}


def _content(path: Path) -> str:
    """Return the readable content of the file."""
    try:
        data = read_regular(path)
    except SegmentError as error:
        return str(error)
    except OSError as error:
        return f"cannot be read ({error})"
    try:
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
    except (pa.ArrowException, OSError) as error:
        return f"{len(data):,} bytes, not an Arrow file ({error})"
    stated = {
        key.decode(errors="replace"): value.decode(errors="replace")
        for key, value in (table.schema.metadata or {}).items()
    }
    origin = ", ".join(
        f"{key.removeprefix('logprobe.')} {value}" for key, value in stated.items() if key.startswith("logprobe.")
    )
    return f"an Arrow file with {table.num_rows:,} rows; {origin or 'not written by logprobe'}"


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
