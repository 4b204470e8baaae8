"""Mirror of a data directory in a bucket, from which a lost data directory is restored.

    archive/!home, archive/RUN/KIND/CHECKSUM.parquet, deleted/RUN.json, journal.jsonl       as in the data directory

The object of a segment is removed only after the segment was merged and all files of its run's archive are in the
bucket. A file is removed from the bucket only after other files there have its segments. The tombstone of a run is in
the bucket before its data is removed. An interruption therefore leaves surplus copies, loses none, and restores no
deleted run.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from logprobe.collectors.directives import DirectiveFile
from logprobe.collectors.errors import ConfigurationError, StoreError
from logprobe.collectors.files import open_no_follow, replace_file, stamp_of
from logprobe.collectors.shipping import control
from logprobe.collectors.shipping.bucket import ARCHIVE, CONTROL, DELETED, SPOOL, Bucket
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor.home import Home
from logprobe.monitor.plain_text import file_name
from logprobe.monitor.shipped.landing import place_of, require_room
from logprobe.monitor.store.archive_file import footer, merged_of, name_of
from logprobe.monitor.store.archive_identity import IDENTITY, MARK
from logprobe.monitor.store.journal import NAME as JOURNAL
from logprobe.monitor.store.raw_files import NAME

LOGGER: Final = logging.getLogger("logprobe.bucket")
SECONDS: Final = 5.0
_ALL_SECONDS: Final = 60.0  # between two looks at all runs
_AT_ONCE: Final = 8
_FOLDERS: Final = 2  # RUN/KIND
_HIDDEN: Final = ("", ".", "!")  # begin the names of what is none of a run's
_SUFFIX: Final = ".json"


def restore(bucket: Bucket, home: Home) -> None:
    """Copy missing files of the bucket into a data directory before its store is opened.

    Raises `ConfigurationError` if the bucket belongs to another data directory, and `StoreError` if this one is new and
    the bucket cannot be read.
    """
    mine, mark = _line(home.path / IDENTITY), _line(home.path / ARCHIVE / MARK)
    if mine is not None and mark != mine:
        return  # the archive is not mounted, which it says itself
    try:
        theirs = bucket.get(ARCHIVE + MARK)
        if theirs is None:
            return
        _require_same(bucket, mark, theirs)
        _bring(bucket, home, new=mine is None)
        if mine is None:  # last: until then another start brings the rest
            for path in (home.path / ARCHIVE / MARK, home.path / IDENTITY):
                replace_file(path, theirs)
    except OSError as error:
        if mine is None:
            raise StoreError(f"a new home begins with what its bucket has: {error}") from error
        LOGGER.warning("what the bucket may have beyond this home is not looked at: %s", error)


def _bring(bucket: Bucket, home: Home, *, new: bool) -> None:
    deleted = set(_tombstones(bucket))
    for name in sorted(deleted):
        _fetch(bucket, home, name)
    if new:
        _fetch(bucket, home, JOURNAL)
        for entry in bucket.entries(CONTROL):
            run = run_name(Path(entry.name).name.removesuffix(_SUFFIX))
            content = bucket.get(entry.name)
            if content is not None and control.document(DirectiveFile(home.path, run), run) is None:
                with suppress(ValueError):  # not a document of ours
                    control.apply(home.path, run, content)
    files = [name for name in _archived(bucket) if _tombstone(_folder(name)) not in deleted]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logprobe-restore") as pool:
        list(pool.map(lambda name: _fetch(bucket, home, name), files))


def _fetch(bucket: Bucket, home: Home, name: str) -> None:
    path = home.path / name
    content = None if path.exists() else bucket.get(name)
    if content is None:
        return
    if name.startswith(ARCHIVE) and path.name != name_of(content):
        LOGGER.warning("%s/%s is damaged: its bytes do not match the checksum in its name", bucket.address, name)
        return
    require_room(home.path, len(content))
    replace_file(path, content)


class Mirror:
    """Synchronizer of a bucket with its data directory. Only one thread may use it."""

    def __init__(
        self,
        bucket: Bucket,
        home: Path,
        known: Callable[[list[str]], Collection[str]],
        deleted: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Set up the mirror. `known`: function that returns the ingested segments. `deleted`: function that returns
        whether a run was deleted.
        """
        self._bucket, self._home, self._known, self._deleted = bucket, home, known, deleted
        self._files: defaultdict[str, set[str]] | None = None  # by run, those in the bucket; None: not known yet
        self._tombstones = set[str]()  # in the bucket
        self._only = set[str]()  # files that the home has no longer, and no others stand for
        self._journal: object = None  # stamp of what is there
        self._all_at = 0.0
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="logprobe-mirror")

    def once(self, landed: Mapping[str, str], late: Collection[str] = ()) -> int:
        """Upload new files and remove the objects of merged segments. Return their numbers.

        Args:
            landed: ``RUN/WRITER/FILE`` → id of the segment, for existing objects.
            late: folders of deleted runs with objects.

        Raises `ConfigurationError` if the bucket belongs to another data directory, and `OSError`. The next call
        continues.
        """
        mine = _line(self._home / IDENTITY)
        if mine is None or not self._is_mounted(mine):
            return 0
        files = self._files = self._look(mine) if self._files is None else self._files
        self._bury(files, late)
        gone = {name: id_ for name, id_ in landed.items() if not place_of(self._home, name).path.exists()}
        known = set(self._known(list(gone.values()))) if gone else set[str]()
        merged = [name for name, id_ in gone.items() if id_ in known]  # what went to quarantine is not known
        every = time.monotonic() >= self._all_at
        runs = _runs(self._home) if every else {_run(name) for name in merged}
        held = self._keep({run: files[run] for run in runs if not self._deleted(run_name(run))})
        if every:
            self._put_journal()
            self._all_at = time.monotonic() + _ALL_SECONDS
        surplus = [SPOOL + name for name in merged if _run(name) in held]
        if not surplus or not self._is_mounted(mine):  # a folder that is gone meanwhile looks like one that is complete
            return 0
        self._bucket.remove(surplus)
        return len(surplus)

    def _is_mounted(self, mine: bytes) -> bool:
        return _line(self._home / ARCHIVE / MARK) == mine

    def close(self) -> None:
        """Stop pending transfers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _look(self, mine: bytes) -> defaultdict[str, set[str]]:
        theirs = self._bucket.get(ARCHIVE + MARK)
        _require_same(self._bucket, mine, theirs)
        if theirs is None:
            self._bucket.put(ARCHIVE + MARK, mine)
        files = defaultdict[str, set[str]](set)
        for name in _archived(self._bucket):
            files[_folder(name)].add(name)
        self._tombstones = set(_tombstones(self._bucket))
        return files

    def _bury(self, files: defaultdict[str, set[str]], late: Collection[str]) -> None:
        """Upload the tombstones of deleted runs, then remove the runs."""
        for path in (self._home / DELETED).glob(f"[!.]*{_SUFFIX}"):
            if DELETED + path.name not in self._tombstones:
                self._bucket.put(DELETED + path.name, path.read_bytes())
                self._tombstones.add(DELETED + path.name)
        for folder in {*files, *late}:
            if _tombstone(folder) in self._tombstones:
                names = [each.name for top in (ARCHIVE, SPOOL) for each in self._bucket.entries(f"{top}{folder}/")]
                self._bucket.remove(names)
                files.pop(folder, None)

    def _keep(self, runs: Mapping[str, set[str]]) -> set[str]:
        """Upload missing files of runs and remove superseded ones. Return the complete runs.

        `runs`: files in the bucket by folder of the run.
        """
        missing = [(name, there) for run, there in runs.items() for name in _local(self._home, run) - there]
        list(self._pool.map(lambda each: self._put(*each), missing))
        complete = set()
        for run, there in runs.items():
            now = _local(self._home, run)  # one that stands for others may have come meanwhile
            if now <= there:
                complete.add(run)
                self._remove_copies(there, now)
        return complete

    def _put(self, name: str, there: set[str]) -> None:
        """Upload a file of the archive. The archive itself reports a damaged file."""
        with suppress(FileNotFoundError), open_no_follow(self._home / name) as file:
            content = file.read()
            if name.rpartition("/")[2] == name_of(content):
                self._bucket.put(name, content)
                there.add(name)

    def _remove_copies(self, there: set[str], now: set[str]) -> None:
        """Remove files that the data directory lacks, if its files have the same segments."""
        surplus = there - now - self._only
        held = set[str]().union(*(_segments(name, _mapped(self._home / name)) for name in now if surplus))
        for name in surplus:
            segments = _segments(name, self._bucket.get(name) or b"")
            if segments and segments <= held:
                self._bucket.remove([name])
                there.discard(name)
            else:
                self._only.add(name)

    def _put_journal(self) -> None:
        path = self._home / JOURNAL
        stamp = stamp_of(path)
        if stamp is not None and stamp != self._journal:
            self._bucket.put(JOURNAL, path.read_bytes())
            self._journal = stamp


def _tombstones(bucket: Bucket) -> Iterator[str]:
    """List the tombstones in a bucket."""
    for entry in bucket.entries(DELETED):
        name = entry.name.removeprefix(DELETED)
        if "/" not in name and not name.startswith(".") and name.endswith(_SUFFIX):
            yield entry.name


def _archived(bucket: Bucket) -> Iterator[str]:
    """List the archive's files in a bucket."""
    for entry in bucket.entries(ARCHIVE):
        _, *folders, name = entry.name.split("/")
        if len(folders) == _FOLDERS and NAME.fullmatch(name) and all(part[:1] not in _HIDDEN for part in folders):
            yield entry.name


def _folder(name: str) -> str:
    return name.split("/")[1]


def _run(name: str) -> str:
    return name.partition("/")[0]


def _tombstone(run_folder: str) -> str:
    return f"{DELETED}{file_name(run_folder)}{_SUFFIX}"


def _runs(home: Path) -> Iterator[str]:
    """Yield the folders of the runs in a data directory's archive."""
    with suppress(FileNotFoundError):
        yield from (path.name for path in (home / ARCHIVE).iterdir() if path.name[:1] not in _HIDDEN)


def _local(home: Path, run: str) -> set[str]:
    """Return the names of the files of a run in a data directory's archive."""
    return {
        path.relative_to(home).as_posix() for path in (home / ARCHIVE / run).glob("*/*") if NAME.fullmatch(path.name)
    }


def _segments(name: str, content: bytes | pa.Buffer) -> frozenset[str]:
    """Return the ids of the segments in a file of the archive, none for an unreadable file."""
    stated = footer(content)
    return merged_of(name.removeprefix(ARCHIVE), stated, 0).segments if stated else frozenset()


def _mapped(path: Path) -> bytes | pa.Buffer:
    """Map the content of a file, which is read in parts on demand."""
    try:
        return pa.memory_map(str(path)).read_buffer()
    except FileNotFoundError:  # merged again meanwhile
        return b""


def _line(path: Path) -> bytes | None:
    try:
        return path.read_bytes().strip()
    except FileNotFoundError:
        return None


def _require_same(bucket: Bucket, mine: bytes | None, theirs: bytes | None) -> None:
    if mine is not None and theirs is not None and mine != theirs.strip():
        raise ConfigurationError(
            f"{bucket.address} belongs to another home: start with an empty --home to take it over, or use another "
            "prefix"
        )
