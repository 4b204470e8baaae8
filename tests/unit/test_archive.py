"""The archive: merged files, what a start finds, tiers, and the minute."""

from __future__ import annotations

import errno
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from segments import records, sampled, trained

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import RunDeletedError, SegmentError, StoreError
from logprobe.collectors.files import Disk
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import Segment, SegmentPath, SpoolWriter, read_segment, spool_dir
from logprobe.monitor.store import archive as archives
from logprobe.monitor.store import merging, tiers
from logprobe.monitor.store.archive import Archive
from logprobe.monitor.store.archive_file import FROZEN, SEQUENCES
from logprobe.monitor.store.merging import Merger

RUN = "a run/1"


class Refusing(Disk):
    """A real disk that refuses operations below some folder."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, str] = {}  # operation → part of a path

    def _look(self, operation: str, path: Path) -> None:
        if self.refused.get(operation, "\0") in str(path):
            raise OSError(errno.EIO, "refused", str(path))

    def read(self, path: Path, *, last: int | None = None) -> bytes:
        self._look("read", path)
        return super().read(path, last=last)

    def names(self, folder: Path) -> list[str]:
        self._look("names", folder)
        return super().names(folder)

    def unlink(self, path: Path) -> None:
        self._look("unlink", path)
        super().unlink(path)

    def sync(self, path: Path) -> None:
        self._look("sync", path)
        super().sync(path)

    def write(self, path: Path, content: bytes, *, mode: int = 0o600) -> None:
        self._look("write", path)
        super().write(path, content, mode=mode)


class StoppedTime(Time):
    """Clocks that are told what to show."""

    def __init__(self) -> None:
        self.seconds = 1.8e9

    def wall(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds


def several(home: Path, count: int, run: str = RUN) -> list[Segment]:
    """Put segments of one writer into the spool."""
    writer = SpoolWriter(home, run, "w")
    return [read_segment(writer.write("training", records("training", trained(f"s{n}", step=n)))) for n in range(count)]


def opened(home: Path, listed: set[str] = frozenset(), **options: Any) -> Archive:  # type: ignore[assignment]
    archive = Archive(home, **options)
    assert archive.open(listed) == {}
    return archive


def bits(table: pa.Table) -> list[Any]:
    """All values, floats as their bits."""

    def of(value: Any) -> Any:
        if isinstance(value, float):
            return struct.pack("<d", value)
        if isinstance(value, dict):
            return {key: of(each) for key, each in value.items()}
        return [of(each) for each in value] if isinstance(value, list | tuple) else value

    return [of(row) for row in table.to_pylist()]


def odd(kind: str) -> dict[str, Any]:
    """A row with values that are easily lost."""
    rows: dict[str, dict[str, Any]] = {
        "training": trained(
            "a",
            n=3,
            mask=[True, False, True],
            trainer_logprobs=[float("nan"), -0.0, float("-inf")],
            tags={"k": "v"},
            routes=[1, 65535, 0],
        ),
        "rollout": sampled("a", n=3, logprobs=[None, float("nan"), -1e-38], step_times=[1, 2**53, 3]),
        "step": {"step": 2**40, "scalars": {"loss": float("nan"), "lr": 5e-324}},
        "weights": {"version": "v", "tensor_hashes": [0, 2**32 - 1]},
        "config": {"fingerprint": "f", "kind": "run", "document": "{}"},
        "health": {"event": "started", "message": "läuft"},
        "statistics": {
            "step": 1,
            "sample_id": "a",
            "n_total": 3,
            "n_expected": 3,
            "token_hash": 2**64 - 1,
            "backend": None,
        },
    }
    return rows[kind]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_what_comes_out_is_what_went_in(tmp_path: Path, kind: str) -> None:
    archive = opened(tmp_path)
    writer = SpoolWriter(tmp_path, RUN, "w")
    before = [read_segment(writer.write(kind, records(kind, *rows))) for rows in ([odd(kind)] * 2, [], [odd(kind)])]
    archive.merge(before)
    ((file,), waiting) = archive.changes().new, archive.changes().waiting
    assert not waiting
    after = {segment.segment_id: segment for segment in archive.segments(file)}
    assert after.keys() == {segment.segment_id for segment in before} == file.segments
    for segment in before:
        again = after[segment.segment_id]
        assert again.table.schema.equals(SCHEMAS[kind])
        assert bits(again.table) == bits(segment.table)
        assert (again.where.run, again.where.kind, again.writer, again.sequence) == (RUN, kind, "w", segment.sequence)


def test_a_file_per_run_kind_and_size_and_the_spool_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = opened(tmp_path)
    monkeypatch.setattr(archives, "FILE_BYTES", 3 * several(tmp_path / "other", 1)[0].nbytes)
    segments = [*several(tmp_path, 7), *several(tmp_path, 2, "second")]
    segments.append(read_segment(SpoolWriter(tmp_path, RUN, "e").write("rollout", records("rollout", sampled("a")))))
    report = archive.merge(segments)
    assert (report.removed, report.waiting, report.late) == (10, {}, {})
    files = archive.changes().new
    assert sorted((file.run, file.kind, len(file.segments), file.steps) for file in files) == [
        (RUN, "rollout", 1, None), (RUN, "training", 1, (6, 6)), (RUN, "training", 3, (0, 2)), (RUN, "training", 3, (3, 5)),
        ("second", "training", 2, (0, 1)),
    ]  # fmt: skip
    assert list(spool_dir(tmp_path).rglob("*.arrow")) == []
    assert sorted(archive.folder.glob("*/*/*.parquet")) == sorted(archive.folder / file.path for file in files)
    table = pq.read_table(archive.folder / files[-1].path)
    assert table.column_names == ["segment_id", "row", *SCHEMAS["training"].names]


def test_a_segment_stays_in_the_spool_until_its_file_is_durable(tmp_path: Path) -> None:
    disk = Refusing()
    archive = opened(tmp_path, disk=disk)
    segments = several(tmp_path, 3)
    for refused in ({"write": "training"}, {"sync": "training"}):
        disk.refused = refused
        assert list(archive.merge(segments).waiting) == [f"{RUN}/training"]
        assert all(segment.where.path.exists() for segment in segments)
    disk.refused = {}
    assert archive.merge(segments).removed == 3
    assert len(archive.files(RUN)) == 1  # the second try had come as far as the name
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_copy_under_another_name_is_removed_and_not_kept_twice(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    segments = several(tmp_path, 2)
    archive.merge(segments)
    copy = segments[0].where.path.with_name(f"00000077{segments[0].where.path.name[8:]}")
    writer = SpoolWriter(tmp_path, RUN, "w")
    again = writer.write("training", records("training", trained("s0", step=0)))
    again.path.rename(copy)
    assert archive.holds(RUN, segments[0].segment_id)
    assert archive.merge([read_segment(SegmentPath.parse(copy))]).removed == 1
    assert not copy.exists()
    assert len(archive.files(RUN)) == 1


# A start


def test_a_start_tells_what_the_index_does_not_know(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.merge(several(tmp_path, 2))
    first = archive.changes()
    archive.noted(first)
    archive.merge(several(tmp_path, 4)[2:])
    (second,) = archive.changes().new
    listed = {file.path for file in first.new}
    assert opened(tmp_path, listed).changes().new == [second]
    (archive.folder / first.new[0].path).unlink()
    found = opened(tmp_path, listed).changes()
    assert (found.new, found.gone) == ([second], sorted(listed))
    assert opened(tmp_path, listed | {second.path}).changes().new == []


@pytest.mark.parametrize("what", ["flipped", "cut", "empty"])
def test_a_damaged_file_stays_and_is_named(tmp_path: Path, what: str) -> None:
    archive = opened(tmp_path)
    segments = several(tmp_path, 4)
    archive.merge(segments[:2])
    archive.merge(segments[2:])
    damaged, whole = archive.files(RUN)
    path = archive.folder / damaged.path
    whole_content = content = path.read_bytes()
    content = {"flipped": content[:50] + b"?" + content[51:], "cut": content[:-9], "empty": b""}[what]
    path.write_bytes(content)
    again = opened(tmp_path)
    assert list(again.left) == [damaged.path]
    assert "checksum" in again.left[damaged.path]
    assert again.changes().new == [whole]
    assert not again.holds(RUN, min(damaged.segments))
    with pytest.raises(SegmentError, match="checksum"):
        again.table(damaged)
    assert path.read_bytes() == content
    assert (
        opened(tmp_path, {damaged.path, whole.path}).changes().new == []
    )  # a start does not read what the index knows
    again.reexamine()
    assert list(again.left) == [damaged.path]
    path.write_bytes(whole_content)
    again.reexamine()
    assert again.left == {}
    assert damaged.path in {file.path for file in again.files(RUN)}


def test_a_damaged_file_that_was_listed_is_found_before_a_segment_goes(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    segments = several(tmp_path, 2)
    disk = Refusing()
    disk.refused = {"unlink": ".arrow"}
    refused = opened(tmp_path, disk=disk)
    assert refused.merge(segments).waiting  # merged, and not removed
    (file,) = refused.files(RUN)
    path = archive.folder / file.path
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 8]) + content[41:])
    again = opened(tmp_path, {file.path})
    assert again.merge(segments).removed == 2
    (new,) = again.files(RUN)
    assert new.segments == file.segments
    assert new.path != file.path
    assert again.changes().gone == [file.path]
    assert path.exists()


class Unmounting(Disk):
    """A real disk whose archive is unmounted before its next folder is made, and mounted again after the file."""

    def __init__(self, home: Path, *, again: bool) -> None:
        super().__init__()
        self.home = home
        self.again = again
        self.is_next = False

    def mkdir(self, folder: Path) -> None:
        if self.is_next:
            self.is_next = False
            (self.home / "archive").rename(self.home / "disk")
            (self.home / "archive").mkdir()
            folder.mkdir(parents=True, exist_ok=True)
        else:
            super().mkdir(folder)

    def sync(self, path: Path) -> None:
        super().sync(path)
        if self.again and list((self.home / "archive").glob("*/*/*.parquet")) and (self.home / "disk").exists():
            self.mount()

    def mount(self) -> None:
        (self.home / "archive").rename(self.home / "below")
        (self.home / "disk").rename(self.home / "archive")


@pytest.mark.parametrize("again", [False, True])
def test_segments_stay_when_the_archive_is_unmounted_while_they_are_merged(tmp_path: Path, again: bool) -> None:
    disk = Unmounting(tmp_path, again=again)
    archive = opened(tmp_path, disk=disk)
    segments = several(tmp_path, 2)
    disk.is_next = True
    if again:
        assert archive.merge(segments).waiting
    else:
        with pytest.raises(StoreError, match="unmounted"):
            archive.merge(segments)
        disk.mount()
    assert all(segment.where.path.exists() for segment in segments)
    assert archive.changes().new == []
    assert archive.merge(segments).removed == len(segments)
    (file,) = archive.changes().new
    assert (archive.folder / file.path).exists()


@pytest.mark.parametrize("name", ["notes.txt", f"{1:032x}.parquet", f"{1:032x}.parquet.part"])
def test_a_foreign_file_stays_and_is_named(tmp_path: Path, name: str) -> None:
    archive = opened(tmp_path)
    archive.merge(several(tmp_path, 1))
    (file,) = archive.files(RUN)
    path = (archive.folder / file.path).with_name(name)
    path.write_bytes(b"PAR1 mine PAR1")
    again = opened(tmp_path, {file.path})
    assert [Path(each).name for each in again.left] == [name]
    assert path.read_bytes() == b"PAR1 mine PAR1"
    again.reexamine()
    assert again.left
    path.unlink()
    again.reexamine()
    assert again.left == {}


def test_a_file_in_another_place_or_of_another_home_stays_and_is_named(tmp_path: Path) -> None:
    for home in ("one", "two"):
        opened(tmp_path / home).merge(several(tmp_path / home, 1))
    one = opened(tmp_path / "one")
    (mine,) = one.files(RUN)
    (theirs,) = opened(tmp_path / "two").files(RUN)
    there = tmp_path / "one/archive" / theirs.path
    there.write_bytes((tmp_path / "two/archive" / theirs.path).read_bytes())
    elsewhere = tmp_path / "one/archive/other/training" / Path(mine.path).name
    elsewhere.parent.mkdir(parents=True)
    elsewhere.write_bytes((tmp_path / "one/archive" / mine.path).read_bytes())
    again = opened(tmp_path / "one")
    assert again.left == {
        theirs.path: "a file of another data directory",
        f"other/training/{elsewhere.name}": f"in the wrong folder: it is of run {RUN!r} and kind 'training'",
    }
    assert again.files(RUN) == [mine]


@pytest.mark.parametrize("index", ["kept", "deleted"])
@pytest.mark.parametrize("there", ["nothing", "an empty folder", "the folder of another home", "files without a mark"])
def test_no_start_with_another_folder_and_nothing_is_touched(tmp_path: Path, there: str, index: str) -> None:
    home = tmp_path / "home"
    archive = opened(home)
    archive.merge(several(home, 1))
    (file,) = archive.files(RUN)
    away = archive.folder.rename(tmp_path / "away")
    if there == "the folder of another home":
        opened(tmp_path / "other").merge(several(tmp_path / "other", 1))
        (tmp_path / "other/archive").rename(archive.folder)
    elif there == "files without a mark":
        (archive.folder / file.path).parent.mkdir(parents=True)
        (archive.folder / file.path).write_bytes((away / file.path).read_bytes())
    elif there == "an empty folder":
        archive.folder.mkdir()
    before = sorted(path for path in home.rglob("*"))
    with pytest.raises(StoreError, match="another data directory, or is not mounted"):
        Archive(home).open({file.path} if index == "kept" else ())
    assert sorted(path for path in home.rglob("*")) == before


def test_no_start_without_any_known_file(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.merge(several(tmp_path, 1))
    (file,) = archive.files(RUN)
    path = archive.folder / file.path
    content = path.read_bytes()
    path.unlink()
    with pytest.raises(StoreError, match="none of the 1 known files exists; mount"):
        Archive(tmp_path).open({file.path})
    assert Archive(tmp_path, deleted=lambda run: run == RUN).open({file.path}) == {}  # they were to go
    path.write_bytes(content)
    assert opened(tmp_path, {file.path}).changes().new == []


def test_a_folder_that_cannot_be_listed_is_said_and_holds_up_no_other(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    first, second = several(tmp_path, 1), several(tmp_path, 2, "second")
    archive.merge([*first, second[0]])
    disk = Refusing()
    disk.refused = {"names": "a run%2F1/training"}
    again = Archive(tmp_path, disk=disk)
    assert list(again.open()) == ["a run%2F1/training"]
    assert {file.run for file in again.changes().new} == {"second"}
    assert again.merge(second[1:]).removed == 1
    assert {file.run for file in opened(tmp_path).changes().new} == {RUN, "second"}


def test_a_run_with_a_file_that_cannot_be_read_waits_and_holds_up_no_other(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    first, second = several(tmp_path, 2), several(tmp_path, 2, "second")
    archive.merge([first[0], second[0]])
    (file,) = archive.files(RUN)
    disk = Refusing()
    disk.refused = {"read": file.path}
    again = Archive(tmp_path, disk=disk)
    assert list(again.open()) == ["a run%2F1"]
    assert again.changes().waiting.keys() == {RUN}
    report = again.merge([first[1], second[1]])
    assert list(report.waiting) == [f"{RUN}/training"]
    assert report.removed == 1
    disk.refused = {}
    assert again.merge([first[1]]).removed == 1
    assert {file.run for file in again.changes().new} == {RUN, "second"}


# Merging again


def test_small_files_become_one_and_go_once_the_index_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "SMALL_FILES", 3)
    archive = opened(tmp_path)
    segments = several(tmp_path, 3)
    for segment in segments:
        archive.merge([segment])
    archive.noted(archive.changes())
    old = archive.files(RUN)
    values = sorted(map(str, (row for file in old for row in bits(archive.table(file)))))
    assert archive.compact(RUN) == 3
    assert archive.sweep() == 0  # readers may be at work
    changes = archive.changes()
    (new,) = changes.new
    assert changes.gone == sorted(file.path for file in old)
    assert new.segments == {segment.segment_id for segment in segments}
    archive.noted(changes)
    assert archive.sweep() == 3
    assert archive.files(RUN) == [new]
    assert sorted(map(str, bits(archive.table(new)))) == values
    assert archive.compact(RUN) == 0


def test_files_that_share_a_part_are_merged_and_each_segment_counts_once(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    segments = several(tmp_path, 3)
    tables = [archives.with_rows(segment) for segment in segments]
    for some in ((0, 1), (1, 2)):
        archive.put(
            RUN, "training", pa.concat_tables([tables[n] for n in some]), [segments[n].segment_id for n in some]
        )
    again = opened(tmp_path)
    (file,) = again.changes().new
    assert sorted(again.table(file)["sample_id"].to_pylist()) == ["s0", "s1", "s2"]
    again.noted(again.changes())
    assert again.sweep() == 2


# Tiers


def sums(*steps: int) -> pa.Table:
    return pa.table({"step": pa.array(steps, pa.int64()), "value": np.arange(len(steps), dtype=float)})


def test_tokens_become_statistics_and_statistics_become_metrics(tmp_path: Path) -> None:
    clock = StoppedTime()
    archive = opened(tmp_path, time=clock)
    archive.merge(several(tmp_path, 2))
    (tokens,) = archive.files(RUN)
    sequences = tiers.reduce(archive, RUN, [tokens], sums(0, 1))
    assert (sequences.kind, sequences.segments, sequences.tier) == (SEQUENCES, tokens.segments, 1)
    archive.noted(archive.changes())
    archive.sweep()
    assert not (archive.folder / tokens.path).exists()
    with pytest.raises(StoreError, match="have changed"):
        tiers.reduce(archive, RUN, [tokens], sums(0))
    tiers.freeze(archive, RUN, [sequences], sums(0, 1))
    archive.noted(archive.changes())
    archive.sweep()
    (file,) = opened(tmp_path, time=clock).changes().new
    assert (file.kind, file.segments) == (FROZEN, tokens.segments)
    assert archive.holds(RUN, min(tokens.segments))  # what comes again is known


def test_files_that_were_reduced_in_part_are_not_reduced_again(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    segments = several(tmp_path, 2)
    archive.merge(segments)
    (tokens,) = archive.files(RUN)
    archive.put(RUN, SEQUENCES, sums(0), [segments[0].segment_id])
    with pytest.raises(StoreError, match="reduced already"):
        tiers.reduce(archive, RUN, [tokens], sums(0, 1))
    assert archive.changes().gone == []


def test_a_file_has_bounds_of_steps_and_none_of_tokens(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    archive.merge(several(tmp_path, 2))
    (file,) = archive.files(RUN)
    group = pq.read_metadata(archive.folder / file.path).row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    assert columns["step"].statistics.has_min_max
    assert not columns["token_ids.list.element"].is_stats_set


# What waits


def test_segments_are_merged_when_they_fill_half_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    merger, segments = Merger(opened(tmp_path)), several(tmp_path, 3)
    monkeypatch.setattr(merging, "FILE_BYTES", 4 * segments[0].nbytes)
    merger.add(segments[:1])
    assert segments[0].where in merger
    assert segments[1].where not in merger
    assert merger.run_once(full=True)[0].removed == 0
    merger.add(segments[1:])
    assert merger.run_once(full=True, runs=["another"])[0].removed == 0
    assert merger.run_once(full=True)[0].removed == 3
    assert (len(merger), segments[0].where in merger) == (0, False)


def test_segments_past_the_bound_of_memory_are_read_again(tmp_path: Path) -> None:
    segments, read = several(tmp_path, 5), list[Segment]()

    def again(where: SegmentPath) -> Segment:
        read.append(read_segment(where))
        return read[-1]

    merger = Merger(opened(tmp_path), read=again, kept_bytes=2 * segments[0].nbytes)
    merger.add(segments[:3])
    merger.add(segments[:3])  # found once more
    assert merger.run_once()[0].removed == 3
    assert [segment.segment_id for segment in read] == [segments[2].segment_id]
    merger.add(segments[3:])  # the memory is free again
    assert (merger.run_once()[0].removed, len(read)) == (2, 1)


def test_no_more_than_two_files_of_segments_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, segments = opened(tmp_path), several(tmp_path, 10)
    monkeypatch.setattr(archives, "FILE_BYTES", 2 * segments[0].nbytes)
    merger = Merger(archive, kept_bytes=0)
    together = list[int]()
    monkeypatch.setattr(archive, "merge", lambda some: together.append(len(some)) or Archive.merge(archive, some))
    merger.add(segments)
    assert merger.run_once()[0].removed == 10
    assert together == [4, 4, 2]
    assert sorted(len(file.segments) for file in archive.files(RUN)) == [2, 2, 2, 2, 2]


def test_what_cannot_be_read_now_waits_and_what_is_damaged_is_handed_back(tmp_path: Path) -> None:
    archive, segments = opened(tmp_path), several(tmp_path, 4)
    refused = {segments[0].where.path}

    def read(where: Any) -> Segment:
        if where.path in refused:
            raise OSError(errno.EIO, "refused")
        return read_segment(where)

    merger = Merger(archive, read=read, kept_bytes=0)
    merger.add(segments)
    segments[1].where.path.write_bytes(b"damaged")
    segments[2].where.path.unlink()
    report, damaged = merger.run_once()
    assert report.removed == 1
    assert list(report.waiting) == [str(segments[0].where.path)]
    assert [(where, error.reason) for where, error in damaged] == [(segments[1].where, "truncated")]
    refused.clear()
    assert merger.run_once() == (archives.MergeReport(removed=1), [])


def test_nothing_of_a_deleted_run_is_kept(tmp_path: Path) -> None:
    deleted: set[str] = set()
    archive = opened(tmp_path, deleted=deleted.__contains__)
    segments = several(tmp_path, 3)
    archive.merge(segments[:1])
    deleted.add(RUN)
    report = archive.merge(segments[1:])
    assert report.late == {RUN: 2}
    assert not list(spool_dir(tmp_path).rglob("*.arrow"))
    assert archive.changes().new == []
    with pytest.raises(RunDeletedError, match="was deleted"):
        archive.put(RUN, "training", archives.with_rows(segments[1]), [segments[1].segment_id])
    note = archive.folder / "a run%2F1/training/notes.txt"
    note.write_text("mine")
    assert archive.erase(RUN) == 1
    assert [path.name for path in archive.folder.rglob("*") if path.is_file()] == ["!home", "notes.txt"]
