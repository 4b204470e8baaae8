"""Copies of relayed segments in an object store: what relays are told is safe survives the loss of the service's disk.

    <storage.segments>/<run>/<writer>/<sequence>.<kind>.<crc32>.arrow      as in the spool
    <storage.segments>/<run>/!partial.json      there are records of the run that were never copied, and which

All services of a fleet share one prefix, so that a run's copies stay where they are when it moves. They are kept until
the run is deleted.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypedDict

from logprobe.collectors.errors import ConfigurationError, ObjectStoreError, SegmentError, StoreError
from logprobe.collectors.files import READABLE, make_durable, replace_file
from logprobe.collectors.spool.segments import SegmentPath, run_dir, run_name
from logprobe.monitor.home import Home
from logprobe.monitor.objects.settings import StorageSettings, load
from logprobe.monitor.objects.store import ObjectStore

PARTIAL: Final = "!partial.json"  # no writer is called so
_AT_ONCE: Final = 8  # each waits for round trips


class Fetched(TypedDict):
    """What was put into a spool: `segments`; `missing`: numbers between those of a writer that have no copy."""

    segments: int
    missing: int


class SegmentCopies:
    """Below one prefix. Safe to share between threads; every method raises `ObjectStoreError`."""

    def __init__(self, prefix: str, objects: ObjectStore) -> None:
        """Connects to nothing yet."""
        self._prefix, self._objects = prefix, objects

    @classmethod
    def of(cls, settings: StorageSettings, objects: ObjectStore | None = None) -> SegmentCopies | None:
        """Those that the section ``storage`` asks for; None: it asks for none."""
        return None if settings.segments is None else cls(settings.segments, objects or ObjectStore(settings))

    def folder(self, run: str) -> str:
        """Of a run, with a slash at its end."""
        return f"{self._prefix}/{run_dir(Path(), run).name}/"

    def keep(self, segments: Iterable[tuple[SegmentPath, Path]]) -> None:
        """Copies files under the names that they have in the spool, and reads them back."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda segment: self._objects.put(segment[1], self._url(segment[0])), segments))

    def forget(self, segments: Iterable[SegmentPath]) -> None:
        """Removes the copies of some."""
        for segment in segments:
            self._objects.remove(self._url(segment))

    def _url(self, segment: SegmentPath) -> str:
        return f"{self._prefix}/{segment.segment_id}"

    def names(self, run: str | None = None) -> dict[str, list[str]]:
        """By run, those of its copies below the run's folder, and its `PARTIAL`; `run`: of it only."""
        by_run: dict[str, list[str]] = defaultdict(list)
        for copy in self._objects.listed(f"{self._prefix}/" if run is None else self.folder(run)):
            folder, _, name = copy.url.removeprefix(f"{self._prefix}/").partition("/")
            if name:
                by_run[run_name(folder)].append(name)
        return dict(by_run)

    def mark_partial(self, run: str, writer: str) -> None:
        """Says that not all records of a run have copies: those of `writer` have none."""
        self._objects.write(json.dumps({"writer": writer}).encode(), f"{self.folder(run)}{PARTIAL}")

    def fetch(self, run: str, home: Home) -> Fetched:
        """Puts all copies of a run into a spool, durably; those that were ingested before count once.

        Raises also `ConfigurationError` when records of the run were never copied, `StoreError` when a copy is not what
        it was, or the disk refuses.
        """
        names = self.names(run).get(run, [])
        if PARTIAL in names:
            raise ConfigurationError(
                f"run {run!r} cannot be had from {self.folder(run)}: it has records that were never copied there (of a "
                "collector without a "
                f"relay, an import, or from before `segments` was set; {PARTIAL} names a writer); restore a backup of "
                "its home"
            )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            segments = list(pool.map(lambda name: self._fetched(run, name, home), sorted(names)))
        numbers: dict[str, set[int]] = defaultdict(set)
        for segment in segments:
            numbers[segment.writer].add(segment.sequence)
        missing = sum(max(of_writer) - len(of_writer) for of_writer in numbers.values())
        return {"segments": len(segments), "missing": missing}

    def remove(self, folder: str) -> None:
        """Removes all copies in a run's folder; elsewhere nothing is removed."""
        if not folder.startswith(f"{self._prefix}/"):
            raise ObjectStoreError(f"{folder} is not below {self._prefix}: it is left alone")
        for copy in self._objects.listed(folder):
            self._objects.remove(copy.url)

    def _fetched(self, run: str, name: str, home: Home) -> SegmentPath:
        url, target = f"{self.folder(run)}{name}", run_dir(home.path, run) / name
        try:
            segment = SegmentPath.parse(target)
        except SegmentError as error:
            raise StoreError(f"{url} is not a segment; move it away") from error
        content = self._objects.content(url)
        if content is None or zlib.crc32(content) != segment.crc or name.count("/") != 1 or segment.run != run:
            raise StoreError(f"{url} is not the segment that its name says; put it back, or move it away")
        try:
            make_durable(target.parent)
            replace_file(target, content, mode=READABLE)
        except OSError as error:
            raise StoreError(
                f"{target} cannot be written ({error.strerror}); make room and repeat the command"
            ) from error
        return segment


class Copier:
    """Of one home: what its receiver copies, by the settings as they are now."""

    def __init__(self, home: Home) -> None:
        """Reads nothing yet."""
        self._home = home
        self._known: tuple[StorageSettings, SegmentCopies | None] | None = None

    def keep(self, segments: Mapping[SegmentPath, Path], is_deleted: Callable[[SegmentPath], bool]) -> None:
        """Copies segments, unless the settings ask for none, or their run was deleted, be it meanwhile.

        Settings with a mistake stay as they were. Raises `ConfigurationError` when that is not known,
        `ObjectStoreError`.
        """
        try:
            settings = load(self._home)
        except ConfigurationError:  # the service says so
            if self._known is None:
                raise
            settings = self._known[0]
        if self._known is None or self._known[0] != settings:
            self._known = settings, SegmentCopies.of(settings)
        if (copies := self._known[1]) is not None:
            kept = {at: path for at, path in segments.items() if not is_deleted(at)}
            copies.keep(kept.items())
            copies.forget(filter(is_deleted, kept))
