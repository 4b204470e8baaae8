"""A sample that is in the store twice is found when its second copy comes, and nothing else is taken for one."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from processes import record
from segments import RUN, at, records, sampled, trained
from training_calls import call

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
Batch = list[tuple[str, Rows]]  # segments that come together


def reduced(*rows: dict[str, Any]) -> Rows:
    """What a recorder makes of these training records when it reduces them."""
    where = SegmentPath(Path("x/y/z"), RUN, "w", 1, "training", 0)
    table = reduce_training(sound_rows(Segment(where, records("training", *rows), 0, "x", "w", 1)).table)
    return table.select(STATISTICS.names).to_pylist()


A, B, C = trained("a", 1), trained("b", 2), trained("c", 3)
TWO = {"sequences": 2, "tokens": 8, "first_step": 1, "last_step": 2}
ONE_ROLLOUT = {"kind": "rollout", "sequences": 1, "tokens": 4, "first_step": None, "last_step": None}
# Batches, and what is found; between two of them another service starts.
TWICE: dict[str, tuple[list[Batch], Rows]] = {
    "in a later segment": ([[("training", [A, B])], [("training", [C, B, A])]], [TWO | {"kind": "training"}]),
    "in two segments of one batch": ([[("training", [A, B]), ("training", [B, A, C])]], [TWO | {"kind": "training"}]),
    "as statistics": ([[("training", [A, B])], [("statistics", reduced(A, B, C))]], [TWO | {"kind": "statistics"}]),
    "as statistics of one batch": (
        [[("training", [A, B]), ("statistics", reduced(A, B, C))]],
        [TWO | {"kind": "statistics"}],
    ),
    "the engine's": ([[("rollout", [sampled("a"), sampled("b")])], [("rollout", [sampled("b")])]], [ONE_ROLLOUT]),
}
ONCE = {
    "trained again in a later step": ([A], [trained("a", 2, time=at(1))]),
    "trained again in a later call": ([A], [trained("a", 1, time=at(1.5))]),
    "another sample of the same prompt": ([trained("a", 1, group_id="p")], [trained("a'", 1, group_id="p")]),
    "one name for several samples": ([trained("a", 1, n=4)], [trained("a", 1, n=5)]),
    "the same name on another rank": ([trained("a", 1, rank=0)], [trained("a", 1, rank=1)]),
    "no time": ([trained("a", 1, time=None)], [trained("a", 1, time=None)]),
}
CASES = TWICE | {
    words: ([[("training", first), ("statistics", reduced(*second))], [("training", [C])]], [])
    for words, (first, second) in ONCE.items()
}


def bring(store: Store, run: str, batches: list[Batch]) -> None:
    spool = SpoolWriter(store.home.path, run, "w")
    for batch in batches:
        for kind, rows in batch:
            spool.write(kind, records(kind, *rows))
        report = Ingester(store).run_once()
        assert (report.segments, report.duplicates) == (len(batch), 0)


def test_what_is_there_twice_and_nothing_else(store: Store) -> None:
    for words, (batches, expected) in CASES.items():
        bring(store, words, batches)
        sql = "SELECT kind, sequences, tokens, first_step, last_step FROM doubled WHERE run = ? ORDER BY ALL"
        assert store.query(sql, [words]).to_pylist() == expected, words


def test_silence_on_recorded_runs(recorded_runs: Path) -> None:
    with Store.open(Home(recorded_runs), read_only=True) as store:
        assert store.query("SELECT * FROM doubled").num_rows == 0


def test_page_and_command_say_so_at_once(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    both: Batch = [("training", [B]), ("rollout", [sampled("a")])]
    bring(store, RUN, [both, both])
    (pulse,) = store.read("alert_pulse", runs=[RUN]).to_pylist()
    assert (pulse["doubled"], pulse["doubled_since"]) == (2, 2)
    home = store.home.path
    store.close()
    with open_reader(home) as reader:
        assert "are in the store twice and count twice" in str(
            list(of_records(describe(reader, RUN, now=datetime.now(UTC))))
        )
    assert main(["show", RUN, "--home", str(home)]) == 0
    said = capsys.readouterr().out
    assert "1 sequences and 1 rollouts of step 2 (4 tokens) are in the store twice and count twice" in said


def copied(where: SegmentPath) -> None:
    """As a writer that did not know better would have written it again."""
    SpoolWriter(where.path.parents[3], "toy", where.writer, after=0).write("training", read_segment(where).table)


def cut(where: SegmentPath) -> None:
    where.path.write_bytes(where.path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            None,
            "54 sequence records of engine and trainer together, as reported by 2 collectors; all stored, each once",
        ),
        (copied, "12 more than that are stored"),
        (cut, "12 of them are not stored: quarantined, lost, or still in the spool"),
    ],
    ids=["all", "copied", "cut"],
)
def test_what_is_stored_is_compared_with_what_the_collectors_sent(
    home: Path, capsys: pytest.CaptureFixture[str], change: Any, words: str
) -> None:
    record(home)
    for path in spool_dir(home).rglob("*.training.*.arrow") if change else ():
        change(SegmentPath.parse(path))
    with Recorder(
        home, "toy", raw_fraction=0.5, worst_sequences=0
    ) as recorder:  # statistics and the engine's count, too
        assert recorder.training(**call(9))
        assert recorder.rollout(sample_ids=["x", "y"], token_ids=[[1], [2]], logprobs=[[-1.0], [-2.0]])
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
    assert main(["show", "toy", "--home", str(home)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  sent")]
    assert words in line
