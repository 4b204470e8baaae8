"""Ingest: what collectors wrote is in the store once, whatever else lies in the spool."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from segments import RUN, at, records, sampled, trained
from store_contents import rows, spool_files, value

from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.monitor import queries
from logprobe.monitor.live import ingest
from logprobe.monitor.live import records as live_records
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store

# Content


def test_a_training_segment_is_in_every_place_it_belongs(store: Store, writer: SpoolWriter):
    where = writer.write("training", records("training", trained("a", 3), trained("b", 3, 2, received=False)))
    report = Ingester(store).run_once()
    assert (report.segments, report.rows, report.tokens, report.remaining) == (1, 2, 6, 0)
    assert report.lag_seconds is not None
    assert 0 <= report.lag_seconds < 60
    assert spool_files(store) == []
    assert rows(store, "SELECT segment_id, run, writer, sequence, kind, rows, tokens FROM segments") == [
        {
            "segment_id": where.segment_id,
            "run": RUN,
            "writer": "writer",
            "sequence": 1,
            "kind": "training",
            "rows": 2,
            "tokens": 6,
        }
    ]
    assert rows(
        store, "SELECT sample_id, n_total, n_expected, rollout_source, raw_kept FROM training_sequences ORDER BY row"
    ) == [
        {"sample_id": "a", "n_total": 4, "n_expected": 4, "rollout_source": "received", "raw_kept": True},
        {"sample_id": "b", "n_total": 2, "n_expected": 2, "rollout_source": "missing", "raw_kept": True},
    ]
    assert rows(store, "SELECT row, pair, n, sum_d, min_d, max_d FROM statistics") == [
        {"row": 0, "pair": "backend", "n": 4, "sum_d": 2.0, "min_d": 0.5, "max_d": 0.5}
    ]
    assert rows(store, "SELECT run, min_step, max_step, rows, tokens FROM raw_files") == [
        {"run": RUN, "min_step": 3, "max_step": 3, "rows": 2, "tokens": 6}
    ]
    assert rows(store, "SELECT run, step, sequences FROM step_summaries") == [{"run": RUN, "step": 3, "sequences": 2}]
    assert rows(store, "SELECT position, token_id, mask, rollout_logprob, trainer_logprob, log_ratio FROM tokens"
                " WHERE sample_id = 'a' ORDER BY position LIMIT 1") == [
        {"position": 0, "token_id": 0, "mask": True, "rollout_logprob": -1.0, "trainer_logprob": -0.5, "log_ratio": 0.5}
    ]  # fmt: skip


def test_what_was_not_reported_is_null_and_nothing_is_harmless(store: Store, writer: SpoolWriter):
    writer.write("training", records("training"))
    writer.write(
        "training", records("training", trained("a", mask=None), trained("b", entropy=[1.0] * 4), trained("c", n=0))
    )
    for number, token_hash in enumerate((0, 1 << 63, (1 << 64) - 1)):  # any number of its width
        row = {"step": 1, "sample_id": f"{number}", "n_total": 4, "n_expected": 4, "token_hash": token_hash}
        writer.write("statistics", records("statistics", row))
    report = Ingester(store).run_once()
    assert (report.segments, report.rows, report.tokens) == (5, 6, 8 + 3 * 4)
    assert rows(
        store,
        "SELECT n_expected, entropy_sum, entropy_n, advantage_abs_sum FROM training_sequences WHERE step = 0 ORDER BY row",
    ) == [
        {"n_expected": 4, "entropy_sum": None, "entropy_n": None, "advantage_abs_sum": None},
        {"n_expected": 4, "entropy_sum": 4.0, "entropy_n": 4, "advantage_abs_sum": None},
        {"n_expected": 0, "entropy_sum": None, "entropy_n": None, "advantage_abs_sum": None},
    ]
    assert [row["n"] for row in rows(store, "SELECT n FROM statistics ORDER BY row")] == [4, 4, 0]
    assert rows(store, "SELECT bool_and(mask) AS all, count(*) AS n FROM tokens") == [{"all": True, "n": 8}]
    hashes = rows(store, "SELECT token_hash AS h FROM training_sequences WHERE step = 1 ORDER BY sample_id")
    assert [row["h"] for row in hashes] == [0, 1 << 63, (1 << 64) - 1]


def test_other_kinds_arrive_as_records_and_events(store: Store, writer: SpoolWriter):
    spans = [{"start": 0, "end": 2, "version": "1"}, {"start": 2, "end": 3, "version": None}]
    known = {"spans": spans, "logprobs": [-1.0, None, -3.0], "finish_reason": "stop"}
    writer.write("rollout", records("rollout", sampled("a", 3, **known)))
    told = {"time": at(0), "step": 1, "rank": 0, "scalars": [("loss", 1.5)], "correction": "{}"}
    writer.write("step", records("step", told))
    writer.write("weights", records("weights", {"time": at(1), "version": "1", "step": 1, "source": "trainer"}))
    writer.write("config", records("config", {"time": at(2), "fingerprint": "f", "kind": "run", "document": "{}"}))
    said = {"time": at(3), "event": "started", "severity": "info", "message": "hello"}
    writer.write("health", records("health", said))
    report = Ingester(store).run_once()
    assert (report.segments, report.rows, report.tokens) == (5, 5, 3)
    assert rows(store, "SELECT sample_id, n_tokens, n_logprobs, logprob_sum, spans, finish_reason FROM rollouts") == [
        {"sample_id": "a", "n_tokens": 3, "n_logprobs": 2, "logprob_sum": -4.0, "spans": spans, "finish_reason": "stop"}
    ]
    events = rows(store, "SELECT kind FROM events ORDER BY time, kind")
    assert [row["kind"] for row in events] == ["correction", "weights", "config", "health"]
    assert value(store, "SELECT scalars['loss'] FROM step_records") == 1.5
    assert value(store, "SELECT version FROM weights") == "1"
    assert rows(store, "SELECT run, step FROM step_summaries") == [{"run": RUN, "step": 1}]
    assert value(store, "SELECT writer FROM health_records") == "writer"


# Exactly once


def test_a_limit_stops_between_batches_and_the_rest_follows(store: Store, writer: SpoolWriter):
    for step in range(5):
        writer.write("training", records("training", trained("a", step)))
    ingester = Ingester(store, batch_bytes=1)
    first = ingester.run_once(max_bytes=1)
    assert (first.segments, first.remaining) == (1, 4)
    rest = ingester.run_once()
    assert (rest.segments, rest.remaining) == (4, 0)
    assert [row["step"] for row in rows(store, "SELECT step FROM training_sequences")] == list(range(5))


def test_a_file_that_vanishes_while_it_is_read_is_no_problem(store: Store, writer: SpoolWriter, monkeypatch):
    gone = writer.write("training", records("training", trained("a")))
    writer.write("training", records("training", trained("b")))
    scan = ingest.scan

    def scan_then_lose(*args, **kwargs):
        content = scan(*args, **kwargs)
        gone.path.unlink()
        return content

    monkeypatch.setattr(ingest, "scan", scan_then_lose)
    report = Ingester(store).run_once()
    assert (report.segments, report.quarantined, report.problems) == (1, 0, [])


def test_a_look_between_a_commit_and_the_archive_has_the_tokens(store: Store, writer: SpoolWriter, monkeypatch):
    """The archive hears of a segment after its commit: a look at that moment waits for it."""
    monkeypatch.setattr("logprobe.monitor.store.store._SPOOL_ATTEMPTS", 10_000)
    add, found = store.archive.add, []

    def look_then_add(segments):
        if segments and not found:
            asked = {"run": RUN, "steps": [0], "parts": 1}
            found.append(looks.submit(lambda: queries.diagnosis_tokens(store, **asked)))
            time.sleep(0.2)
            assert not found[0].done()
        add(segments)

    writer.write("rollout", records("rollout", sampled("a")))
    writer.write("training", records("training", trained("a", 0)))
    monkeypatch.setattr(store.archive, "add", look_then_add)
    with ThreadPoolExecutor(1) as looks:
        Ingester(store).run_once()
        assert found[0].result().num_rows == 1


def test_a_look_leaves_out_what_the_archive_never_hears_of(store: Store, writer: SpoolWriter, monkeypatch):
    monkeypatch.setattr("logprobe.monitor.store.store._SPOOL_ATTEMPTS", 2)
    writer.write("training", records("training", trained("a", 0)))
    with monkeypatch.context() as patch:
        patch.setattr(store.archive, "add", lambda _: None)
        Ingester(store).run_once()
    assert not queries.diagnosis_tokens(store, run=RUN, steps=[0], parts=1).num_rows


def test_tokens_of_a_segment_that_is_damaged_before_it_is_archived_are_not_said_to_be_kept(
    store: Store, writer: SpoolWriter, monkeypatch
):
    where = writer.write("training", records("training", trained("a", 0)))
    ingester, kept = Ingester(store), "SELECT raw_kept FROM training_sequences"
    with monkeypatch.context() as patch:
        patch.setattr(store.archive, "add", lambda _: None)  # as if killed here: what is in memory is gone
        ingester.run_once()
    assert rows(store, kept) == [{"raw_kept": True}]
    content = bytearray(where.path.read_bytes())
    content[len(content) // 2] ^= 1
    where.path.write_bytes(content)
    ingester.run_once()
    store.archive.merge()
    assert ingester.run_once().quarantined == 1
    assert rows(store, kept) == [{"raw_kept": False}]


def test_segments_of_a_kind_are_computed_together_and_one_that_cannot_be_costs_no_other(
    store: Store, writer: SpoolWriter, monkeypatch: pytest.MonkeyPatch
):
    reduce, groups = live_records.reduce_training, []

    def refuse_one(table: pa.Table) -> pa.Table:
        groups.append(table.num_rows)
        if "bad" in table["sample_id"].to_pylist():
            raise pa.ArrowInvalid("no such numbers")
        return reduce(table)

    monkeypatch.setattr(live_records, "reduce_training", refuse_one)
    for sample in ("a", "b"):
        writer.write("training", records("training", trained(sample)))
    writer.write("rollout", records("rollout", sampled("a")))
    assert Ingester(store).run_once().segments == 3
    assert groups == [2]
    for sample in ("c", "bad", "d"):
        writer.write("training", records("training", trained(sample)))
    report = Ingester(store).run_once()
    assert (report.segments, report.quarantined, report.stuck) == (2, 1, 0)
    found = rows(store, "SELECT sample_id, segment_id FROM all_sequences ORDER BY rowid")
    assert [row["sample_id"] for row in found] == ["a", "b", "c", "d"]
    assert len({row["segment_id"] for row in found}) == 4
