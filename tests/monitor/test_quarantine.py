"""What cannot be trusted: files are set aside and rows left out, both are counted, and everything else is ingested."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest
from segments import RUN, records, sampled, trained
from store_contents import raw_paths, rows, spool_files, value

from logprobe.collectors.clock import Time
from logprobe.collectors.errors import SegmentError
from logprobe.collectors.kernel.statistics import COLUMNS
from logprobe.collectors.spool.schema import SCHEMAS
from logprobe.collectors.spool.segments import Segment, SegmentPath, SpoolWriter
from logprobe.monitor.home import Home
from logprobe.monitor.live.delays import Delays
from logprobe.monitor.live.ingest import SETTLE_SECONDS, Ingester
from logprobe.monitor.live.quarantine import quarantine
from logprobe.monitor.live.scan import ABANDONED_SECONDS, STALE_SECONDS
from logprobe.monitor.live.soundness import sound_rows
from logprobe.monitor.service.pipeline import backlog
from logprobe.monitor.store.store import Store


def make_old(path: Path) -> None:
    """Long enough ago that no network file system still has to learn how long the file is."""
    old = time.time() - SETTLE_SECONDS - 1
    os.utime(path, (old, old))


def _truncate(where: SegmentPath) -> None:
    where.path.write_bytes(where.path.read_bytes()[:-20])


def _flip(where: SegmentPath) -> None:
    content = bytearray(where.path.read_bytes())
    content[len(content) // 2] ^= 1
    where.path.write_bytes(bytes(content))


def _empty(where: SegmentPath) -> None:
    where.path.write_bytes(b"")


def test_what_is_no_whole_segment_is_set_aside_and_the_others_ingested(store: Store, writer: SpoolWriter, home: Path):
    for sample in ("a", "c"):
        writer.write("training", records("training", trained(sample)))
    expected = {}
    for damage, reason in ((_truncate, "truncated"), (_flip, "checksum"), (_empty, "truncated")):
        bad = writer.write("training", records("training", trained("b")))
        damage(bad)
        make_old(bad.path)
        expected[store.home.relative(bad.path)] = reason
    good = records("training", trained("a"))
    text = good.set_column(good.schema.get_field_index("token_ids"), "token_ids", pa.array([["x"]]))
    for name, kind, table, reason in (
        ("wrong-type", "training", text, "columns"),
        ("missing", "training", good.drop_columns("token_ids"), "columns"),
        ("unknown-kind", "weather", good, "foreign"),
    ):
        expected[store.home.relative(SpoolWriter(home, RUN, name).write(kind, table).path)] = reason
    foreign = pa.table({"a": [1]})
    place = writer.directory / "00000099.training.00000000.arrow"
    with pa.ipc.new_file(place, foreign.schema) as file:
        file.write_table(foreign)
    expected[store.home.relative(place)] = "checksum"  # which its name has not
    for name in ("notes.txt", f"{RUN}/core", f"{RUN}/writer/00000009.training.arrow"):
        (store.home.spool / name).write_text("not ours")
        expected[f"spool/{name}"] = "foreign"
    fresh, stale, hidden = (
        writer.directory / name for name in (".00000002.training.tmp", ".00000003.training.tmp", ".hidden")
    )
    for path in (fresh, stale, hidden):
        path.write_bytes(b"half")
    old = time.time() - STALE_SECONDS - 1
    os.utime(stale, (old, old))
    report = Ingester(store).run_once()
    assert (report.segments, report.quarantined) == (2, len(expected))
    found = rows(store, "SELECT path, origin, run, reason, message FROM quarantine")
    assert {row["origin"]: row["reason"] for row in found} == expected
    assert {row["run"] for row in found} == {RUN, None}
    assert all((store.home.path / row["path"]).is_file() for row in found)
    assert value(store, "SELECT count(*) FROM events WHERE kind = 'quarantine'") == len(expected)
    # Temporary files are left alone until their writer must be dead.
    assert spool_files(store) == [f"{RUN}/writer/{name}" for name in (fresh.name, hidden.name)]


def test_quarantine_interrupted_before_the_move_is_finished_and_counted_once(
    store: Store, writer: SpoolWriter, monkeypatch
):
    bad = writer.write("training", records("training", trained("a")))
    error = SegmentError("checksum", "broken")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        quarantine(store, bad.path, RUN, error)
    assert bad.path.exists()
    assert quarantine(store, bad.path, RUN, error)
    assert value(store, "SELECT count(*) FROM quarantine") == 1
    again = writer.directory / bad.path.name
    again.write_bytes(b"another file of that name")
    assert quarantine(store, again, RUN, error)
    assert len({row["path"] for row in rows(store, "SELECT path FROM quarantine")}) == 2
    assert not quarantine(store, again, RUN, error)


def test_ages_are_measured_by_the_clock_that_stamps_files(
    store: Store, writer: SpoolWriter, home: Path, monkeypatch: pytest.MonkeyPatch
):
    """A file server's clock may be hours behind this machine's: nothing is taken for old, or removed, because of that."""
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 86_400)
    with Home(home).lock():
        half = writer.directory / ".00000009.training.tmp"
        where = writer.write("training", records("training", trained("a")))
        half.write_bytes(b"half")
        where.path.write_bytes(where.path.read_bytes()[:-1])  # as a file server may show it for a moment
        report = Ingester(store).run_once()
        assert (report.quarantined, report.stuck) == (0, 1)
        assert half.exists()
        assert report.lag_seconds < 3600
        waiting = backlog(Home(home))
        assert waiting["oldest_seconds"] is not None
        assert waiting["oldest_seconds"] < 3600


def test_a_clock_that_is_set_does_not_make_a_file_wait_longer(tmp_path: Path) -> None:
    """A file that a file server shows too short goes to quarantine once it has waited, not once the clock is right."""

    class Set(Time):
        ahead = 0.0

        def wall(self) -> float:
            return super().wall() + self.ahead

    clock = Set()
    delays = Delays(clock)
    delays.put_off(tmp_path, None, "too short")
    clock.ahead = 86_400.0
    assert delays.seconds(tmp_path) < SETTLE_SECONDS


def test_folders_of_writers_that_have_ended_are_removed_in_the_end(store: Store, writer: SpoolWriter, home: Path):
    other = SpoolWriter(home, RUN, "other")
    for each in (writer, other):
        each.write("training", records("training", trained("a")))
    ingester = Ingester(store)
    ingester.run_once()
    store.archive.merge()  # until then they hold what was taken in
    old = time.time() - ABANDONED_SECONDS - 1
    os.utime(writer.directory, (old, old))
    ingester.run_once()
    assert not writer.directory.exists()
    assert other.directory.exists()
    writer.write("training", records("training", trained("b")))
    assert ingester.run_once().segments == 1


BAD_ROWS = {
    "short": {"trainer_logprobs": [-1.0]},
    "long": {"mask": [True] * 9},
    "null-id": {"token_ids": [0, None, 2, 3]},
    "null-mask": {"mask": [True, None, True, True]},
    "no-step": {"step": None},
    "no-sample": {"sample_id": None},
    "no-tokens": {"token_ids": None},
    "odd-routes": {"routes": [11] * 7},
}


def test_rows_that_do_not_fit_together_are_left_out_and_counted(store: Store, writer: SpoolWriter):
    bad = [trained(name, 5) | fields for name, fields in BAD_ROWS.items()]
    writer.write("training", records("training", trained("good", 5), *bad, trained("also good", 6)))
    writer.write("rollout", records("rollout", sampled("good"), sampled("bad", logprobs=[-1.0])))
    report = Ingester(store).run_once()
    assert (report.segments, report.rows, report.bad_rows, report.quarantined) == (2, 3, len(bad) + 1, 0)
    assert rows(store, "SELECT sample_id, row FROM training_sequences ORDER BY row") == [
        {"sample_id": "good", "row": 0},
        {"sample_id": "also good", "row": len(bad) + 1},
    ]
    found = rows(store, "SELECT component, event, severity, sequences, step FROM health_records ORDER BY sequences")
    assert found == [
        {"component": "ingest", "event": "bad_rows", "severity": "error", "sequences": 1, "step": None},
        {"component": "ingest", "event": "bad_rows", "severity": "error", "sequences": len(bad), "step": 5},
    ]
    assert value(store, "SELECT count(*) FROM tokens") == 8
    left_out = rows(store, "FROM bad_rows ORDER BY ALL")
    store.archive.merge()
    store.close()
    store.home.database.unlink()
    with Store.open(store.home) as again:
        Ingester(again).run_once()
        assert rows(again, "FROM bad_rows ORDER BY ALL") == left_out


def test_segments_that_are_looked_at_together_have_the_rows_that_each_has_alone():
    def segment(kind: str, number: int, *some: dict) -> Segment:
        where = SegmentPath(Path(f"x/y/{number}"), RUN, "w", number, kind, 0)
        return Segment(where, records(kind, *some), 0, f"segment {number}", "w", number)

    training = [
        segment("training", n, *some)
        for n, some in enumerate(((trained("a", 1), trained("b", 1)), (), (trained("c", 2, n=7),), ()))
    ]
    wrong = segment(
        "training", 5, trained("d", 3), trained("e", 3) | {"mask": [True]}, trained("f", 3) | {"step": None}
    )
    for segments in (
        training,
        [training[0], wrong, *training],
        [segment("rollout", 1, sampled("a")), segment("rollout", 2, sampled("b"), sampled("c"))],
    ):
        alone = [asdict(each) for one in segments for each in sound_rows([one])]
        assert [asdict(each) for each in sound_rows(segments)] == alone
    assert (alone_of := sound_rows([wrong])[0]).bad_rows == 2
    assert (alone_of.table["row"].to_pylist(), alone_of.first_bad_step, len(alone_of.reasons)) == ([0], 3, 2)


def test_a_segment_that_cannot_be_stored_takes_no_other_with_it(store: Store, writer: SpoolWriter):
    for step in range(3):
        writer.write("training", records("training", trained("a", step)))
    broken = {"step": 9, "sample_id": "x", "n_total": 1, "n_expected": 1, "backend": dict.fromkeys(COLUMNS)}
    writer.write("statistics", pa.Table.from_pylist([broken], schema=SCHEMAS["statistics"]))
    report = Ingester(store).run_once()
    assert (report.segments, report.quarantined, report.remaining) == (3, 1, 0)
    assert "the store refuses its content" in value(store, "SELECT message FROM quarantine WHERE reason = 'unreadable'")
    assert value(store, "SELECT count(*) FROM training_sequences") == 3
    assert value(store, "SELECT count(*) FROM raw_files") == len(raw_paths(store))
