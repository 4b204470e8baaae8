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

from logprobe.collectors.errors import RunDeletedError, SegmentError, StoreError
from logprobe.collectors.files import Disk
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import Segment, SegmentPath, SpoolWriter, read_segment, spool_dir
from logprobe.monitor.store import archive as archives
from logprobe.monitor.store import merging, tiers
from logprobe.monitor.store.archive import Archive
from logprobe.monitor.store.archive_file import SEQUENCES
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


# A start


def test_what_is_no_file_of_the_archive_stays_and_is_named_until_it_is_gone_or_right(tmp_path: Path) -> None:
    for home in ("one", "two"):
        opened(tmp_path / home).merge(several(tmp_path / home, 4 if home == "one" else 1))
    one, folder = opened(tmp_path / "one"), tmp_path / "one/archive"
    segments = several(tmp_path / "one", 7)
    for segment in segments[4:]:
        one.merge([segment])
    whole, *spoiled = sorted(one.files(RUN), key=lambda file: -len(file.segments))
    (theirs,) = opened(tmp_path / "two").files(RUN)
    content = {folder / file.path: (folder / file.path).read_bytes() for file in spoiled}
    some = [bytes([*right[:50], right[50] ^ 1, *right[51:]]) for right in content.values()]
    laid = dict(zip(content, [some[0], some[1][:-9], b""], strict=True))
    foreign = {
        folder / theirs.path: (tmp_path / "two/archive" / theirs.path).read_bytes(),
        folder / "other/training" / Path(whole.path).name: (folder / whole.path).read_bytes(),
        **{(folder / whole.path).with_name(name): b"PAR1 mine PAR1"
           for name in ("notes.txt", f"{1:032x}.parquet", f"{1:032x}.parquet.part")},
    }  # fmt: skip
    for path, data in (laid | foreign).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    again = opened(tmp_path / "one")
    assert {str(folder / path) for path in again.left} == {str(path) for path in laid | foreign}
    reasons = {path: why.partition(":")[0] for path, why in again.left.items()}
    assert {reasons[file.path] for file in spoiled} == {"damaged"}
    assert again.left[theirs.path] == "a file of another data directory"
    wrong = f"in the wrong folder: it is of run {RUN!r} and kind 'training'"
    assert again.left[f"other/training/{Path(whole.path).name}"] == wrong
    assert again.changes().new == [whole]
    assert not again.holds(RUN, min(spoiled[0].segments))
    with pytest.raises(SegmentError, match="checksum"):
        again.table(spoiled[0])
    for path, data in (laid | foreign).items():
        assert path.read_bytes() == data
    # A start does not read what the index knows.
    assert opened(tmp_path / "one", {whole.path, *(file.path for file in spoiled)}).changes().new == []
    last = next(reversed(content))
    last.write_bytes(content[last])
    for _ in range(len(again.left)):  # one at a call, each in its turn
        again.reexamine()
    assert {folder / path for path in again.left} == {*(laid | foreign)} - {last}
    for path, data in content.items():
        path.write_bytes(data)
    for path in foreign:
        path.unlink()
    for _ in laid | foreign:
        again.reexamine()
    assert again.left == {}
    assert len(again.files(RUN)) == 1 + len(spoiled)


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


@pytest.mark.parametrize(("operation", "named"), [("names", "a run%2F1/training"), ("read", "a run%2F1")])
def test_a_run_that_cannot_be_read_waits_and_holds_up_no_other(tmp_path: Path, operation: str, named: str) -> None:
    archive = opened(tmp_path)
    first, second = several(tmp_path, 2), several(tmp_path, 2, "second")
    archive.merge([first[0], second[0]])
    disk = Refusing()
    disk.refused = {operation: "a run%2F1/training"}
    again = Archive(tmp_path, disk=disk)
    assert list(again.open()) == [named]
    assert {file.run for file in again.changes().new} == {"second"}
    report = again.merge([first[1], second[1]])
    assert (list(report.waiting), report.removed) == ([f"{RUN}/training"], 1)
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


def test_only_files_that_are_there_and_not_reduced_in_part_are_reduced(tmp_path: Path) -> None:
    archive = opened(tmp_path)
    segments = several(tmp_path, 2)
    archive.merge(segments)
    (tokens,) = archive.files(RUN)
    archive.put(RUN, SEQUENCES, sums(0), [segments[0].segment_id])
    with pytest.raises(StoreError, match="reduced already"):
        tiers.replace(archive, RUN, SEQUENCES, [tokens], sums(0, 1))
    assert archive.changes().gone == []
    archive.merge(several(tmp_path, 1, "second"))
    (tokens,) = archive.files("second")
    tiers.replace(archive, "second", SEQUENCES, [tokens], sums(0))
    archive.noted(archive.changes())
    archive.sweep()
    with pytest.raises(StoreError, match="have changed"):
        tiers.replace(archive, "second", SEQUENCES, [tokens], sums(0))


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
    assert merger.waits(str(segments[0].where.path))
    assert not merger.waits(str(segments[1].where.path))
    assert merger.run_once(full=True)[0].removed == 0
    merger.add(segments[1:])
    assert merger.run_once(full=True, runs=["another"])[0].removed == 0
    assert merger.run_once(full=True)[0].removed == 3
    assert (len(merger), merger.waits(str(segments[0].where.path))) == (0, False)


def test_segments_past_the_bound_of_memory_are_read_again(tmp_path: Path) -> None:
    segments, read = several(tmp_path, 5), list[Segment]()

    def again(where: SegmentPath) -> Segment:
        read.append(read_segment(where))
        return read[-1]

    merger = Merger(opened(tmp_path), read=again, kept_bytes=2 * segments[0].nbytes)
    merger.add(segments[:3])
    merger.add(segments[:3])  # found once more
    assert [merger.kept(each.where) for each in segments[:4]] == [*segments[:2], None, None]
    assert merger.run_once()[0].removed == 3
    assert merger.kept(segments[0].where) is None
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
