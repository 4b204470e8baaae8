"""Sample ids that do not name one sequence, as doctor and status report them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from segments import RUN, records, sampled, trained

from logprobe.app.text.gaps import faults_of, name_clashes
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
        faults = [text for row in store.read("cli_gaps", run=None).to_pylist() for text, _ in faults_of(row)]
    return clashes + [text for text in faults if "repeat a sample id" in text]


def test_two_ranks_that_number_alike(home: Path) -> None:
    other = trained("0/0", token_ids=[9, 8, 7, 6])
    said = reported(
        home,
        ("a", "training", [trained("0/0")]),
        ("b", "training", [other]),
        ("c", "rollout", [sampled("0/0")]),
        ("d", "rollout", [sampled("0/0", token_ids=[9, 8, 7, 6])]),
    )
    assert said == [
        "1 sample ids name several sequences of one step",
        "1 sample ids were used by several engines with the same request numbering",
    ]


def test_two_ranks_that_record_the_same(home: Path) -> None:
    said = reported(home, ("a", "training", [trained("0/0")]), ("b", "training", [trained("0/0")]))
    assert said == ["1 sequences repeat a sample id of the same step and are counted again"]


def test_one_engine_that_records_twice(home: Path) -> None:
    assert reported(home, ("a", "rollout", [sampled("0/0"), sampled("0/0")])) == [
        "1 rollout records repeat another one"
    ]


def test_ids_that_are_used_again_later_are_no_clash(home: Path) -> None:
    rows = [trained("0/0", 0), trained("0/0", 1, token_ids=[9, 8, 7, 6])]
    assert reported(home, ("a", "training", rows)) == []


def test_ranks_have_a_prefix_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert sample_id("7") == "7/0"
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert sample_id("7", 1) == "rank3-7/1"
    assert response_sample_id("chatcmpl-x") == "chatcmpl-x/0"
    monkeypatch.setenv("LOGPROBE_RECORD", "prefix=")
    assert sample_id("7", 1) == "7/1"
