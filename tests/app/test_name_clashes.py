"""Sample ids that do not name one sequence, as doctor and status report them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from segments import RUN, records, sampled, trained

from logprobe.app.text.gaps import faults_of, measured, name_clashes
from logprobe.collectors.spool.segments import SpoolWriter
from logprobe.collectors.vllm.ids import response_sample_id, sample_id
from logprobe.monitor.home import Home
from logprobe.monitor.live.ingest import Ingester
from logprobe.monitor.store.store import Store


def reported(home: Path, *segments: tuple[str, str, list[dict[str, Any]]]) -> list[str]:
    """What is said about a run of these segments: writer, kind, rows."""
    for writer, kind, rows in segments:
        SpoolWriter(home, RUN, writer).write(kind, records(kind, *rows))
    with Store.open(Home(home)) as store:
        Ingester(store).run_once()
        clashes = [
            text for row in store.read("cli_name_clashes", run=None).to_pylist() for text, _ in name_clashes(row)
        ]
        gaps = store.read("cli_gaps", run=None).to_pylist()
        faults = [text for row in gaps for text, _ in faults_of(row)]
        assert all(("repeat a sample id" in measured(row)) == bool(row["repeated"]) for row in gaps)
    return clashes + [text for text in faults if "repeat a sample id" in text]


OTHER = [9, 8, 7, 6]
CASES: dict[str, tuple[list[tuple[str, str, list[dict[str, Any]]]], list[str]]] = {
    "two ranks that number alike": (
        [
            ("a", "training", [trained("0/0")]), ("b", "training", [trained("0/0", token_ids=OTHER)]),
            ("c", "rollout", [sampled("0/0")]), ("d", "rollout", [sampled("0/0", token_ids=OTHER)]),
        ],
        ["1 sample ids name several sequences of one step",
         "1 sample ids were used by several engines with the same request numbering"],
    ),
    "two ranks that record the same": (
        [("a", "training", [trained("0/0")]), ("b", "training", [trained("0/0")])],
        ["1 sequences repeat a sample id of the same step and are counted again"],
    ),
    "one engine that records twice": (
        [("a", "rollout", [sampled("0/0"), sampled("0/0")])], ["1 rollout records repeat another one"],
    ),
    "ids that are used again later": (
        [("a", "training", [trained("0/0", 0), trained("0/0", 1, token_ids=OTHER)])], [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_reported(home: Path, case: str) -> None:
    segments, said = CASES[case]
    assert reported(home, *segments) == said


def test_ranks_have_a_prefix_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert sample_id("7") == "7/0"
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert sample_id("7", 1) == "rank3-7/1"
    assert response_sample_id("chatcmpl-x") == "chatcmpl-x/0"
    monkeypatch.setenv("LOGPROBE_RECORD", "prefix=")
    assert sample_id("7", 1) == "7/1"
