"""Deleting a run: the tombstone first, then five places, each of which may be cut short."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from segments import records, trained

from logprobe.collectors.errors import RunDeletedError, StoreError
from logprobe.collectors.files import UNFINISHED, Disk
from logprobe.collectors.spool.segments import SpoolWriter, read_segment, run_dir, spool_dir
from logprobe.monitor.store.archive import Archive
from logprobe.monitor.store.tombstone import Deletion, Rest, Tombstones

RUN, OTHER = "team/run", "other"


class Home:
    """A home in which two runs have something in each of the places."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = {RUN, OTHER}
        archive = Archive(path)
        archive.open()
        for run in (RUN, OTHER):
            writer = SpoolWriter(path, run, "w")
            for step in range(2):
                segment = read_segment(writer.write("training", records("training", trained(f"s{step}", step=step))))
                if step == 0:
                    archive.merge([segment])
            for other in self.others(run):
                other.parent.mkdir(exist_ok=True)
                other.write_text("{}")

    def others(self, run: str) -> list[Path]:
        return [self.path / folder / f"{run_dir(self.path, run).name}.json" for folder in ("directives", "readings")]

    @property
    def rest(self) -> Rest:
        return Rest(self.others, self.index.discard)

    def deletion(self, disk: Disk | None = None) -> Deletion:
        disk = disk or Disk()
        tombstones = Tombstones(self.path, disk=disk)
        tombstones.load()
        archive = Archive(self.path, deleted=tombstones.__contains__, disk=disk)
        archive.open()
        return Deletion(self.path, tombstones, archive, disk=disk)

    def of(self, run: str) -> list[Path]:
        """What is there of a run, apart from its tombstone."""
        name = run_dir(self.path, run).name
        found = [path for path in self.path.rglob("*") if path.is_file() and name in str(path.relative_to(self.path))]
        return [path for path in found if path.parent.name != "deleted"]


def test_a_whole_deletion_and_what_comes_late(tmp_path: Path) -> None:
    home = Home(tmp_path)
    deletion = home.deletion()
    assert deletion.delete(RUN, "a user", home.rest) == 4
    assert (home.of(RUN), home.index) == ([], {OTHER})
    SpoolWriter(tmp_path, RUN, "w", after=7).write("training", records("training", trained("late")))
    assert deletion.delete(RUN, "another user", home.rest) == 1
    assert home.of(RUN) == []
    (tombstone,) = Tombstones(tmp_path).all()
    assert (tombstone.run, tombstone.author) == (RUN, "a user")
    with pytest.raises(RunDeletedError, match=r"'team/run' was deleted at .* by a user; use another name"):
        Tombstones(tmp_path).refuse(RUN)
    Tombstones(tmp_path).refuse(OTHER)


def test_what_cannot_be_removed_is_tried_again_and_a_collector_at_work_is_no_error(tmp_path: Path) -> None:
    home = Home(tmp_path)

    class Busy(Disk):
        refuse = True

        def unlink(self, path: Path) -> None:
            if self.refuse and "archive" in path.parts:
                raise OSError(errno.EIO, "refused", str(path))
            super().unlink(path)

        def rmdir(self, folder: Path) -> None:
            if spool_dir(tmp_path) in folder.parents:
                raise OSError(errno.ENOTEMPTY, "a segment has come", str(folder))
            super().rmdir(folder)

    disk = Busy()
    deletion = home.deletion(disk)
    assert deletion.finish(home.rest) == {}
    with pytest.raises(OSError, match="refused"):
        deletion.delete(RUN, "a user", home.rest)
    assert list(deletion.finish(home.rest)) == [RUN]
    assert list(home.deletion(disk).finish(home.rest)) == [RUN]  # the next start
    disk.refuse = False
    assert home.deletion(disk).finish(home.rest) == {}
    assert (home.of(RUN), home.index) == ([], {OTHER})


def test_no_deletion_without_a_durable_tombstone(tmp_path: Path) -> None:
    home = Home(tmp_path)

    class Full(Disk):
        def write(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
            raise OSError(errno.ENOSPC, "full", str(path))

    before = home.of(RUN)
    with pytest.raises(StoreError, match="The run was not deleted"):
        home.deletion(Full()).delete(RUN, "a user", home.rest)
    assert home.of(RUN) == before
    assert Tombstones(tmp_path).all() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"run": "team/run"}', b"\xff"])
def test_a_damaged_tombstone_still_says_which_run(tmp_path: Path, content: bytes) -> None:
    Tombstones(tmp_path).add(RUN, "a user")
    (path,) = (tmp_path / "deleted").iterdir()
    assert json.loads(path.read_bytes())["run"] == RUN
    path.write_bytes(content)
    unfinished = path.with_name(f".{path.name}{UNFINISHED}")
    unfinished.write_bytes(b"")
    assert RUN in Tombstones(tmp_path)
    assert not unfinished.exists()
    assert OTHER not in Tombstones(tmp_path)


def test_which_runs_are_deleted_must_be_known(tmp_path: Path) -> None:
    class Unreadable(Disk):
        def names(self, folder: Path) -> list[str]:
            raise OSError(errno.EIO, "refused", str(folder))

    with pytest.raises(StoreError, match="The deleted runs are unknown"):
        Tombstones(tmp_path, disk=Unreadable()).load()
