"""Segments are whole, verified and durable, or they are refused with the reason."""

from __future__ import annotations

import random
import resource
import signal
import zlib
from pathlib import Path

import pyarrow as pa
import pytest

from logprobe.collectors.errors import SegmentError
from logprobe.collectors.files import Disk
from logprobe.collectors.spool.schema import SCHEMA_VERSION, SCHEMAS, STEP
from logprobe.collectors.spool.segments import SegmentPath, SpoolWriter, read_segment, run_dir, run_name


def steps(*numbers: int) -> pa.Table:
    rows = [
        {"time": 1_000_000 * n, "step": n, "rank": 0, "scalars": [("loss", n / 2)], "correction": None} for n in numbers
    ]
    return pa.Table.from_pylist(rows, schema=STEP)


@pytest.fixture
def segment(home: Path) -> SegmentPath:
    return SpoolWriter(home, "run", "writer").write("step", steps(1, 2, 3))


def refusal(path: Path) -> str:
    with pytest.raises(SegmentError) as caught:
        read_segment(SegmentPath.parse(path))
    assert str(path) in str(caught.value)
    return caught.value.reason


def rewritten(where: SegmentPath, data: bytes, name: str | None = None) -> Path:
    """The segment with other content under a name whose checksum is right."""
    path = where.path.with_name(name or f"{where.sequence:08d}.{where.kind}.{zlib.crc32(data):08x}.arrow")
    where.path.unlink()
    path.write_bytes(data)
    return path


def arrow_file(table: pa.Table, metadata: dict[bytes, bytes]) -> bytes:
    sink = pa.BufferOutputStream()
    table = table.replace_schema_metadata(metadata)
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_what_was_written_is_read(segment: SegmentPath, home: Path):
    found = read_segment(SegmentPath.parse(segment.path))
    assert found.where == segment
    assert found.table.to_pylist() == steps(1, 2, 3).to_pylist()
    assert found.nbytes == segment.path.stat().st_size
    assert segment.segment_id == segment.path.relative_to(home / "spool").as_posix()


def test_any_arrow_tool_reads_a_segment(segment: SegmentPath):
    table = pa.ipc.open_file(segment.path).read_all()
    assert table.schema.metadata[b"logprobe.run"] == b"run"
    assert table.num_rows == 3


@pytest.mark.parametrize("run", ["a/b", "..", ".hidden", "über lauf 100%", "a b+c=d@e,f", "x" * 200, "%2E", "-", "~"])
def test_every_run_name_is_one_directory_and_comes_back(home: Path, run: str):
    where = SpoolWriter(home, run, "writer").write("step", steps(1))
    assert run_dir(home, run).parent == home / "spool"
    assert not run_dir(home, run).name.startswith(".")
    assert run_name(run_dir(home, run).name) == run
    assert read_segment(SegmentPath.parse(where.path)).where.run == run


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_cut_short(segment: SegmentPath, share: float):
    data = segment.path.read_bytes()
    segment.path.write_bytes(data[: int(len(data) * share)])
    assert refusal(segment.path) == "truncated"


def test_a_flipped_bit_is_found_wherever_it_is(segment: SegmentPath):
    data = segment.path.read_bytes()
    positions = random.Random(1).sample(range(len(data) * 8 - 64), 200)
    for position in positions:
        damaged = bytearray(data)
        damaged[position // 8] ^= 1 << position % 8
        segment.path.write_bytes(damaged)
        assert refusal(segment.path) == "checksum"


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "00000001.step.arrow",
        "1.step.00000000.arrow",
        "00000001.STEP.00000000.arrow",
        "00000001.step.0000000g.arrow",
    ],
)
def test_a_foreign_name(segment: SegmentPath, name: str):
    with pytest.raises(SegmentError) as caught:
        SegmentPath.parse(segment.path.with_name(name))
    assert caught.value.reason == "foreign"


def of_step(**changed: bytes) -> dict[bytes, bytes]:
    stated = {"schema": b"1", "kind": b"step", "run": b"run", **changed}
    return {f"logprobe.{name}".encode(): value for name, value in stated.items()}


# Content under a name with the right checksum → why it is refused
REFUSED = {
    "a later schema": (arrow_file(steps(1), of_step(schema=str(SCHEMA_VERSION + 1).encode())), "future_schema"),
    "an Arrow file of others": (arrow_file(steps(1), {}), "foreign"),
    "a schema that is not a number": (arrow_file(steps(1), of_step(schema=b"x")), "foreign"),
    "another run": (arrow_file(steps(1), of_step(run=b"another")), "foreign"),
    "another kind": (arrow_file(steps(1), of_step(kind=b"weights")), "foreign"),
    "a run that is not valid text": (arrow_file(steps(1), of_step(run=b"\xff")), "foreign"),
    "no Arrow file": (b"not arrow, but with the right checksum", "unreadable"),
    "a column of another type": (arrow_file(pa.table({"step": ["one"]}), of_step()), "columns"),
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_is_no_segment_is_refused_with_the_reason(segment: SegmentPath, content: str):
    data, reason = REFUSED[content]
    assert refusal(rewritten(segment, data)) == reason


def test_a_column_that_an_older_version_did_not_write_is_null(segment: SegmentPath):
    path = rewritten(segment, arrow_file(steps(7).select(["step", "scalars"]), of_step()))
    (row,) = read_segment(SegmentPath.parse(path)).table.to_pylist()
    assert row == {"time": None, "step": 7, "rank": None, "scalars": [("loss", 3.5)], "correction": None}


def test_a_field_that_an_older_version_did_not_write_is_null(segment: SegmentPath):
    """A sum that came later: what was recorded before is not refused, and says nothing of it."""
    kind = SCHEMAS["statistics"].field("backend").type
    older = pa.struct([field for field in kind if field.name != "n_above"])
    sums = pa.array([None, dict.fromkeys(older.names, 2), None], older)[1:]
    data = arrow_file(pa.table({"step": [1, 2], "backend": sums}), of_step(kind=b"statistics"))
    path = rewritten(segment, data, f"{segment.sequence:08d}.statistics.{zlib.crc32(data):08x}.arrow")
    found = read_segment(SegmentPath.parse(path)).table["backend"].to_pylist()
    assert found == [{**dict.fromkeys(kind.names, 2), "n_above": None}, None]


def test_a_write_that_fails_leaves_nothing_behind(home: Path, monkeypatch: pytest.MonkeyPatch):
    writer = SpoolWriter(home, "run", "writer")
    writer.write("step", steps(1))
    before = sorted(writer.directory.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            writer.write("step", steps(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert sorted(writer.directory.iterdir()) == before
    assert read_segment(writer.write("step", steps(2))).table.num_rows == 1


def test_what_was_renamed_and_not_made_durable_comes_again_as_the_same_segment(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    writer = SpoolWriter(home, "run", "writer")
    writer.write("step", steps(1))

    def fail(_: Disk, path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Disk, "sync", fail)
        with pytest.raises(OSError, match="Input/output"):
            writer.write("step", steps(2))
        (taken,) = writer.directory.glob("00000002.step.*.arrow")
        content = taken.read_bytes()
        taken.unlink()  # the service has ingested it, and recognises it by its name and checksum
        with pytest.raises(OSError, match="Input/output"):
            writer.write("step", steps(3))  # nothing is written before it is settled
        assert not writer.settled
    assert writer.write("step", steps(3)).sequence == 3
    assert taken.read_bytes() == content
    assert sorted(path.name[:8] for path in writer.directory.iterdir()) == ["00000001", "00000002", "00000003"]


def test_who_a_segment_is_lies_in_its_content(home: Path):
    segment = SpoolWriter(home, "run", "writer", after=6).write("step", steps(1))
    other = segment.path.parent.parent / "another" / f"00000001.step.{segment.crc:08x}.arrow"
    other.parent.mkdir()
    segment.path.rename(other)
    found = read_segment(SegmentPath.parse(other))
    assert (found.segment_id, found.writer, found.sequence) == (segment.segment_id, "writer", 7)


def test_a_directory_that_was_removed_comes_back(home: Path):
    writer = SpoolWriter(home, "run", "writer")
    writer.write("step", steps(1)).path.unlink()
    writer.directory.rmdir()
    writer.directory.parent.rmdir()
    assert writer.write("step", steps(2)).sequence == 2
