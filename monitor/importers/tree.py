"""The files of a folder that another program writes: names and stamps, by plain listing, which works on network file systems."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from logprobe.monitor import limits
from logprobe.monitor.importers.source import Stamp


@dataclass(slots=True)
class Listing:
    """What was found. `problems`: what could not be looked at, and why."""

    files: dict[str, Stamp] = field(default_factory=dict)  # by their names below the root
    problems: list[str] = field(default_factory=list)


def listing(root: Path, patterns: Sequence[str], *, without: Path) -> Listing:
    """Regular files whose names match, but none below `without`. Never raises for what a disk refuses.

    Raises `ConfigurationError` for more files than an import may have.
    """
    found = Listing()
    if root.is_file():
        found.files[root.name] = Stamp.of(root.stat())
        return found
    for entry in _entries(root, found.problems, without):
        if not any(fnmatchcase(entry.name, pattern) for pattern in patterns):
            continue
        try:
            if entry.is_file():
                found.files[Path(entry.path).relative_to(root).as_posix()] = Stamp.of(entry.stat())
        except FileNotFoundError:  # renamed or removed since
            continue
        except OSError as error:
            found.problems.append(f"{entry.path}: {error.strerror}")
    if len(found.files) > limits.IMPORT_FILES.value:
        raise limits.IMPORT_FILES.exceeded(f"{root} holds {len(found.files):,} files to import")
    return found


def _entries(root: Path, problems: list[str], without: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below `root` but folders, one folder after the other. Links to folders are not followed."""
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry
                    elif Path(entry.path).resolve() != without:
                        waiting.append(entry.path)
        except FileNotFoundError:
            if folder == str(root):
                problems.append(f"{root} does not exist yet")
        except OSError as error:
            problems.append(f"{folder}: {error.strerror}")
