"""Archive of an open store. It merges ingested segments into files and indexes the location of their rows.

The rows of a segment are in its spool file until a file of the archive holds them. ``segments.raw_file`` names the
current file. A reader of a run's tokens has the run's segments merged first (`bring`).

A thread that holds the archive's lock never waits for the store's writer. The writer may wait for the archive's lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import StoreError
from logprobe.collectors.files import is_gone
from logprobe.collectors.locks import FileLock
from logprobe.collectors.spool.segments import Segment, SegmentPath, run_name
from logprobe.monitor import queries
from logprobe.monitor.home import Home
from logprobe.monitor.store import frozen, tiers
from logprobe.monitor.store.archive import Archive, Changes, Counts, MergeReport
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES, Merged, with_rows
from logprobe.monitor.store.archive_identity import MARK
from logprobe.monitor.store.merging import Merger, Refused, TakenIn
from logprobe.monitor.store.raw_files import RAW_KINDS, empty_rows
from logprobe.monitor.store.readers import Readers
from logprobe.monitor.store.tombstone import Deletion, Rest, Tombstone, Tombstones

if TYPE_CHECKING:
    from logprobe.monitor.store.store import Store

FOLDER: Final = "archive/"  # in front of the paths of its files in the index, which are relative to the home
SPOOL: Final = "spool/"
_FORGET_SECONDS: Final = 600.0  # after which the files of a run that nobody merges are no longer in memory
_MOST_NAMED: Final = 10
_LEFT: Final = "{place} cannot be read ({why}): restore that file, or move it away"
_FILES: Final = pa.schema(
    [(name, pa.string()) for name in ("path", "run", "kind")]
    + [(name, pa.int64()) for name in ("min_step", "max_step", "rows", "bytes")]
    + [("created_at", pa.timestamp("us", "UTC"))]
)
_ROWS: Final = {"training": "archive_trained", "rollout": "archive_sampled"}
_PLACES: Final = pa.schema([("path", pa.string()), ("segment_id", pa.string())])


class Archiving:
    """Archive of one open store. Safe to share between threads."""

    def __init__(self, store: Store, home: Home, readers: Readers, time: Time) -> None:
        """Set up the archive without disk access."""
        self._store = store
        self._home = home
        self._readers = readers
        self._time = time
        self._turn = threading.RLock()
        self.tombstones = Tombstones(home.path, time=time)
        self._archive = Archive(home.path, deleted=self.tombstones.__contains__, known=store.damaged.known, time=time)
        self._merger = Merger(self._archive)
        self._deletion = Deletion(home.path, self.tombstones, self._archive)
        self._opened = False
        self._lock: FileLock | None = None
        self._used: dict[str, float] = {}  # run → when it was merged last (monotonic)
        self._swept_after: frozenset[int] = frozenset()  # reads that may need files that can go
        self._refused: list[Refused] = []
        self._merged = 0  # merges that changed files
        self._noted = 0  # those of them that the index knows
        self._waiting: dict[str, str] = {}  # place → why it could not be read or written by the last merge
        self._unread: dict[str, str] = {}  # folder or file → why it cannot be read since the start
        self.problem: str | None = None  # why nothing is written or removed, as seen last

    def open(self) -> bool:
        """Compare the files with the index at the first call, and later only check that the folder exists.

        Return whether unknown files may exist. If this raises `StoreError`, nothing may be stored.
        """
        if self._is_open():  # not in turn: a tick must not wait for a merge
            self._require(self._archive.require)
            return self._look_again()
        listed = [path.removeprefix(FOLDER) for path in queries.raw_files(self._store)["path"].to_pylist()]
        with self._turn:
            if self._is_open():
                return False
            self._require(lambda: self._open(listed))
            self._opened = True
            return True

    def _is_open(self) -> bool:
        return self._opened

    def _look_again(self) -> bool:
        """Retry folders that could not be listed. Return whether one can be listed now."""
        found = [place for place in list(self._unread) if self._archive.can_be_read(place)]
        for place in found:
            with self._turn:
                del self._unread[place]
                self._archive.forget(run_name(place.partition("/")[0]))
                self._archive.look_at(run_name(place.partition("/")[0]))
        return bool(found)

    def _open(self, listed: Collection[str]) -> None:
        self._unread = self._archive.open(listed)
        lock = FileLock(self._archive.folder / MARK, mode=0o600)
        try:
            taken = lock.take()
        except OSError as error:
            raise StoreError(f"{self._archive.folder} cannot be locked ({error}); make it writable") from error
        if not taken:
            raise StoreError(f"{self._archive.folder} is in use by another process: stop the service that uses it")
        self._lock = lock

    def _require(self, look: Callable[[], None]) -> None:
        try:
            look()
        except StoreError as error:
            self.problem = str(error)
            raise
        self.problem = None

    def close(self) -> None:
        """Release the files to other processes."""
        with self._turn:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def lose_missing(self, paths: Iterable[str]) -> int:
        """Remove files from the index that a user or another process deleted. Return their number. Raises `StoreError`.

        Paths are relative to the data directory.
        """
        self.open()
        listed = list(paths)
        missing = [path.removeprefix(FOLDER) for path in listed if is_gone(self._home.path / path)]
        if missing and len(missing) == len(listed):
            raise StoreError(
                f"{self._archive.folder}: none of the {len(listed):,} known files with tokens exists; put them back, "
                "or delete the store and start again"
            )
        if missing:
            with self._turn:
                self._archive.lose(missing)
            self.note()
        return len(missing)

    def reexamine(self) -> None:
        """Examine damaged or foreign files again, which the operator may have moved or replaced.

        Raises `StoreError`.
        """
        self.open()
        with self._turn:
            self._archive.reexamine()
        self.note()

    def waiting(self) -> Mapping[str, str]:
        """Return path → reason, for places that could not be read or written at the last attempt."""
        return self._unread | self._waiting

    def problems(self, *, told: Collection[str] = ()) -> list[str]:
        """Return sentences about faults and remedies, as of the last check, without disk access.

        `told`: reasons that concern the whole disk and are reported elsewhere.
        """
        waiting = {place: why for place, why in self.waiting().items() if not any(words in why for words in told)}
        left = {f"{self._archive.folder}/{path}": why for path, why in list(self._store.damaged.left.items())}
        return [
            *([self.problem] if self.problem else []),
            *_said(left, _LEFT, "are damaged or foreign"),
            *_said(
                {FOLDER + place: why for place, why in waiting.items()},
                "{place}: cannot be read or written ({why})",
                "wait to be read or written",
            ),
        ]

    # Segments

    def add(self, segments: Iterable[TakenIn]) -> None:
        """Add spool segments whose rows are in the index."""
        self._merger.add(segments)

    def waits(self, path: str) -> bool:
        """Return whether the file at a path was ingested and is not merged yet."""
        return self._merger.waits(path)

    def kept(self, where: SegmentPath) -> Segment | None:
        """Return a segment that is not merged yet and is in memory, or None."""
        return self._merger.kept(where)

    def __len__(self) -> int:
        return len(self._merger)

    def merge(self, *, runs: Collection[str] | None = None, full: bool = False) -> MergeReport:
        """Merge all segments, or those of some `runs`, and index their rows. `full`: only enough to fill a file.

        Raises `StoreError`. A failing path delays no other and is named in the report.
        """
        self.open()
        with self._turn:
            report, refused = self._merger.run_once(runs=runs, full=full)
            self._refused += refused
            self._waiting = dict(report.waiting)
            if report.removed or refused or report.waiting:
                self._merged += 1
        if self._merged != self._noted:
            self.note()
        return report

    def bring(self, run: str) -> None:
        """Merge all tokens of a run into indexed files of the archive. Raises `StoreError`."""
        with self._turn:  # while another thread merges, neither the spool nor the index may have them
            behind = self._merger.waits_of(run) or self._merged != self._noted
        if behind:
            self.merge(runs=[run])

    def spooled(self, run: str) -> dict[str, pa.Table]:
        """Return the rows with tokens of a run's unmerged spool segments, by kind.

        The result contains all rows without an indexed file, and may contain others. Segments that would fill a file,
        or that cannot be read, are merged instead. Raises `StoreError`.
        """
        with self._turn:
            segments = self._merger.segments(run, RAW_KINDS)
            behind = segments is None or self._merged != self._noted
        if segments is None:
            self.merge(runs=[run])
        elif behind:
            self.note()
        return {
            kind: pa.concat_tables(
                [empty_rows(kind), *(with_rows(each) for each in segments or () if each.where.kind == kind)]
            )
            for kind in RAW_KINDS
        }

    def bring_all(self) -> None:
        """Merge all tokens of all runs into indexed files of the archive. Raises `StoreError`."""
        with self._turn:
            behind = len(self._merger) > 0 or self._merged != self._noted
        if behind:
            self.merge()

    def refused(self) -> list[Refused]:
        """Return the segments that were damaged after ingest, each once."""
        with self._turn:
            refused, self._refused = self._refused, []
        return refused

    # The index

    def new_files(self) -> list[Merged]:
        """Return files that are not in the index, the highest tier first."""
        with self._turn:
            changes = self._archive.changes()
            self._waiting |= changes.waiting
        return changes.new

    def segments(self, file: Merged) -> list[Segment]:
        """Return the segments of a file of tier 0. Raises `SegmentError` if it is damaged, `OSError`."""
        with self._turn:
            return self._archive.segments(file)

    def table(self, file: Merged) -> pa.Table:
        """Return the rows of a file. Raises as `segments`."""
        with self._turn:
            return self._archive.table(file)

    def note(self) -> None:
        """Index the row locations of files whose segments are all indexed. Raises `StoreError`."""
        with self._store.standing_still():
            with self._turn:
                changes, merged = self._archive.changes(), self._merged
            if changes.new or changes.gone:
                with self._store.transaction(news=False) as cursor:
                    noted = Changes(self._write(cursor, changes), changes.gone, changes.waiting)
                with self._turn:
                    self._archive.noted(noted)
                    self._used |= dict.fromkeys((file.run for file in noted.new), self._time.monotonic())
                if noted.gone:
                    self._swept_after = self._readers.now()
            self._noted = merged
        self.sweep()

    def compact(self, run: str) -> int:
        """Merge small files of a run and return their number. Raises `StoreError`."""
        self.open()
        try:
            with self._turn:
                count = self._archive.compact(run)
        except OSError as error:
            raise StoreError(
                f"files of run {run!r} could not be merged ({error}); check disk space and retry"
            ) from error
        if count:
            self.note()
        return count

    def reduce(self, run: str, kind: str, paths: Collection[str]) -> None:
        """Replace token files by the indexed statistics of their sequences. Raises `StoreError`.

        `paths`: files of one run and kind, relative to the data directory.
        """
        self.open()
        wanted = {path.removeprefix(FOLDER) for path in paths}
        with self._store.standing_still():  # what follows stands for what the index says of these records now
            try:
                with self._turn:
                    files = [file for file in self._archive.files(run) if file.path in wanted]
                    if files:
                        keys = _segments(files)
                        rows = self._store.read(_ROWS[kind], keys)
                        tiers.replace(self._archive, run, SEQUENCES, files, rows, counts=self._counts(keys))
            except OSError as error:
                raise StoreError(
                    f"files of run {run!r} could not be reduced ({error}); check disk space and retry"
                ) from error
            self.note()

    def freeze(self, run: str, revisions: Mapping[int, int]) -> bool:
        """Replace the sequences of steps, and the statistics of these steps alone, by metrics.

        `revisions`: revision of each step. Return False, with nothing done, if one has another by now. Raises
        `StoreError`.
        """
        self.open()
        steps = sorted(revisions)
        keys = pa.table({"run": pa.repeat(run, len(steps)), "step": pa.array(steps, pa.int64())})
        with self._store.standing_still():
            found = queries.freeze_rows(self._store, keys)
            if dict(zip(found["step"].to_pylist(), found["revision"].to_pylist(), strict=True)) != revisions:
                return False
            rows = found.drop_columns("revision")
            rollouts = queries.freeze_rollouts_due(self._store, run=run, steps=steps)
            covered = queries.freeze_covered(self._store, rollouts, run=run, steps=steps)
            segments = frozenset(covered["segment_id"].to_pylist())
            try:
                with self._turn:
                    files = [file for file in self._archive.files(run) if file.kind in tiers.BELOW[FROZEN]]
                    files = [file for file in files if file.segments <= segments]
                    tiers.replace(self._archive, run, FROZEN, files, rows, counts=self._counts(_segments(files)))
            except OSError as error:
                raise StoreError(
                    f"steps of run {run!r} could not be frozen ({error}); check disk space and retry"
                ) from error
            self.note()
        return True

    def _counts(self, segments: pa.Table) -> dict[str, Counts]:
        """Return the rows and tokens of segments from the index."""
        found = queries.known_segments(self._store, segments).to_pylist()
        return {row["segment_id"]: (row["rows"], row["tokens"]) for row in found}

    def counts(self, file: Merged) -> dict[str, Counts]:
        """Return the rows and tokens of the segments in a file. Raises as `segments`."""
        with self._turn:
            return self._archive.counts(file)

    def delete(self, run: str, author: str, rest: Rest) -> tuple[Tombstone, int]:
        """Delete a run. Return its tombstone and the number of removed files.

        Raises `StoreError` if nothing was deleted. Raises `OSError` if `finish_deletions` must remove the rest.
        """
        self.open()
        with self._store.standing_still(), self._turn:
            count = self._deletion.delete(run, author, rest)
            self._merger.drop(run)
            return self.tombstones.find(run) or Tombstone(run, "", author), count

    def finish_deletions(self, rest: Rest) -> dict[str, str]:
        """Remove the remains of deleted runs and return run → reason for the files that cannot be removed now.

        Raises `StoreError`.
        """
        self.open()
        with self._store.standing_still(), self._turn:
            return self._deletion.finish(rest)

    def forget_idle(self) -> None:
        """Free the memory of runs without a recent merge."""
        oldest = self._time.monotonic() - _FORGET_SECONDS
        with self._turn:
            for run, used in list(self._used.items()):
                if used < oldest and not self._merger.waits_of(run):
                    self._archive.forget(run)
                    del self._used[run]

    def sweep(self) -> int:
        """Remove superseded files once no reader needs them, and return their number."""
        if self._readers.go_on(self._swept_after):
            return 0
        with self._turn:
            return self._archive.sweep()

    def _write(self, cursor: Any, changes: Changes) -> list[Merged]:
        """Write changes to the index within a transaction, and return the added files."""
        found = self._store.read_within(cursor, "known_segments", _segments(changes.new))
        known = set(found["segment_id"].to_pylist())
        new = [file for file in changes.new if file.segments <= known and self._freeze(cursor, file)]
        if new:
            places = _places(file for file in new if file.tier == 0)
            for name in ("archive_again", "archive_places"):
                self._store.execute(cursor, name, places)
            self._store.execute(cursor, "archive_files", pa.Table.from_pylist(list(map(_row, new)), _FILES))
        if changes.gone:
            gone = pa.table({"path": pa.array([FOLDER + path for path in changes.gone], pa.string())})
            self._forget(cursor, gone)
            self._store.execute(cursor, "archive_forget", gone)
        return new

    def _freeze(self, cursor: Any, file: Merged) -> bool:
        """Write the steps of a frozen file. Return False if it cannot be read. Files of other kinds have no steps."""
        if file.kind == FROZEN:
            try:
                frozen.write(self._store, cursor, file.run, self.table(file))
            except OSError:  # of the file: the next start names it, or reads it
                return False
        return True

    def _forget(self, cursor: Any, paths: pa.Table) -> None:
        """Mark the tokens in some files as gone, unless other files have them."""
        self._store.execute(cursor, "forget_raw_kept", paths)
        self._store.execute(cursor, "forget_raw_places", paths)

    def lose(self, paths: Iterable[str]) -> None:
        """Mark spool files, relative to the data directory, as damaged after ingest."""
        table = pa.table({"path": pa.array(list(paths), pa.string())})
        if table.num_rows:
            with self._store.transaction() as cursor:
                self._forget(cursor, table)


def _said(places: Mapping[str, str], words: str, several: str) -> Iterator[str]:
    """Yield one sentence for each of the first files or folders, and one with the number of the others."""
    shown = list(places.items())[:_MOST_NAMED]
    yield from (words.format(place=place, why=why) for place, why in shown)
    if more := len(places) - len(shown):
        yield f"{more:,} more files or folders of the archive {several}"


def _segments(files: Iterable[Merged]) -> pa.Table:
    return pa.table({"segment_id": pa.array(sorted({each for file in files for each in file.segments}), pa.string())})


def _places(files: Iterable[Merged]) -> pa.Table:
    rows = [{"path": FOLDER + file.path, "segment_id": segment} for file in files for segment in file.segments]
    return pa.Table.from_pylist(rows, _PLACES)


def _row(file: Merged) -> dict[str, Any]:
    first, last = file.steps or (None, None)
    return {
        "path": FOLDER + file.path,
        "run": file.run,
        "kind": file.kind,
        "min_step": first,
        "max_step": last,
        "rows": file.rows,
        "bytes": file.nbytes,
        "created_at": datetime.fromtimestamp(file.written, UTC),
    }
