"""A sample that is in the store twice is found when its second copy comes, and nothing else is taken for one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from processes import record
from segments import RUN, at, records, sampled, trained
from training_calls import call

from logprobe.alerts.rules import liveness, watch
from logprobe.app.cli import main
from logprobe.app.view.records import describe
from logprobe.app.view.story import of_records
from logprobe.collectors import Recorder
from logprobe.collectors.spool.schema import STATISTICS
from logprobe.collectors.spool.segments import Segment, SegmentPath, SpoolWriter, read_segment, spool_dir
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.live.sequence_rows import reduce_training
from logprobe.monitor.live.soundness import sound_rows
from logprobe.monitor.reader import open_reader
from logprobe.monitor.store.store import Store

Rows = list[dict[str, Any]]


class Filled:
    """A store into which segments are brought, one or several at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.ingester = Ingester(store)

    def bring(self, *segments: tuple[str, Rows], writer: str = "w") -> None:
        known = self.store.query("SELECT coalesce(max(sequence), 0) AS n FROM segments WHERE writer = ?", [writer])
        spool = SpoolWriter(self.store.home.path, RUN, writer, after=known["n"][0].as_py())
        for kind, rows in segments:
            spool.write(kind, records(kind, *rows))
        report = self.ingester.run_once()
        assert (report.segments, report.duplicates) == (len(segments), 0)

    def doubled(self) -> Rows:
        return self.store.query(
            "SELECT kind, sequences, tokens, first_step, last_step FROM doubled ORDER BY ALL"
        ).to_pylist()


@pytest.fixture
def filled(store: Store) -> Filled:
    return Filled(store)


def reduced(*rows: dict[str, Any]) -> Rows:
    """What a recorder makes of these training records when it reduces them."""
    where = SegmentPath(Path("x/y/z"), RUN, "w", 1, "training", 0)
    table = reduce_training(sound_rows(Segment(where, records("training", *rows), 0, "x", "w", 1)).table)
    return table.select(STATISTICS.names).to_pylist()


A, B, C = trained("a", 1), trained("b", 2), trained("c", 3)
TWICE = {"kind": "training", "sequences": 2, "tokens": 8, "first_step": 1, "last_step": 2}


def test_a_later_segment_with_the_same_rows(filled: Filled):
    filled.bring(("training", [A, B]))
    filled.bring(("training", [C, B, A]))
    assert filled.doubled() == [TWICE]


def test_two_segments_of_one_batch_with_the_same_rows(filled: Filled):
    filled.bring(("training", [A, B]), ("training", [B, A, C]))
    assert filled.doubled() == [TWICE]


@pytest.mark.parametrize("together", [True, False])
def test_raw_tokens_and_statistics_of_the_same_sequences(filled: Filled, together: bool):
    raw, small = ("training", [A, B]), ("statistics", reduced(A, B, C))
    if together:
        filled.bring(raw, small)
    else:
        filled.bring(raw)
        filled.bring(small)
    assert filled.doubled() == [TWICE | {"kind": "statistics"}]


def test_an_engines_records(filled: Filled):
    filled.bring(("rollout", [sampled("a"), sampled("b")]))
    filled.bring(("rollout", [sampled("b")]))
    assert filled.doubled() == [{"kind": "rollout", "sequences": 1, "tokens": 4, "first_step": None, "last_step": None}]


def test_a_copy_that_comes_after_a_restart(filled: Filled):
    filled.bring(("training", [A, B]), ("rollout", [sampled("a"), sampled("b")]))
    filled.ingester = Ingester(filled.store)  # another service
    filled.bring(("rollout", [sampled("b")]), ("training", [trained("f", 4, time=at(9)), A]))
    assert [(row["kind"], row["sequences"]) for row in filled.doubled()] == [("rollout", 1), ("training", 1)]


HEALTHY = {
    "trained again in a later step": ([A], [trained("a", 2, time=at(1))]),
    "trained again in a later call": ([A], [trained("a", 1, time=at(1.5))]),
    "another sample of the same prompt": ([trained("a", 1, group_id="p")], [trained("a'", 1, group_id="p")]),
    "one name for several samples": ([trained("a", 1, n=4)], [trained("a", 1, n=5)]),
    "the same name on another rank": ([trained("a", 1, rank=0)], [trained("a", 1, rank=1)]),
    "no time": ([trained("a", 1, time=None)], [trained("a", 1, time=None)]),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_silence(filled: Filled, case: str):
    first, second = HEALTHY[case]
    filled.bring(("training", first), ("statistics", reduced(*second)))
    filled.bring(("training", [C]))
    assert filled.doubled() == []


def test_silence_on_recorded_runs(recorded_runs: Path):
    with Store.open(Home(recorded_runs), read_only=True) as store:
        assert store.query("SELECT * FROM doubled").num_rows == 0


def test_status_the_alert_and_the_data_page_say_so_at_once(filled: Filled, capsys: pytest.CaptureFixture[str]):
    def alert() -> str:
        (row,) = filled.store.read("alert_pulse", runs=[RUN]).to_pylist()
        return liveness.look(watch._pulse(**row), at(0)).words

    filled.bring(("training", [A, B]), ("rollout", [sampled("a")]))
    assert "twice" not in alert()
    filled.bring(("training", [B]), ("rollout", [sampled("a")]))
    assert "2 sequences are in the store twice and count twice, from step 2 on" in alert()
    home = filled.store.home.path
    filled.store.close()
    with open_reader(home) as reader:
        account = describe(reader, RUN, now=datetime.now(UTC))
    assert "are in the store twice and count twice" in str(list(of_records(account)))
    assert main(["show", RUN, "--home", str(home)]) == 0
    said = capsys.readouterr().out
    assert "1 sequences and 1 rollouts of step 2 (4 tokens) are in the store twice and count twice" in said


def sent_line(home: Path, capsys: pytest.CaptureFixture[str]) -> str:
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    assert main(["show", "toy", "--home", str(home)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  sent")]
    return line.strip().partition(" ")[2].strip()


def training_segments(home: Path) -> list[SegmentPath]:
    return [SegmentPath.parse(path) for path in spool_dir(home).rglob("*.training.*.arrow")]


def test_what_is_stored_is_compared_with_what_the_collectors_sent(home: Path, capsys: pytest.CaptureFixture[str]):
    record(home)
    assert sent_line(home, capsys).endswith(
        "12 sequence records of engine and trainer together, as reported by 1 collector; all stored, each once"
    )


def test_sampled_sequences_and_the_engines_count_among_those_sent(home: Path, capsys: pytest.CaptureFixture[str]):
    with Recorder(home, "toy", raw_fraction=0.5, worst_sequences=0) as recorder:
        assert recorder.training(**call(1))
        assert recorder.rollout(sample_ids=["x", "y"], token_ids=[[1], [2]], logprobs=[[-1.0], [-2.0]])
    assert sent_line(home, capsys).startswith("42 sequence records")
    assert sent_line(home, capsys).endswith("all stored, each once")


def test_what_is_stored_more_often_than_it_was_sent_is_said(home: Path, capsys: pytest.CaptureFixture[str]):
    record(home)
    for where in training_segments(home):  # as a writer that did not know better would have written it again
        SpoolWriter(home, "toy", where.writer, after=0).write("training", read_segment(where).table)
    assert sent_line(home, capsys).endswith("12 more than that are stored")


def test_what_was_sent_and_is_not_stored_is_said(home: Path, capsys: pytest.CaptureFixture[str]):
    record(home)
    for where in training_segments(home):
        where.path.write_bytes(where.path.read_bytes()[:-1])
    assert "12 of them are not stored: quarantined, lost, or still in the spool" in sent_line(home, capsys)
