"""Files of the spool: what is listed, what is read, and what goes to quarantine with its reason."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from segments import RUN, records, sampled, trained

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.spool.segments import SegmentPath, SpoolWriter, spool_dir
from logprobe.monitor.live.quarantine import forget, listed, quarantine
from logprobe.monitor.live.read import read
from logprobe.monitor.live.scan import STALE_SECONDS, scan
from logprobe.monitor.live.tick import Live

NOW = 1.8e9


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """Two segments of one writer, of which the second is older by the clock of its disk."""
    writer = SpoolWriter(tmp_path, RUN, "w")
    for age, kind, row in ((1, "training", trained("a", received=False)), (2, "rollout", sampled("a"))):
        path = writer.write(kind, records(kind, row)).path
        os.utime(path, (NOW - age, NOW - age))
    return spool_dir(tmp_path)


def test_segments_are_listed_oldest_first_and_known_ones_are_not_looked_at(spool: Path) -> None:
    found = scan(spool, now=NOW).segments
    assert [(each.where.kind, each.modified) for each in found] == [("rollout", NOW - 2), ("training", NOW - 1)]
    known = {str(each.where.path.relative_to(spool)) for each in found[:1]}
    assert scan(spool, now=NOW, known=known.__contains__).segments == found[1:]
    assert scan(spool, now=NOW, wanted=lambda folder: folder.name != "w").segments == []
    assert scan(spool / "absent", now=NOW).segments == []


@pytest.mark.parametrize("name", ["run/w/notes.txt", "run/00000001.step.00000000.arrow", "top", "run/w/deeper/x"])
def test_what_does_not_belong_there_is_named(spool: Path, name: str) -> None:
    path = spool / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    listing = scan(spool, now=NOW)
    ((found, error),) = listing.foreign
    assert error.reason == "foreign"
    assert found in {path, path.parent}
    assert len(listing.segments) == 2


def test_a_link_is_not_followed_and_a_killed_writers_file_is_stale(spool: Path, tmp_path: Path) -> None:
    (spool / RUN / "w" / "00000009.step.00000000.arrow").symlink_to(tmp_path)
    half = spool / RUN / "w" / ".00000003.step.tmp"
    half.write_bytes(b"x")
    os.utime(half, (NOW, NOW))
    assert scan(spool, now=NOW + STALE_SECONDS / 2).stale == []
    listing = scan(spool, now=NOW + STALE_SECONDS * 2)
    assert listing.stale == [half]
    assert [error.reason for _, error in listing.foreign] == ["foreign"]


def test_a_damaged_file_is_refused_and_the_others_are_read(spool: Path) -> None:
    first, second = (each.where for each in scan(spool, now=NOW).segments)
    content = bytearray(first.path.read_bytes())
    content[len(content) // 2] ^= 1
    first.path.write_bytes(content)
    gone = SegmentPath.parse(second.path.with_name("00000007.step.00000000.arrow"))
    reading = read([first, second, gone])
    ((where, error),) = reading.refused
    assert (where, error.reason) == (first, "checksum")
    assert [each.segment.where for each in reading.segments] == [second]
    assert reading.waiting == []
    assert reading.tables()["training"]["writer"].to_pylist() == ["w"]


def test_what_cannot_be_read_now_waits(spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (first, *_) = (each.where for each in scan(spool, now=NOW).segments)

    def broken(_: SegmentPath) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr("logprobe.monitor.live.read.read_segment", broken)
    reading = read([first])
    assert [(where, str(error)) for where, error in reading.waiting] == [(first, "[Errno 5] input/output error")]
    assert (reading.refused, reading.segments) == ([], [])


def test_rows_that_do_not_fit_together_are_left_out(tmp_path: Path) -> None:
    rows = [trained("a"), trained("b", mask=[True]), trained("c") | {"step": None}]
    where = SpoolWriter(tmp_path, RUN, "w").write("training", records("training", *rows))
    reading = read([where])
    assert reading.tables()["training"]["sample_id"].to_pylist() == ["a"]
    assert reading.segments[0].rows.bad_rows == 2


def test_a_segment_counts_once_under_whatever_name_it_comes(spool: Path) -> None:
    places = [each.where for each in scan(spool, now=NOW).segments]
    copy = places[0].path.with_name(f"00000005.{places[0].kind}.{places[0].crc:08x}.arrow")
    copy.write_bytes(places[0].path.read_bytes())
    live = Live()
    (computed,) = live.tick(read([*places, SegmentPath.parse(copy)]).segments).computed
    assert computed.sequences.tolist() == [1]
    assert live.tick(read(places).segments).computed == []


def test_a_file_in_quarantine_says_why(spool: Path, tmp_path: Path) -> None:
    folder, now = tmp_path / "quarantine", time.time()
    (path, *_) = (each.where.path for each in scan(spool, now=NOW).segments)
    content, error = path.read_bytes(), SegmentError("checksum", "it is damaged")
    found = quarantine(spool, folder, path, error, now=now)
    assert found is not None
    assert (folder / found.path).read_bytes() == content
    assert not path.exists()
    assert list(listed(folder)) == [found]
    assert (found.reason, found.message, found.nbytes, found.moved_at) == (
        "checksum",
        "it is damaged",
        len(content),
        now,
    )
    assert quarantine(spool, folder, path, error, now=now) is None, "it is gone"
    path.write_bytes(content)
    again = quarantine(spool, folder, path, error, now=now)
    assert again is not None
    assert again.path == f"{found.path}.1"
    (folder / found.path).rename(path)  # put back by an operator
    assert list(listed(folder)) == [again]
    forget(folder, again.path)
    assert list(listed(folder)) == []


def test_a_move_that_was_killed_is_finished(spool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, error = tmp_path / "quarantine", SegmentError("foreign", "not ours")
    (path, *_) = (each.where.path for each in scan(spool, now=NOW).segments)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(OSError, match="killed"):
            quarantine(spool, folder, path, error, now=1.0)
    assert list(listed(folder)) == []
    found = quarantine(spool, folder, path, error, now=2.0)
    assert list(listed(folder)) == [found]
