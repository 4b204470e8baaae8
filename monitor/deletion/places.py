"""Where a home keeps files of a run, outside of the store's tables."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.files import open_no_follow
from logprobe.collectors.spool.segments import run_dir
from logprobe.monitor.home import Home
from logprobe.monitor.loggers import wandb_id
from logprobe.monitor.plain_text import file_name

RAW: Final = "raw"  # its files may be being read: see `RetiredFiles`
_FOLDERS: Final = ("spool", "readings")
_LINES: Final = ("versions", "directives")


def places_of(home: Home, run: str) -> list[Path]:
    """Files and folders that are the run's own, apart from raw tokens, as far as they exist now."""
    name = run_dir(home.path, run).name
    paths = [home.path / folder / name for folder in _FOLDERS]
    paths.append(home.quarantine / file_name(name))
    paths += [path for folder in _LINES for path in _of_lines(home.path / folder, name)]
    paths += (home.path / "pushed" / "wandb" / "wandb").glob(f"*run-*-{wandb_id(run)}")
    paths += _recomputed(home, run)
    return [path for path in paths if os.path.lexists(path)]


def cached(home: Home) -> list[Path]:
    """Answers that `logprobe bisect` keeps. They are named by what decides them, not by a run: with any run all of them
    go."""
    return list((home.path / "proof").glob("*.json"))


def raw_folder(home: Home, run: str) -> Path:
    """Folder of the run's raw tokens."""
    return home.path / RAW / run_dir(home.path, run).name


def files_in(place: Path) -> Iterator[tuple[Path, int]]:
    """Files below a folder, or the file itself, with their sizes; what vanishes meanwhile is left out. No link is
    followed."""
    with suppress(OSError):
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode):
            yield place, status.st_size
            return
        with os.scandir(place) as entries:
            below = [Path(entry.path) for entry in entries]
        for path in below:
            yield from files_in(path)


def remove(place: Path) -> None:
    """Removes a file or a whole folder; what is gone already is removed. Raises `OSError`.

    A collector that is still at work makes its folder again.
    """
    for path, _ in list(files_in(place)):
        path.unlink(missing_ok=True)
    remove_empty(place)


def remove_empty(folder: Path) -> None:
    """Removes a folder and those in it, as far as they are empty."""
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            Path(place).rmdir()


def remove_deserted(folder: Path, seconds: float) -> None:
    """Removes empty folders in which nothing has moved for a while: a collector at work must not lose its own all the
    time."""
    for place, _, _ in os.walk(folder, topdown=False):
        with suppress(OSError):
            if time.time() - Path(place).stat().st_mtime > seconds:
                Path(place).rmdir()


def _recomputed(home: Home, run: str) -> Iterator[Path]:
    """Statistics that are being sent to the service; only what is in a file says of which run."""
    for path in (home.path / "recomputed").glob("*.arrow"):
        with suppress(OSError, pa.ArrowException), open_no_follow(path) as file, pa.ipc.open_file(file) as reader:
            if reader.num_record_batches and run in reader.get_batch(0)["run"].to_pylist()[:1]:
                yield path


def _of_lines(folder: Path, name: str) -> Iterator[Path]:
    """The run's files, and what a killed process left behind of them."""
    ours = re.compile(rf"{re.escape(name)}\.(jsonl?|stop)|\.{re.escape(name)}\.(jsonl?|stop)\.[^.]+")
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries if ours.fullmatch(entry.name))
