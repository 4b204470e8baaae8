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
            list(pool.map(lambda each: self._objects.put(each[1], f"{self._prefix}/{each[0].segment_id}"), segments))

    def forget(self, segments: Iterable[SegmentPath]) -> None:
        """Removes the copies of some."""
        for each in segments:
            self._objects.remove(f"{self._prefix}/{each.segment_id}")

    def names(self, run: str | None = None) -> dict[str, list[str]]:
        """By run, those of its copies below the run's folder, and its `PARTIAL`; `run`: of it only."""
        found: dict[str, list[str]] = defaultdict(list)
        for each in self._objects.listed(f"{self._prefix}/" if run is None else self.folder(run)):
            folder, _, name = each.url.removeprefix(f"{self._prefix}/").partition("/")
            if name:
                found[run_name(folder)].append(name)
        return dict(found)

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
                f"run {run!r} cannot be had from {self.folder(run)}: it has records that were never copied there (of a collector without a "
                f"relay, an import, or from before `segments` was set; {PARTIAL} names a writer); restore a backup of its home"
            )
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            found = list(pool.map(lambda name: self._fetched(run, name, home), sorted(names)))
        numbers: dict[str, list[int]] = defaultdict(list)
        for segment in found:
            numbers[segment.writer].append(segment.sequence)
        return {"segments": len(found), "missing": sum(max(each) - len(set(each)) for each in numbers.values())}

    def remove(self, folder: str) -> None:
        """Removes all copies in a run's folder; elsewhere nothing is removed."""
        if not folder.startswith(f"{self._prefix}/"):
            raise ObjectStoreError(f"{folder} is not below {self._prefix}: it is left alone")
        for each in self._objects.listed(folder):
            self._objects.remove(each.url)

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

        Raises `ConfigurationError` while the settings cannot be read, `ObjectStoreError`.
        """
        settings = load(self._home)
        if self._known is None or self._known[0] != settings:
            self._known = settings, SegmentCopies.of(settings)
        if (copies := self._known[1]) is not None:
            kept = {at: path for at, path in segments.items() if not is_deleted(at)}
            copies.keep(kept.items())
            copies.forget(filter(is_deleted, kept))
