"""Upload of directives for trainers from the data directory to the bucket, after each change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from logprobe.collectors.directives import FOLDER, STOP, DirectiveFile
from logprobe.collectors.files import stamp_of
from logprobe.collectors.shipping.bucket import CONTROL, Bucket
from logprobe.collectors.shipping.control import document, name_of, nothing
from logprobe.collectors.spool.segments import run_name
from logprobe.monitor.home import Home
from logprobe.monitor.service.jobs import Progress

SECONDS: Final = 0.5
_SUFFIX: Final = ".json"
_Stamp = tuple[object, object]


class Publisher:
    """Publisher of one data directory's documents in its bucket. Only one thread at a time may use it."""

    def __init__(self, bucket: Bucket, home: Home, deleted: Callable[[str], bool] = lambda _: False) -> None:
        """Set up the publisher. `deleted`: function that returns whether a run was deleted."""
        self._bucket, self._home, self._deleted = bucket, home, deleted
        self._said: dict[str, bytes] | None = None  # None: what the bucket says is not known yet
        self._stamps: dict[str, _Stamp] = {}

    def once(self) -> Progress:
        """Upload changed documents. Raises `OSError`, after which the next call continues."""
        if self._said is None:
            self._said = dict(self._published())
        put, problems = 0, list[str]()
        for run in {*self._told(), *self._said}:
            if self._deleted(run):
                self._forget(run, self._said)
                continue
            file = DirectiveFile(self._home.path, run)
            stamp = stamp_of(file.path), stamp_of(file.stop_path)
            if self._stamps.get(run) != stamp:
                try:
                    now = document(file, run)
                except OSError as error:  # one that is a link, or cannot be read, keeps no other run from being told
                    problems.append(f"{run}: {error}")
                    continue
                put += self._tell(run, now, self._said)
                self._stamps[run] = stamp
        return {"runs": len(self._said), "put": put, **({"problem": problems[0]} if problems else {})}

    def _forget(self, run: str, said: dict[str, bytes]) -> None:
        if run in said:
            self._bucket.remove([f"{CONTROL}{name_of(run)}{_SUFFIX}"])
            del said[run]
        self._stamps.pop(run, None)

    def _tell(self, run: str, told: bytes | None, said: dict[str, bytes]) -> int:
        now = told or (nothing(run) if run in said else None)
        if now is None or now == said.get(run):
            return 0
        self._bucket.put(f"{CONTROL}{name_of(run)}{_SUFFIX}", now)
        said[run] = now
        return 1

    def _told(self) -> Iterator[str]:
        """Yield the runs with documents in the data directory."""
        try:
            names = [path.name for path in (self._home.path / FOLDER).iterdir()]
        except FileNotFoundError:
            return
        for name in names:
            for suffix in (_SUFFIX, STOP):
                if name.endswith(suffix) and not name.startswith("."):
                    yield run_name(name.removesuffix(suffix))

    def _published(self) -> Iterator[tuple[str, bytes]]:
        for entry in self._bucket.entries(CONTROL):
            content = self._bucket.get(entry.name)
            if content is not None and entry.name.endswith(_SUFFIX):
                yield run_name(Path(entry.name).name.removesuffix(_SUFFIX)), content
