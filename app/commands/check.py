"""`logprobe store check`: compare each file of the archive with the checksum in its name.

The exit code is 2 if a file is damaged or foreign. The command changes nothing and may run while the service runs. The
JSON form: ``{"files", "bytes", "problems": [sentence]}``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

from logprobe.app.surface.arguments import Arguments, home_path
from logprobe.app.text import tables
from logprobe.app.text.numbers import data_size
from logprobe.app.text.terminal import progress
from logprobe.collectors.errors import StoreError
from logprobe.monitor.home import Home
from logprobe.monitor.store.archive_file import name_of
from logprobe.monitor.store.raw_files import NAME


class Checked(TypedDict):
    """Number of checked files, and their problems."""

    files: int
    bytes: int
    problems: list[str]


def run(arguments: Arguments) -> int:
    """Check every file of the archive. Return 2 if a file has a problem."""
    checked = check(Home(home_path(arguments)))
    tables.show(checked, lambda: _words(checked), as_json=arguments.json)
    return 2 if checked["problems"] else 0


def check(home: Home) -> Checked:
    """Read every file of the archive. Raises `StoreError` if the archive does not exist."""
    if not home.raw.is_dir():
        raise StoreError(f"{home.raw} does not exist: nothing was archived, or it is not mounted. Check --home.")
    paths = sorted(path for path in home.raw.glob("[!!]*/*/*") if path.is_file())
    checked: Checked = {"files": 0, "bytes": 0, "problems": []}
    with progress("checking files", len(paths)) as done:
        for number, path in enumerate(paths, 1):
            _check(path, checked)
            done(number)
    return checked


def _check(path: Path, checked: Checked) -> None:
    try:
        content = path.read_bytes()
    except FileNotFoundError:  # merged into another one meanwhile
        return
    except OSError as error:
        checked["problems"].append(f"{path} cannot be read ({error.strerror or error}). Restore it from a copy.")
        return
    checked["files"] += 1
    checked["bytes"] += len(content)
    if NAME.fullmatch(path.name) is None:
        checked["problems"].append(f"{path} is not a file of the archive. Move it away.")
    elif path.name != name_of(content):
        checked["problems"].append(f"{path} is damaged: its bytes do not match its name. Restore it from a copy.")


def _words(checked: Checked) -> Iterator[str]:
    yield f"checked  {checked['files']:,} files, {data_size(checked['bytes'])}"
    yield from (f"problem  {problem}" for problem in checked["problems"])
    yield "no problems" if not checked["problems"] else "what to do: docs/operating.md"
